"""`codinet train`: train a network, or go on with a run that was stopped.

Under torchrun every process comes through here with the same words, and the first one speaks for all.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import tyro

from codinet.commands.shared import counted, figures, flag_value, note, print_json
from codinet.commands.tables import print_table
from codinet.config import DataConfig, ExtraConfig, LossConfig, NetworkConfig, RunConfig, ScheduleConfig, resolve
from codinet.data import DATA_ROOT, Dataset, load, locate
from codinet.data.folder import nested
from codinet.data.memory import require_room
from codinet.data.official import KNOWN
from codinet.data.placing import Loader
from codinet.errors import UserError, unknown
from codinet.presets import PRESETS, as_static
from codinet.train import distributed, train
from codinet.train.reporting import Console

# What only routers and their losses use; --budget and --gamma are refused without routing.
_OF_ROUTING = {
    "network": ("router", "relaxation", "tau"),
    "losses": ("alpha", "beta", "m_c", "m_d", "score_decay", "paths"),
}
_LARGE = 2**30  # bytes; for less nobody is asked whether there is room


@dataclass(frozen=True)
class Args:
    source: tyro.conf.Positional[str]
    """digits, cifar10, cifar100, svhn, an image folder, or an .npz file."""
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    seed: int = 0
    """Seed of initial weights, order, views and noise."""
    extra: ExtraConfig = field(default_factory=ExtraConfig)
    preset: str = "paper"
    """Named recipe whose values the other flags replace: paper, best, quick, demo."""
    out: Path | None = None
    """Run folder to write. Default: runs/ and a name made of source, network and seed."""
    resume: bool = False
    """Continue the run in --out (with the flags it was started with), or start it if there is none."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps. Default: the best there is."""
    compile: bool = False
    """Compile blocks and, on CUDA, capture the whole step in a graph. Default: on CUDA."""
    amp: bool = False
    """Compute in bfloat16, losses in float32. Default: on CUDA."""
    kernels: bool = False
    """With --compile and --amp, fused kernels for narrow blocks. Default: on CUDA."""
    sync_bn: bool = False
    """Under torchrun on GPUs, normalise by the batches of all processes together."""
    loader: Loader = "auto"
    """Where training images are kept: on the device, or outside it and streamed. Default: on the device if they fit."""
    wait_minutes: float = distributed.WAIT_MINUTES
    """Under torchrun, how long to wait for a process that does not respond."""
    json: bool = False
    """Print the result as one JSON document."""


def defaults(words: list[str]) -> Args:
    """The flags' defaults: those of the preset and of the device that are named among the words."""
    name = flag_value("--preset", words) or "paper"
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    preset = PRESETS[name]("")
    if any(word.replace("_", "-") == "--no-routed" for word in words):
        # Without routers a preset's budget means nothing; one that is stated is refused.
        preset = as_static(preset)
    fast = distributed.own_device(flag_value("--device", words)).type == "cuda"
    return Args(
        source=tyro.MISSING,
        data=preset.data,
        network=preset.network,
        losses=preset.losses,
        schedule=preset.schedule,
        extra=preset.extra,
        preset=name,
        compile=fast,
        amp=fast,
        kernels=fast,
    )


def run(args: Args) -> None:
    device = distributed.own_device(args.device)
    with distributed.joined(device, wait_minutes=args.wait_minutes) as world:
        _train(args, device, world)


def _train(args: Args, device: torch.device, world: distributed.World) -> None:
    config, dataset = world.each(lambda: _read(args, device, world))
    remarks = world.lead(lambda: _remarks(args, config))
    for sentence in remarks if world.leads else ():
        note(sentence)
    folder, evaluation = train(
        args.out or Path("runs") / _name(config),
        config,
        dataset,
        device=device,
        resume=args.resume,
        compile=args.compile,
        amp=args.amp,
        kernels=args.kernels,
        reporter=Console() if world.leads else None,
        world=world,
        sync_bn=args.sync_bn,
        loader=args.loader,
    )
    if not world.leads:
        return
    if args.json:
        print_json({"run": str(folder.path), **evaluation.summary()})
    else:
        print_table(f"{folder.path} on the {evaluation.n} test images", ["", ""], figures(evaluation.summary()))


def _read(args: Args, device: torch.device, world: distributed.World) -> tuple[RunConfig, Dataset]:
    """What to train and on what, seen to fit together."""
    config = resolve(
        RunConfig(args.source, args.data, args.network, args.losses, args.schedule, args.seed, args.extra),
        gpu=device.type == "cuda",
    )
    # As a path that means the same wherever the run is measured later.
    config = replace(config, source=locate(args.source, args.data_root))
    dataset = load(config.source, args.data_root, image_size=config.data.image_size)
    _require_fit(config, dataset)
    if device.type == "cpu":
        _require_room(config, dataset, 2 if args.amp else 4, world)
    return config, dataset


def _require_fit(config: RunConfig, dataset: Dataset) -> None:
    """See that something of the images is left."""
    _, height, width = dataset.image_shape
    cutout, side = config.extra.cutout, min(height, width)
    if cutout >= side:
        raise UserError(
            f"--cutout {cutout} is a square as large as the images of {dataset.name}, which are {height}×{width}; "
            f"use less than {side}."
        )


def _require_room(config: RunConfig, dataset: Dataset, size: int, world: distributed.World) -> None:
    """Refuse steps that the system would end the process for, by what they take at the very least: the images, and
    what the first convolution makes of them, which is 16 values a pixel in every network, before and after their
    normalisation. `size` is the bytes of a value."""
    channels, height, width = dataset.image_shape
    views = (config.schedule.batch or 0) // world.size * config.schedule.views
    needed = views * height * width * (4 * channels + 2 * 16 * size)
    if needed > _LARGE:
        require_room(
            needed,
            what=f"A step on {views} views of {height}×{width}",
            way_out="use a smaller --batch, or --image-size if they are a folder's",
        )


def _remarks(args: Args, config: RunConfig) -> list[str]:
    """Where the training is not quite what the words may have meant."""
    said = []
    if config.source not in KNOWN:
        if not Path(os.path.expanduser(args.source)).exists():
            said.append(f"there is no {args.source}; the images are those of {config.source}.")
        inner = nested(Path(config.source)) if Path(config.source).is_dir() else []
        if inner:
            more = f" and {counted(len(inner) - 1, 'folder')} more" if len(inner) > 1 else ""
            said.append(f"images in {inner[0]}{more} are not read; those of a class lie in the class's folder itself.")
    idle = [] if config.network.routed else _of_routing(args)
    if idle:
        said.append(f"--no-routed leaves no routers, so {', '.join(idle)} will change nothing.")
    return said


def _of_routing(args: Args) -> list[str]:
    """The flags that only routing uses and that were given: their values are not the preset's."""
    preset = PRESETS[args.preset]("")
    return [
        f"--{name.replace('_', '-')}"
        for part, names in _OF_ROUTING.items()
        for name in names
        if getattr(getattr(args, part), name) != getattr(getattr(preset, part), name)
    ]


def _name(config: RunConfig) -> str:
    source = Path(config.source).stem
    kind = "routed" if config.network.routed else "static"
    return f"{source}-{config.network.arch}-{kind}-seed{config.seed}"
