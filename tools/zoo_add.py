"""Adds a finished run to the zoo: `python -m tools.zoo_add RUN --name NAME`.

Weights are stored in half precision. The card's numbers are measured with the weights as they will be loaded, so that
an evaluation of the network reproduces its card.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.cli import guarded, parse
from codinet.commands.printing import evaluation_rows, print_json, print_table
from codinet.cost import CostTable, block_costs
from codinet.data import DATA_ROOT
from codinet.data.catalogue import KNOWN
from codinet.environment import describe, pick_device
from codinet.errors import UserError
from codinet.evaluate import FIGURES, TOP5, Evaluation, evaluate_test_set
from codinet.records import PathTable
from codinet.run_reader import RunReader
from codinet.runs import open_run
from codinet.specs import library_versions
from codinet.zoo.card import BATCH, FORMAT, GROUPS, Card
from codinet.zoo.shelf import NAME, zoo_folder
from codinet.zoo.zoo_run import identity_of, pack_paths, widened

LIMIT = 25 * 10**6  # bytes of all weights in the package
THRESHOLD = 0.5
_VERSIONS = ("codinet", "python", "torch")


def add(
    run: RunReader, name: str, data_root: Path, *, device: torch.device, replace: bool = False, into: Path | None = None
) -> Card:
    """Adds a run to the zoo.

    Args:
        run: A finished run on one of the known data sets.
        name: Name of the network in the zoo.
        data_root: Folder of the data sets.
        device: Device to evaluate on.
        replace: Whether to replace an existing network of this name.
        into: Folder of the zoo; by default the package's, or CODINET_ZOO.

    Returns:
        The card, which is written last so that a card always has its weights.
    """
    folder = into or zoo_folder()
    _check_name(name, folder, replace=replace)
    as_trained = _check_run(run)
    model = run.load_model()
    dataset = run.load_own_dataset(data_root)
    halved = {key: _to_half(key, tensor, run) for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: widened(tensor) for key, tensor in halved.items()})
    evaluation = evaluate_test_set(model.to(device), dataset, device, batch=BATCH, threshold=THRESHOLD)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Cannot create the zoo's folder {folder}: {error.strerror}; set CODINET_ZOO to another one."
        ) from error
    tested, order_T = identity_of(dataset.test)
    if run.config.network.routed:
        halved |= pack_paths(PathTable(*(column[order_T] for column in evaluation.paths)))
    file = folder / f"{name}.safetensors"
    _check_size(folder, file, halved)
    assert model.config is not None
    files.save_tensors(file, halved, about=dataclasses.asdict(model.config))
    table = block_costs(model, run.data.image_shape)
    card = _card(run, name, as_trained, evaluation, table, tested, device, file)
    files.write_json(file.with_suffix(".json"), card.content)
    return card


def _check_name(name: str, folder: Path, *, replace: bool) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"--name must consist of lowercase letters, digits, dots and dashes (cifar10-resnet32-065), got {name!r}."
        )
    if (folder / f"{name}.json").exists() and not replace:
        raise UserError(f"The zoo already has {name}; choose another --name, or pass --replace.")


def _check_run(run: RunReader) -> dict[str, float]:
    """The run's own metrics; `UserError` if it cannot be added."""
    run.require_finished()
    if "zoo" in run.environment:
        raise UserError(f"{run.path} comes from the zoo ({run.environment['zoo']}); add a run of your own.")
    if run.config.source not in KNOWN:
        raise UserError(
            f"{run.path} was trained on {Path(run.config.source).name}; the zoo accepts networks trained on "
            f"{', '.join(KNOWN)} only."
        )
    evaluation = run.load_evaluation()
    return {key: evaluation[key] for key in (*FIGURES, TOP5) if key in evaluation}


def _to_half(key: str, tensor: torch.Tensor, run: RunReader) -> torch.Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not bool(torch.isfinite(half).all()):
        raise UserError(f"{key} of {run.path} is too large for half precision, which the zoo uses.")
    return half


def _check_size(folder: Path, file: Path, tensors: dict[str, torch.Tensor]) -> None:
    others = sum(other.stat().st_size for other in folder.glob("*.safetensors") if other != file)
    own = sum(tensor.nbytes for tensor in tensors.values())
    if others + own > LIMIT:
        raise UserError(
            f"The zoo would grow to {(others + own) / 1e6:.1f} MB, and its limit is {LIMIT / 1e6:.0f} MB; "
            "remove a network first."
        )


def _card(
    run: RunReader,
    name: str,
    as_trained: dict[str, float],
    evaluation: Evaluation,
    table: CostTable,
    tested: str,
    device: torch.device,
    file: Path,
) -> Card:
    environment = describe(device)
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
        "versions": {key: run.environment.get(key) for key in (*_VERSIONS, *library_versions(network.arch))},
        "wall_s": run.wall_seconds(),
        **evaluation.summary(),
        **({} if network.arch in ARCHITECTURES else {GROUPS: list(run.groups)}),
        "threshold": THRESHOLD,
        "as_trained": as_trained,
        "measured": {key: environment[key] for key in (*_VERSIONS, "commit", "device")} | {"batch": BATCH},
        "sha256": files.sha256_of(file),
        "bytes": file.stat().st_size,
    }
    return Card.of(content, file.with_suffix(".json"))


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Folder of a finished run."""
    name: str
    """Name of the network in the zoo, e.g. cifar10-resnet32-065."""
    replace: bool = False
    """Replace the network of that name."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str = "cpu"
    """Device to evaluate on. Cards are measured on a CPU."""
    json: bool = False
    """Print one JSON document."""


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    words = sys.argv[1:] if argv is None else argv

    def call() -> int:
        args = parse(Args, words, prog="python -m tools.zoo_add")
        if args is not None:
            device = pick_device(args.device)
            _print(add(open_run(args.run), args.name, args.data_root, device=device, replace=args.replace), args)
        return 0

    return guarded(call)


def _print(card: Card, args: Args) -> None:
    if args.json:
        print_json(card.content)
        return
    title = f"Added {card.name} to the zoo ({card['bytes'] / 1e6:.2f} MB)"
    before = dict(evaluation_rows(card["as_trained"]))
    rows = [[name, before.get(name, "–"), new] for name, new in evaluation_rows(card.figures())]
    print_table(title, ["", "as trained", "in half precision"], rows)


if __name__ == "__main__":
    sys.exit(main())
