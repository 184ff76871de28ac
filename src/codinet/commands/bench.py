"""`codinet bench`: the speed of every engine against the static network, or with --train the speed of training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import tyro

from codinet.commands.printing import counted, note, print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError, unknown
from codinet.flags import require_probability
from codinet.resolving import require_seed

if TYPE_CHECKING:
    import torch

    from codinet.bench.engine_speed import Progress
    from codinet.engines.onnx.network_graph import Usual
    from codinet.model import RoutedNetwork
    from codinet.run_reader import RunReader

_MAX_THREADS = 1024
_NAME = 100  # characters of a kernel's name that are printed
_INFERENCE_FLAGS = ("run_rate", "engines", "images", "threshold", "compiled", "precision", "plot")
_TRAINING_FLAGS = ("views", "modes", "amp", "torchvision", "profile")


@dataclass(frozen=True)
class Args:
    network: tyro.conf.Positional[str]
    """Run folder of `codinet train`, zoo:NAME, or a network by name (see `codinet models`), also timm:NAME and
    torchvision:NAME."""
    run_rate: float | None = None
    """Fraction of the images that run each block, by shifting the routers. Default: a run's own paths on its test
    images, or its own rates if the data is missing; 0.5 for a network by name."""
    batch: tuple[int, ...] = ()
    """Images at a time. Default: 1 and 64; with --train 32 on a CPU and 512 on a GPU."""
    threads: int = 1
    """CPU threads."""
    engines: tuple[str, ...] = ()
    """Some of masked, branch, gather, graph, switch, onnx, onnx-masked, onnx-file (the exported file in plain ONNX
    Runtime), openvino (the same file). Default: those for the batch size and device."""
    router: str = "fc"
    """Router of a network by name: fc, cnn, rnn."""
    image_size: int | None = None
    """Side length in pixels of the images of a network by name. Default: the size it was published for."""
    rounds: int = 20
    """How often every engine processes all images, or every network takes its training steps."""
    images: int = 16
    """Images per round; at least one batch."""
    threshold: float = 0.5
    """A block runs if the router's run probability is at least this."""
    compiled: tyro.conf.DisallowNone[bool | None] = None
    """Also time the static network through torch.compile, which takes a minute to compile. Default: on CUDA."""
    precision: str = "float32"
    """Precision of torch's engines and static networks: float32, or on a GPU bfloat16, float16."""
    plot: Path | None = None
    """Image file of a figure to write; needs matplotlib."""
    seed: int = 0
    """Seed of untrained weights and of random images."""
    data_root: Path = DATA_ROOT
    """Folder that contains the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: cpu; with --train the best available, as for `codinet train`."""
    train: bool = False
    """Time training steps of a network by name instead of inference."""
    views: int = 2
    """With --train: augmentations of each image in a step."""
    modes: tuple[str, ...] = ()
    """With --train: some of eager, compiled, graph, kernels. Default: all on CUDA, eager elsewhere."""
    amp: tyro.conf.DisallowNone[bool | None] = None
    """With --train: compute in bfloat16, losses in float32. Default: on CUDA."""
    torchvision: tyro.conf.DisallowNone[bool | None] = None
    """With --train: also time a plain, compiled loop of torchvision's network, for resnet50 and resnet101. Default: on
    CUDA."""
    profile: bool = False
    """With --train: also list the kernels, or on a CPU the operators, that take the longest in a step."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:

    from codinet.environment import describe, is_out_of_memory, pick_device, torch_threads

    if args.train:
        _reject_flags(args, _INFERENCE_FLAGS, "applies to inference; remove it or --train")
        if args.views < 2:
            raise UserError(f"--views must be 2 or more with --train, got {args.views}; consistency compares views.")
    else:
        _reject_flags(args, _TRAINING_FLAGS, "applies to training; add --train or remove it")
        args = replace(args, batch=args.batch or (1, 64))
    _check(args)
    device = pick_device(args.device if args.device is not None or args.train else "cpu")
    rows: list[dict[str, Any]] = []
    try:
        with torch_threads(args.threads):
            if args.train:
                # A table after each batch size, because the next one may take minutes.
                for group in _training_rows(args, device):
                    rows += group
                    if not args.json:
                        _print_training(f"training on {device.type}, {args.threads} threads", group)
            else:
                with _progress_bar() as progress:
                    rows = _inference_rows(args, device, progress)
            environment = describe(device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise UserError(f"{device} has too little memory for this benchmark; use a smaller --batch.") from error
        raise
    if args.json:
        subject = {} if args.train else {"network": args.network, "run_rate": args.run_rate}
        print_json({**subject, "rows": rows, "environment": environment})
    elif not args.train:
        _print_inference(f"{args.network} on {device.type}, {args.threads} threads, {args.precision}", rows)
    if args.plot is not None:  # last, so that a failure does not lose the numbers
        from codinet.bench.bench_figures import write_speedups

        write_speedups(rows, args.plot, f"{args.network}, {args.threads} threads, {device.type}")


def _reject_flags(args: Args, names: tuple[str, ...], why: str) -> None:
    for entry in fields(Args):
        if entry.name in names and getattr(args, entry.name) != entry.default:
            raise UserError(f"--{entry.name.replace('_', '-')} {why}.")


def _check(args: Args) -> None:
    from codinet.bench.engine_speed import ENGINES, PRECISIONS

    if args.run_rate is not None:
        require_probability("run-rate", args.run_rate)
    require_probability("threshold", args.threshold)
    for flag, value in (("threads", args.threads), ("rounds", args.rounds), ("images", args.images)):
        if value < 1:
            raise UserError(f"--{flag} must be 1 or more, got {value}.")
    if args.threads > _MAX_THREADS:  # the system could not start them and would end the process
        raise UserError(f"--threads must be at most {_MAX_THREADS}, got {args.threads}.")
    require_seed(args.seed)
    if args.batch and min(args.batch) < 1:
        raise UserError(f"--batch must be 1 or more, got {min(args.batch)}.")
    for name in args.engines:
        if name not in ENGINES:
            raise unknown("engine", name, ENGINES)
    if args.precision not in PRECISIONS:
        raise unknown("precision", args.precision, PRECISIONS)


@contextmanager
def _progress_bar() -> Iterator["Progress"]:
    """A bar on stderr, shown in a terminal only and removed at the end.

    It is redrawn between measurements: a thread that redraws it would disturb them.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=hidden) as bar:
        task = bar.add_task("preparing", total=1.0)
        bar.refresh()
        yield lambda name, done: bar.update(task, description=name, completed=done, refresh=True)


