"""From a finished run folder to a network of the zoo: weights in half precision, new measurements, a card.

The figures are measured with the weights as they will be loaded (rounded to half precision), so that an evaluation of
the network reproduces its card.
"""

import dataclasses
from pathlib import Path

import torch

from codinet import files
from codinet.cost import CostTable, block_costs
from codinet.data.official import KNOWN
from codinet.environment import describe
from codinet.errors import UserError
from codinet.evaluate import FIGURES, Evaluation
from codinet.records import PathTable
from codinet.runs import RunFolder, measure
from codinet.zoo.card import FORMAT, Card
from codinet.zoo.open_run import widened
from codinet.zoo.paths import packed
from codinet.zoo.same_images import identity_of
from codinet.zoo.shelf import NAME, zoo_folder

LIMIT = 25 * 10**6  # bytes of weights that a package may contain
BATCH = 250  # that of `codinet eval`, because another batch size may round differently
THRESHOLD = 0.5
_VERSIONS = ("codinet", "python", "torch")


def add(
    run: RunFolder, name: str, data_root: Path, *, device: torch.device, replace: bool = False, into: Path | None = None
) -> Card:
    """Put a run into the zoo; the card is written last, because it promises that the weights are there."""
    folder = into or zoo_folder()
    _check_name(name, folder, replace=replace)
    as_trained = _check_run(run)
    model = run.load_model()
    dataset = run.load_own_dataset(data_root)
    halved = {key: _halved(key, tensor, run) for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: widened(tensor) for key, tensor in halved.items()})
    evaluation = measure(model.to(device), dataset, device, batch=BATCH, threshold=THRESHOLD)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Cannot make the zoo's folder {folder}: {error.strerror}; set CODINET_ZOO to another one."
        ) from error
    tested, order_T = identity_of(dataset.test)
    if run.config.network.routed:
        halved |= packed(PathTable(*(column[order_T] for column in evaluation.paths)))
    file = folder / f"{name}.safetensors"
    _check_room(folder, file, halved)
    files.save_tensors(file, halved, about=dataclasses.asdict(model.config))
    table = block_costs(model, run.data.image_shape)
    card = _card(run, name, as_trained, evaluation, table, tested, device, file)
    files.write_json(file.with_suffix(".json"), card.content)
    return card


def _check_name(name: str, folder: Path, *, replace: bool) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"--name {name!r} does not fit; use small letters, digits, dots and dashes, such as cifar10-resnet32-065."
        )
    if (folder / f"{name}.json").exists() and not replace:
        raise UserError(f"The zoo already has {name}; give another --name, or --replace.")


def _check_run(run: RunFolder) -> dict[str, float]:
    """The run's own figures, if it may be shared."""
    run.require_finished()
    if "zoo" in run.environment:
        raise UserError(f"{run.path} comes from the zoo ({run.environment['zoo']}); add a run of your own.")
    if run.config.source not in KNOWN:
        raise UserError(
            f"{run.path} was trained on {Path(run.config.source).name}; the zoo takes only networks trained on "
            f"{', '.join(KNOWN)}."
        )
    figures = run.load_evaluation()
    return {key: figures[key] for key in FIGURES}


def _halved(key: str, tensor: torch.Tensor, run: RunFolder) -> torch.Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not bool(torch.isfinite(half).all()):
        raise UserError(f"{key} of {run.path} is too large for half precision, which the zoo uses; train it again.")
    return half


def _check_room(folder: Path, file: Path, tensors: dict[str, torch.Tensor]) -> None:
    others = sum(other.stat().st_size for other in folder.glob("*.safetensors") if other != file)
    own = sum(tensor.nbytes for tensor in tensors.values())
    if others + own > LIMIT:
        raise UserError(
            f"The zoo would grow to {(others + own) / 1e6:.1f} MB of weights, and the limit is {LIMIT / 1e6:.0f}; "
            "remove a network first."
        )


def _card(
    run: RunFolder,
    name: str,
    as_trained: dict[str, float],
    evaluation: Evaluation,
    table: CostTable,
    tested: str,
    device: torch.device,
    file: Path,
) -> Card:
    here = describe(device)
    network, data = run.config.network, run.data
    content = {
        "format": FORMAT,
        "name": name,
        "data": run.config.source,
        "data_sha256": data.sha256,
        "test_sha256": tested,
        "arch": network.arch,
        "routed": network.routed,
        "router": network.router,
        "classes": list(data.classes),
        "image_shape": list(data.image_shape),
        "normalisation": {"mean": list(data.mean), "std": list(data.std)},
        "cost": {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(table).items()},
        "recipe": run.recipe(),
        "seed": run.config.seed,
        "commit": run.environment.get("commit"),
        "device": str(run.environment.get("device")),
        "versions": {key: run.environment.get(key) for key in _VERSIONS},
        "wall_s": run.wall_seconds(),
        **evaluation.summary(),
        "threshold": THRESHOLD,
        "as_trained": as_trained,
        "measured": {key: here[key] for key in (*_VERSIONS, "commit", "device")} | {"batch": BATCH},
        "sha256": files.sha256_of(file),
        "bytes": file.stat().st_size,
    }
    return Card.of(content, file.with_suffix(".json"))
