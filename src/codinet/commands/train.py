"""`codinet train`: train a network, or go on with a run that was stopped."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from codinet.commands.shared import figures, print_json, print_table
from codinet.config import DataConfig, LossConfig, NetworkConfig, RunConfig, ScheduleConfig, resolve
from codinet.data import DATA_ROOT, load
from codinet.environment import pick_device
from codinet.errors import unknown
from codinet.presets import PRESETS
from codinet.train import train
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
    preset: str = "paper"
    """Named recipe whose values the other flags replace: paper, quick, demo."""
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
    json: bool = False
    """Print the result as one JSON document."""


def defaults(words: list[str]) -> Args:
    """The flags' defaults: those of the preset and of the device that are named among the words."""
    name = _value("--preset", words) or "paper"
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    preset = PRESETS[name]("")
    fast = pick_device(_value("--device", words)).type == "cuda"
    return Args(
        source=tyro.MISSING,
        data=preset.data,
        network=preset.network,
        losses=preset.losses,
        schedule=preset.schedule,
        preset=name,
        compile=fast,
        amp=fast,
    )


def _value(flag: str, words: list[str]) -> str | None:
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def run(args: Args) -> None:
    device = pick_device(args.device)
    config = resolve(
        RunConfig(args.source, args.data, args.network, args.losses, args.schedule, args.seed),
        gpu=device.type == "cuda",
    )
    dataset = load(args.source, args.data_root, image_size=config.data.image_size)
    folder, evaluation = train(
        args.out or Path("runs") / _name(config),
        config,
        dataset,
        device=device,
        resume=args.resume,
        compile=args.compile,
        amp=args.amp,
        reporter=Console(),
    )
    if args.json:
        print_json({"run": str(folder.path), **evaluation.summary()})
    else:
        print_table(f"{folder.path} on the {evaluation.n} test images", ["", ""], figures(evaluation.summary()))


def _name(config: RunConfig) -> str:
    source = Path(config.source).stem
    kind = "routed" if config.network.routed else "static"
    return f"{source}-{config.network.arch}-{kind}-seed{config.seed}"