def _part(progress: "Progress", name: str, number: int, parts: int) -> "Progress":
    """The progress of one of several measurements."""
    return lambda step, done: progress(f"{name}, {step}", (number + done) / parts)


# Training


def _training_rows(args: Args, device: "torch.device") -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each batch size as soon as it is measured."""
    from codinet.bench.by_name import published_input
    from codinet.bench.training_speed import TrainSetting, measure_training, pick_modes
    from codinet.specs import require_arch

    require_arch(args.network)
    gpu = device.type == "cuda"
    modes = pick_modes(args.modes, device)
    torchvision = _with_torchvision(args, gpu=gpu)
    batches = args.batch or ((512,) if gpu else (32,))
    shape, _ = published_input(args.network, args.image_size)
    for images in batches:
        amp = gpu if args.amp is None else args.amp
        setting = TrainSetting(args.network, images, args.views, device, amp, args.router, args.seed, args.image_size)
        note(
            f"{args.network} on {device.type}, {counted(args.threads, 'thread')}: steps of {images} images in "
            f"{args.views} views, {shape[1]}×{shape[2]}, {', '.join(modes)}"
        )
        with _progress_bar() as progress:
            # A step on a GPU is too short to be timed alone, because the host must run ahead.
            rows = measure_training(
                setting,
                modes,
                rounds=args.rounds,
                steps=10 if gpu else 1,
                torchvision=torchvision,
                profile=args.profile,
                progress=_part(progress, f"batch {images}", 0, 1),
                found=note,
            )
        yield rows


def _with_torchvision(args: Args, *, gpu: bool) -> bool:
    """Whether to time torchvision's loop; a note says if that was wanted and is not possible."""
    from codinet.adopt import import_vision
    from codinet.bench.plain_loop import NETWORKS
    from codinet.bench.training_speed import require_torchvision_has

    if args.torchvision:
        require_torchvision_has(args.network)
    wanted = gpu and args.network in NETWORKS if args.torchvision is None else args.torchvision
    if not wanted:
        return False
    try:
        import_vision("torchvision")
    except UserError as error:
        note(f"torchvision's loop is left out: {error}")
        return False
    return True


