"""`codinet bench`: speed of every engine against the static net, next to what the multiply-adds promise.

With --train, the speed of training instead; see `codinet.bench.training`.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import tyro

from codinet.backbones import ARCHITECTURES
from codinet.bench import ENGINES, compare, settle, with_run_rate
from codinet.bench.contest import PRECISIONS
from codinet.bench.training import TrainSetting, measure_training, pick_modes
from codinet.commands.bench_training import print_training
from codinet.commands.shared import flag_value, note, print_json, require_probability
from codinet.commands.tables import print_table
from codinet.config import seed_rule
from codinet.data import DATA_ROOT
from codinet.environment import describe, is_out_of_memory, pick_device
from codinet.errors import UserError, unknown
from codinet.model import CoDiNet, create_model
from codinet.runs import ZOO, RunFolder
from codinet.zoo.open_run import open_run


@dataclass(frozen=True)
class Args:
    network: tyro.conf.Positional[str]
    """Run folder of `codinet train`, zoo:NAME, or a network by name (see `codinet models`)."""
    run_rate: float | None = None
    """Share of the images that run each block: paths are drawn at this rate. Default: a run's own paths on its test
    images, or their rate where its data is missing; 0.5 for a network by name."""
    batch: tuple[int, ...] = ()
    """Images at a time. Default: 1 and 64; in training 32 on a CPU and 512 on a GPU."""
    threads: int = 1
    """CPU threads."""
    engines: tuple[str, ...] = ()
    """Some of masked, branch, gather, graph, onnx, onnx-masked. Default: those for the batch size and device."""
    router: str = "fc"
    """Router of a network by name: fc, cnn, rnn."""
    rounds: int = 20
    """Number of times that every engine answers all images, or that every network takes its training steps."""
    images: int = 16
    """Images (at least one batch of them) that a round answers."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this."""
    compiled: bool = False
    """Also measure the static net through torch.compile, which takes a minute to compile. Default: on CUDA."""
    precision: str = "float32"
    """What torch's engines and static nets compute in: float32, bfloat16, float16; the last two on a GPU."""
    plot: Path | None = None
    """Picture to write; needs matplotlib."""
    seed: int = 0
    """Seed of untrained weights and of random images."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str = "cpu"
    """cpu, cuda, mps."""
    train: bool = False
    """Measure training steps of a network by name instead of inference."""
    views: int = 2
    """With --train: augmentations of each image in a step."""
    modes: tuple[str, ...] = ()
    """With --train: some of eager, compiled, graph, kernels. Default: all on CUDA, eager elsewhere."""
    amp: bool = False
    """With --train: compute in bfloat16, losses in float32. Default: on CUDA."""
    json: bool = False
    """Print one JSON document."""


def defaults(words: list[str]) -> Args:
    """The defaults of the flags; some depend on the device among the words."""
    gpu = (flag_value("--device", words) or "").startswith("cuda")
    return Args(network=tyro.MISSING, amp=gpu, compiled=gpu)


def run(args: Args) -> None:
    if args.train:
        _refuse(args, _INFERENCE_FLAGS, "is about inference, and --train is not; leave one of them out")
        if args.views < 2:
            raise UserError(f"--views must be 2 or more with --train, got {args.views}; consistency compares views.")
    else:
        _refuse(args, _TRAINING_FLAGS, "is about training; add --train, or leave it out")
        args = replace(args, batch=args.batch or (1, 64))
    _check(args)
    device = pick_device(args.device)
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        rows = _training_rows(args, device) if args.train else _rows(args, device)
        environment = describe(device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise UserError(f"The memory of {device} is too small for this bench; use a smaller --batch.") from error
        raise
    finally:
        torch.set_num_threads(before)
    if args.json:
        print_json({"rows": rows, "environment": environment})
    elif args.train:
        print_training(f"training on {device.type}, {args.threads} threads", rows)
    else:
        _print(f"{args.network} on {device.type}, {args.threads} threads, {args.precision}", rows)
    if args.plot is not None:  # last, so that a failure does not lose the figures
        from codinet.bench.picture import draw

        draw(rows, args.plot, f"{args.network}, {args.threads} threads, {device.type}")


def _check(args: Args) -> None:
    if args.run_rate is not None and not 0 <= args.run_rate <= 1:
        raise UserError(f"--run-rate must be a number from 0 to 1, got {args.run_rate:g}.")
    require_probability("threshold", args.threshold)
    for flag, value in (("threads", args.threads), ("rounds", args.rounds), ("images", args.images)):
        if value < 1:
            raise UserError(f"--{flag} must be 1 or more, got {value}.")
    if args.threads > _MOST_THREADS:  # the system could not start them, and the process would be ended
        raise UserError(f"--threads must be at most {_MOST_THREADS}, got {args.threads}.")
    possible, sentence = seed_rule(args.seed)
    if not possible:
        raise UserError(sentence)
    if args.batch and min(args.batch) < 1:
        raise UserError(f"--batch must be 1 or more, got {min(args.batch)}.")
    for name in args.engines:
        if name not in ENGINES:
            raise unknown("engine", name, ENGINES)
    if args.precision not in PRECISIONS:
        raise unknown("precision", args.precision, PRECISIONS)


_MOST_THREADS = 1024
_INFERENCE_FLAGS = ("run_rate", "engines", "images", "threshold", "compiled", "precision", "plot")
_TRAINING_FLAGS = ("views", "modes", "amp")


def _refuse(args: Args, names: tuple[str, ...], why: str) -> None:
    """A `UserError` if one of these flags does not have its default, here or on the device."""
    usual = defaults(["--device", args.device])
    for entry in fields(Args):
        if entry.name in names and getattr(args, entry.name) not in (entry.default, getattr(usual, entry.name)):
            raise UserError(f"--{entry.name.replace('_', '-')} {why}.")


def _training_rows(args: Args, device: torch.device) -> list[dict[str, Any]]:
    if args.network not in ARCHITECTURES:
        raise unknown("network", args.network, ARCHITECTURES)
    gpu = device.type == "cuda"
    modes = pick_modes(args.modes, device)
    rows = []
    for images in args.batch or ((512,) if gpu else (32,)):
        setting = TrainSetting(args.network, images, args.views, device, args.amp, args.router, args.seed)
        # A step on a GPU is too short to be timed alone, because the host has to run ahead.
        rows += measure_training(setting, modes, rounds=args.rounds, steps=10 if gpu else 1)
    return rows


def _rows(args: Args, device: torch.device) -> list[dict[str, Any]]:
    if args.precision != "float32" and device.type == "cpu":
        raise UserError(f"--precision {args.precision} is for GPUs; a CPU is measured in float32.")
    model, images_TCHW = _network(args, device)
    rows = []
    for batch in args.batch:
        rows += compare(
            model,
            images_TCHW[: max(args.images // batch, 1) * batch],
            batch=batch,
            engines=args.engines,
            threshold=args.threshold,
            compiled=args.compiled,
            precision=args.precision,
            rounds=args.rounds,
        )
    return rows


def _network(args: Args, device: torch.device) -> tuple[CoDiNet, torch.Tensor]:
    """The network and enough images for the largest batch; an untrained network is made to route at the given rate."""
    number = max(args.images, *args.batch)
    path = Path(args.network)
    if args.network in ARCHITECTURES and not path.is_dir():
        torch.manual_seed(args.seed)
        size = ARCHITECTURES[args.network].image_size
        model = create_model(args.network, num_classes=10 if size == 32 else 1000, router=args.router).to(device)
        images_TCHW = (torch.randn(number, 3, size, size) + torch.randn(number, 3, 1, 1)).to(device)
        settled = settle(model, images_TCHW[:64])
        rate: float | list[float] = 0.5 if args.run_rate is None else args.run_rate
    elif path.is_dir() or args.network.startswith(ZOO):
        _refuse(args, ("router",), "is for networks by name, and a run has routers of its own; leave it out")
        folder = open_run(args.network)
        settled = folder.load_model().to(device)
        if settled.routers is None and args.run_rate is not None:
            raise UserError(f"--run-rate is for routed networks, and {args.network} is static; leave it out.")
        images_TCHW, own_rates = _images(folder, args, number)
        images_TCHW = images_TCHW.to(device)
        wished = own_rates if args.run_rate is None else args.run_rate
        if wished is None or settled.routers is None:  # without its data, a static run has rates too
            return settled, images_TCHW
        rate = wished
    else:
        raise unknown("network or run folder", args.network, ARCHITECTURES)
    made = with_run_rate(settled, images_TCHW, rate)
    assert isinstance(made, CoDiNet)
    return made, images_TCHW


def _images(folder: RunFolder, args: Args, number: int) -> tuple[torch.Tensor, list[float] | None]:
    """Test images, which take their own paths; without the data, random images and the run rate of each block."""
    try:
        images_TCHW = folder.test_images(args.data_root, number)
    except UserError as error:
        rates = _own_rates(folder)
        note(
            f"measured on random images with paths drawn at the run's own rates (mean {fmean(rates):.2f}), because its "
            f"data is missing: {error}"
        )
        random = torch.Generator().manual_seed(args.seed)
        return torch.randn(number, *folder.data.image_shape, generator=random), rates
    # Images are repeated where the test set is smaller than the batch.
    return images_TCHW[torch.arange(number) % len(images_TCHW)], None


def _own_rates(folder: RunFolder) -> list[float]:
    """The run rate of each block; without a path table, the mean for all."""
    try:
        return [float(rate) for rate in folder.load_paths().path_TN.double().mean(dim=0)]
    except UserError:
        blocks = ARCHITECTURES[folder.config.network.arch].blocks
        return [folder.load_evaluation()["mean_blocks"] / blocks] * blocks


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    headings = [
        "engine",
        "p50\nms",
        "p95\nms",
        "images\na second",
        "peak\nMB",
        "×, by\nMACs",
        "×, in\ntime",
        "realised",
    ]
    for batch in dict.fromkeys(row["batch"] for row in rows):
        cells = [
            [
                row["engine"],
                f"{row['p50_ms']:.1f}",
                f"{row['p95_ms']:.1f}",
                f"{row['images_per_s']:.0f}",
                "–" if row["peak_mb"] is None else f"{row['peak_mb']:.1f}",
                f"{row['mac_speedup']:.2f}",
                f"{row['speedup']:.2f}",
                f"{row['realised']:.2f}",
            ]
            for row in rows
            if row["batch"] == batch
        ]
        print_table(f"{title}, batch {batch}", headings, cells)
