"""`codinet train`: train a network, or continue a run that was stopped.

Under torchrun every process runs this command with the same flags, and only the first one prints.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from codinet.commands.printing import counted, evaluation_rows, note, print_json, print_table
from codinet.config import DATA_ROOT, PARTS, RunConfig, flag_of, resolve, unused_settings
from codinet.errors import UserError, unknown
from codinet.flags import given_only
from codinet.presets import PRESETS, as_static

if TYPE_CHECKING:
    import torch

    from codinet.data import Dataset
    from codinet.train.distributed import World

_LARGE_STEP = 2**30  # bytes; smaller steps are not checked against the free memory


def _settings(part: str) -> Any:
    """The flags of a part of the config, all optional; their defaults are the preset's."""
    return tyro.conf.arg(constructor=given_only({name: getattr(make(""), part) for name, make in PRESETS.items()}))


@dataclass(frozen=True)
class Args:
    source: tyro.conf.Positional[str]
    """digits, cifar10, cifar100, svhn, an image folder, or an .npz file."""
    data: Annotated[dict[str, Any], _settings("data")]
    network: Annotated[dict[str, Any], _settings("network")]
    losses: Annotated[dict[str, Any], _settings("losses")]
    schedule: Annotated[dict[str, Any], _settings("schedule")]
    extra: Annotated[dict[str, Any], _settings("extra")]
    seed: int = 0
    """Seed of the initial weights, the image order, the augmentations and the noise."""
    preset: str = "paper"
    """Recipe whose values the other flags replace: paper, best, quick, demo."""
    out: Path | None = None
    """Run folder to write. Default: runs/ and a name made of source, network and seed."""
    resume: bool = False
    """Continue the run in --out with the flags it was started with, or start it if there is none."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps. Default: the best available."""
    compile: tyro.conf.DisallowNone[bool | None] = None
    """Compile blocks and, on CUDA, capture the whole step in a graph. Default: on CUDA."""
    amp: tyro.conf.DisallowNone[bool | None] = None
    """Compute in bfloat16, losses in float32. Default: on CUDA."""
    kernels: tyro.conf.DisallowNone[bool | None] = None
    """With --compile and --amp, use fused kernels for narrow blocks. Default: on CUDA."""
    sync_bn: bool = False
    """Under torchrun on GPUs, normalise by the batches of all processes together."""
    loader: Literal["auto", "resident", "stream"] = "auto"
    """Where training images are kept: on the device, or outside it and streamed. Default: on the device if they fit."""
    wait_minutes: float = 10.0
    """Under torchrun, how long to wait for a process that does not respond."""
    json: bool = False
    """Print the result as one JSON document."""


def config_from(args: Args) -> RunConfig:
    """The preset's config with the settings that are given as flags; not yet resolved."""
    if args.preset not in PRESETS:
        raise unknown("preset", args.preset, PRESETS)
    preset = PRESETS[args.preset](args.source)
    if not args.network.get("routed", preset.network.routed):
        preset = as_static(preset)  # drops the preset's budget; --budget on the command line is an error
    parts: dict[str, Any] = {part: replace(getattr(preset, part), **getattr(args, part)) for part in PARTS}
    return replace(preset, seed=args.seed, **parts)


def run(args: Args) -> None:
    """Train, and print the evaluation on the test images."""
    config = config_from(args)

    from codinet.train import distributed

    device = distributed.own_device(args.device)
    with distributed.joined(device, wait_minutes=args.wait_minutes) as world:
        _train(args, config, device, world)


def _train(args: Args, config: RunConfig, device: "torch.device", world: "World") -> None:
    from codinet.train import Execution, train
    from codinet.train.reporting import Console

    execution = Execution(args.compile, args.amp, args.kernels, args.sync_bn, args.loader)
    amp = bool(execution.resolve(device, world).amp)
    config, dataset = world.on_every_rank(lambda: _load(args, config, device, amp, world))
    notes = world.on_rank0(lambda: _notes(args, config))
    for sentence in notes if world.is_rank0 else ():
        note(sentence)
    folder, evaluation = train(
        args.out or Path("runs") / _folder_name(config),
        config,
        dataset,
        device=device,
        resume=args.resume,
        execution=execution,
        reporter=Console() if world.is_rank0 else None,
        world=world,
    )
    if not world.is_rank0:
        return
    if args.json:
        print_json({"run": str(folder.path), **evaluation.summary()})
    else:
        rows = evaluation_rows(evaluation.summary())
        print_table(f"{folder.path} on the {evaluation.n} test images", ["", ""], rows)


def _load(
    args: Args, config: RunConfig, device: "torch.device", amp: bool, world: "World"
) -> tuple[RunConfig, "Dataset"]:
    """The complete config and its data, checked against each other and against the free memory."""
    from codinet.data import load, locate

    config = resolve(config, gpu=device.type == "cuda")
    # An absolute path, so that the run can be evaluated from any folder.
    config = replace(config, source=locate(config.source, args.data_root))
    dataset = load(config.source, args.data_root, image_size=config.data.image_size)
    _require_small_cutout(config, dataset)
    if device.type == "cpu":
        _require_memory(config, dataset, bytes_per_value=2 if amp else 4, processes=world.size)
    return config, dataset


def _require_small_cutout(config: RunConfig, dataset: "Dataset") -> None:
    _, height, width = dataset.image_shape
    cutout, side = config.extra.cutout, min(height, width)
    if cutout >= side:
        raise UserError(
            f"--cutout must be below {side} for the images of {dataset.name}, which are {height}×{width}, got {cutout}."
        )


def _require_memory(config: RunConfig, dataset: "Dataset", *, bytes_per_value: int, processes: int) -> None:
    """Refuse a step for which the system would end the process.

    The estimate is a lower bound: the images, and the output of the first convolution (16 channels in every network)
    before and after its normalisation.
    """
    from codinet.data.free_memory import require_memory

    channels, height, width = dataset.image_shape
    views = (config.schedule.batch or 0) // processes * config.schedule.views
    needed = views * height * width * (4 * channels + 2 * 16 * bytes_per_value)
    if needed > _LARGE_STEP:
        require_memory(
            needed,
            what=f"A step on {views} views of {height}×{width}",
            hint="use a smaller --batch, or --image-size for an image folder",
        )


def _notes(args: Args, config: RunConfig) -> list[str]:
    """Where the training may differ from what the flags seem to say."""
    from codinet.data.catalogue import KNOWN
    from codinet.data.image_folder import ignored_folders

    notes = []
    if config.source not in KNOWN:
        if not Path(os.path.expanduser(args.source)).exists():
            notes.append(f"{args.source} does not exist; using {config.source}.")
        inner = ignored_folders(Path(config.source)) if Path(config.source).is_dir() else []
        if inner:
            more = f" and {counted(len(inner) - 1, 'more folder')}" if len(inner) > 1 else ""
            notes.append(f"images in {inner[0]}{more} are not read; put images directly into the folder of a class.")
    given = [name for part in PARTS for name, value in getattr(args, part).items() if value != 0]  # 0 switches off
    unused = [flag_of(name) for name in given if name in unused_settings(config)]
    if unused:
        why = "--no-routed" if not config.network.routed else "a loss weight of 0"
        notes.append(f"these flags have no effect with {why}: {', '.join(unused)}.")
    return notes


def _folder_name(config: RunConfig) -> str:
    kind = "routed" if config.network.routed else "static"
    return f"{Path(config.source).stem}-{config.network.arch}-{kind}-seed{config.seed}"