def _print_training(title: str, rows: list[dict[str, Any]]) -> None:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "net": lambda row: row["network"],
        "mode": lambda row: row["mode"],
        "inputs\nper second": lambda row: f"{row['inputs_per_s']:.0f}",
        "ms\nper step": lambda row: f"{row['ms_per_step']:.1f}",
        "peak\nMB": lambda row: _or_dash(row["peak_mb"], ".0f"),
        "× static\nnet's time": lambda row: _or_dash(row["against_static"], ".2f"),
        "× eager\ntime": lambda row: _or_dash(row["against_eager"], ".2f"),
    }
    if any(row["network"] == "torchvision" for row in rows):
        columns["× torchvision's\nspeed"] = lambda row: _or_dash(row["speed_against_torchvision"], ".2f")
    profiled = [row for row in rows if row["longest"]]
    if profiled:
        columns["in\nconvs"] = lambda row: _or_dash(row["conv_share"], ".0%")
    subject = f"{rows[0]['arch']}, {title}, {rows[0]['precision']}, {rows[0]['inputs_per_step']} inputs per step"
    print_table(subject, list(columns), [[cell(row) for cell in columns.values()] for row in rows])
    for row in profiled:
        lines = [[one["name"][:_NAME], f"{one['ms']:.3f}"] for one in row["longest"]]
        print_table(f"Longest in a step: {row['network']}, {row['mode']}", ["kernel or operator", "ms"], lines)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


# Inference


