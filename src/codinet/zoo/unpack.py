"""A network of the zoo as a run folder of one's own, for what needs a path table and a place to write."""

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
    """Weights, figures and paths on the test images, measured here; metrics of the training there are none."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out.")
    dataset = same_data(entry, data_root)
    model = entry.load_model(device)
    evaluation = measure(model, dataset, device, batch=BATCH)
    here = replace(entry.data, sha256=DataBrief.of(dataset).sha256)  # in the order that the paths are in
    folder = RunFolder.create(out, entry.config, here, entry.environment)
    folder.save_results(model, evaluation)
    # What counts is the time of the training, not of the unpacking.
    files.write_json(out / "timing.json", {"seconds": entry.card["wall_s"]})
    return folder
