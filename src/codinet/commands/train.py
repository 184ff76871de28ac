"""`codinet train`: train a network, or go on with a run that was stopped.

Under torchrun every process comes through here with the same words, and the first one speaks for all.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro

from codinet.commands.shared import figures, flag_value, print_json, print_table
from codinet.config import DataConfig, ExtraConfig, LossConfig, NetworkConfig, RunConfig, ScheduleConfig, resolve
from codinet.data import DATA_ROOT, Dataset, load
from codinet.data.placing import Loader
from codinet.errors import unknown
from codinet.presets import PRESETS, as_static
from codinet.train import distributed, train
from codinet.train.reporting import Console


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
    """Go on with the run in --out (the same flags as when it was begun), or start it if there is none."""
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
    """Where training images wait: on the device, outside it with workers that bring them, or by the room there is."""
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
    with distributed.joined(device) as world:
        _train(args, device, world)


def _train(args: Args, device: torch.device, world: distributed.World) -> None:
    config, dataset = world.each(lambda: _read(args, device))
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


def _read(args: Args, device: torch.device) -> tuple[RunConfig, Dataset]:
    config = resolve(
        RunConfig(args.source, args.data, args.network, args.losses, args.schedule, args.seed, args.extra),
        gpu=device.type == "cuda",
    )
    return config, load(args.source, args.data_root, image_size=config.data.image_size)


def _name(config: RunConfig) -> str:
    source = Path(config.source).stem
    kind = "routed" if config.network.routed else "static"
    return f"{source}-{config.network.arch}-{kind}-seed{config.seed}"