def _inference_rows(args: Args, device: "torch.device", progress: "Progress") -> list[dict[str, Any]]:
    from codinet.bench import compare

    if args.precision != "float32" and device.type == "cpu":
        raise UserError(f"--precision must be float32 on a CPU, got {args.precision}.")
    model, images_TCHW = _network_and_images(args, device)
    usual = _usual(args, model)
    rows = []
    for number, batch in enumerate(args.batch):
        rows += compare(
            model,
            images_TCHW[: max(args.images // batch, 1) * batch],
            batch=batch,
            engines=args.engines,
            threshold=args.threshold,
            compiled=device.type == "cuda" if args.compiled is None else args.compiled,
            precision=args.precision,
            usual=usual,
            rounds=args.rounds,
            progress=_part(progress, f"batch {batch}", number, len(args.batch)),
        )
    return rows


def _network_and_images(args: Args, device: "torch.device") -> tuple["RoutedNetwork", "torch.Tensor"]:
    """The network, and enough images for the largest batch. An untrained network is made to route at the given rate."""
    import torch

    from codinet.backbones import ARCHITECTURES
    from codinet.bench import settle, with_run_rate
    from codinet.bench.by_name import create_untrained
    from codinet.runs import open_run
    from codinet.zoo.shelf import ZOO

    number = max(args.images, *args.batch)
    path = Path(args.network)
    rate: float | list[float] | None
    if _is_named(args.network):
        torch.manual_seed(args.seed)
        untrained, shape, _ = create_untrained(args.network, router=args.router, image_size=args.image_size)
        images_TCHW = (torch.randn(number, *shape) + torch.randn(number, 3, 1, 1)).to(device)
        model = settle(untrained.to(device), images_TCHW[:64])
        rate = 0.5 if args.run_rate is None else args.run_rate
    elif path.is_dir() or args.network.startswith(ZOO):
        _reject_flags(args, ("router",), "applies to networks by name; a run has its own routers, so remove it")
        _reject_flags(args, ("image_size",), "applies to networks by name; a run has its own size, so remove it")
        source = open_run(args.network)
        model = source.load_model().to(device)
        if model.routers is None and args.run_rate is not None:
            raise UserError(f"--run-rate applies to routed networks, and {args.network} is static; remove it.")
        images_TCHW, rate = _run_images(source, args, number)
        images_TCHW = images_TCHW.to(device)
        rate = rate if args.run_rate is None else args.run_rate
        if rate is None or model.routers is None:
            return model, images_TCHW
    else:
        raise unknown("network or run folder", args.network, ARCHITECTURES)
    return with_run_rate(model, images_TCHW, rate), images_TCHW


def _usual(args: Args, model: "RoutedNetwork") -> "Usual | None":
    """The usual decisions that `codinet export` would write into the file of a run."""
    from codinet.commands.export import usual_of
    from codinet.runs import open_run

    if model.routers is None or args.run_rate is not None or _is_named(args.network):
        return None
    if not {"onnx-file", "openvino"} & {*args.engines}:
        return None
    return usual_of(open_run(args.network), model, args.threshold)


def _is_named(network: str) -> bool:
    """Whether it is a network by name and not a run."""
    from codinet.backbones import ARCHITECTURES
    from codinet.zoo.shelf import ZOO

    return (network in ARCHITECTURES or ":" in network) and not network.startswith(ZOO) and not Path(network).is_dir()


def _run_images(source: "RunReader", args: Args, number: int) -> tuple["torch.Tensor", list[float] | None]:
    """Test images, which take their own paths. Without the data: random images and the run rate of each block."""
    import torch

    try:
        images_TCHW = source.test_images(args.data_root, number)
    except UserError as error:
        rates = _own_rates(source)
        note(
            f"using random images, routed at the run's own rates (mean {fmean(rates):.2f}), because its data is not "
            f"available: {error}"
        )
        generator = torch.Generator().manual_seed(args.seed)
        return torch.randn(number, *source.data.image_shape, generator=generator), rates
    return images_TCHW[torch.arange(number) % len(images_TCHW)], None  # repeated if the test set is too small


def _own_rates(source: "RunReader") -> list[float]:
    """The run rate of each block; without a path table, the mean for all blocks."""
    try:
        return [float(rate) for rate in source.load_paths().path_TN.double().mean(dim=0)]
    except UserError:
        blocks = sum(source.groups)
        return [source.load_evaluation()["mean_blocks"] / blocks] * blocks


def _print_inference(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table for each batch size."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "engine": lambda row: row["engine"],
        "p50\nms": lambda row: f"{row['p50_ms']:.1f}",
        "p95\nms": lambda row: f"{row['p95_ms']:.1f}",
        "images\nper second": lambda row: f"{row['images_per_s']:.0f}",
        "peak\nMB": lambda row: _or_dash(row["peak_mb"], ".1f"),
        "×, by\nMACs": lambda row: f"{row['mac_speedup']:.2f}",
        "×, in\ntime": lambda row: f"{row['speedup']:.2f}",
        "realised": lambda row: f"{row['realised']:.2f}",
    }
    for batch in dict.fromkeys(row["batch"] for row in rows):
        cells = [[cell(row) for cell in columns.values()] for row in rows if row["batch"] == batch]
        print_table(f"{title}, batch {batch}", list(columns), cells)
