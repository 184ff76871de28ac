"""A network of the zoo as a run folder, for commands that need a path table and a place to write."""

from dataclasses import replace
from pathlib import Path

import torch

from codinet import files
from codinet.errors import UserError
from codinet.runs import DataBrief, RunFolder, measure
from codinet.zoo.add import BATCH
from codinet.zoo.open_run import ZooRun
from codinet.zoo.same_images import same_data


def unpack(entry: ZooRun, out: Path, data_root: Path, device: torch.device) -> RunFolder:
    """Write weights, and figures and paths measured here on the test images; there are no metrics of the training."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out.")
    dataset = same_data(entry, data_root)
    model = entry.load_model(device)
    evaluation = measure(model, dataset, device, batch=BATCH)
    here = replace(entry.data, sha256=DataBrief.of(dataset).sha256)  # in the order that the paths are in
    folder = RunFolder.create(out, entry.config, here, entry.environment)
    folder.save_results(model, evaluation)
    # The time of the training, not of the unpacking.
    files.write_json(out / "timing.json", {"seconds": entry.card["wall_s"]})
    return folder
