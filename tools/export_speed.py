"""Time exported files in plain ONNX Runtime and in OpenVINO, without codinet's engines.

    python -m tools.export_speed zoo:cifar10-resnet110-056 --data-root DATA
    python -m tools.export_speed resnet50 --images 16                       # random weights and paths

Exports the static network and the routed one, with an `If` for each block (`routed`) and, for a run that has them, with
its usual decisions (`usual`). `--skip-rates` adds routed files whose routers are shifted to skip or to run every block:
what branches and routers cost by themselves. Files of one runtime take turns on a few images at a time. Times are CPU
time of the process, which other work disturbs less than elapsed time. A speed-up is the median over turns of the static
file's time divided by the routed file's, on the same images.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
import tyro

from codinet.bench import settle, with_run_rate
from codinet.bench.by_name import create_untrained
from codinet.commands.export import usual_of
from codinet.config import DATA_ROOT
from codinet.cost import block_costs
from codinet.engines.onnx import ExportInfo, export
from codinet.engines.onnx.openvino_runtime import keep_signal_stack
from codinet.environment import commit
from codinet.model import RoutedNetwork
from codinet.runs import open_run

COLUMNS = ("runtime", "file", "MB", "ms", "× by MACs", "× in time", "realised", "same paths", "logits differ by")
Call = Callable[[np.ndarray], list[np.ndarray]]
Decisions = list[int | None]


class Subject(NamedTuple):
    """A network, normalised images, and the usual decisions of its file."""

    model: RoutedNetwork
    images_TCHW: torch.Tensor
    usual: Decisions | None


def find_subject(network: str, images: int, run_rate: float, data_root: Path) -> Subject:
    """A run or zoo:NAME with its test images; otherwise an untrained network with random images and paths."""
    if network.startswith("zoo:") or Path(network).is_dir():
        run = open_run(network)
        model = run.load_model().eval()
        usual = usual_of(run, model, 0.5)
        return Subject(model, run.test_images(data_root, images), None if usual is None else [*usual])
    torch.manual_seed(0)
    untrained, shape, _ = create_untrained(network)
    images_TCHW = torch.randn(images, *shape) + torch.randn(images, 3, 1, 1)
    return Subject(with_run_rate(settle(untrained, images_TCHW[:64]), images_TCHW, run_rate), images_TCHW, None)


def onnxruntime_call(file: Path, threads: int) -> Call:
    """The file in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"images": image})


def openvino_call(file: Path, threads: int) -> Call:
    """The file in OpenVINO."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    with keep_signal_stack():
        request = openvino.compile_model(file, "CPU", settings).create_infer_request()
    return lambda image: [*request.infer({"images": image}).values()]


def write_files(subject: Subject, folder: Path, *, skip_rates: bool) -> dict[str, tuple[Path, RoutedNetwork]]:
    """Export each file; returns it with the network that it holds."""
    model, images_TCHW, usual = subject
    channels, height, width = images_TCHW.shape[1:]
    with torch.no_grad():
        classes = model(images_TCHW[:1]).logits_BK.shape[1]
    data = ExportInfo([str(k) for k in range(classes)], [0.0] * channels, [1.0] * channels, (channels, height, width))
    wanted: dict[str, tuple[RoutedNetwork, dict[str, Any]]] = {
        "static": (model, {"kind": "static"}),
        "routed": (model, {}),
    }
    if usual is not None:
        wanted["usual"] = model, {"usual": usual}
    if skip_rates:
        for name, rate in (("all skipped", 0.0), ("all run", 1.0)):
            wanted[name] = with_run_rate(model, images_TCHW[:4], rate), {}
    files = {}
    for name, (network, options) in wanted.items():
        files[name] = folder / f"{name}.onnx", network
        export(network, files[name][0], data, **options)
    return files


def measure(
    files: dict[str, tuple[Path, RoutedNetwork]],
    make: Callable[[Path, int], Call],
    images_TCHW: torch.Tensor,
    *,
    threads: int,
    turn: int,
    rounds: int,
) -> list[list[str]]:
    """Time the files in one runtime: rows of the table, from `file` on."""
    channels, height, width = images_TCHW.shape[1:]
    calls = {name: make(file, threads) for name, (file, _) in files.items()}
    images = [image[None] for image in images_TCHW.numpy()]
    rows: dict[str, tuple[str, float, str, str]] = {}
    for name, (file, model) in files.items():
        table = block_costs(model, (channels, height, width))
        answers = [calls[name](image) for image in images]
        megabytes = f"{file.stat().st_size / 1e6:.1f}"
        if name == "static":
            rows[name] = megabytes, 1.0, "–", "–"
            continue
        with torch.no_grad():
            reference = [model(part) for part in images_TCHW.split(16)]
        path_TN, logits_TK = (torch.cat([one[k] for one in reference]).numpy() for k in (2, 0))
        same = [np.array_equal(answer[2][0], path) for answer, path in zip(answers, path_TN, strict=True)]
        worst = max(float(np.abs(answer[0][0] - one).max()) for answer, one in zip(answers, logits_TK, strict=True))
        macs = table.static_macs / table.path_macs(torch.from_numpy(path_TN)).mean().item()
        rows[name] = megabytes, macs, f"{sum(same)} of {len(same)}", f"{worst:.0e}"
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for number in range(rounds * len(images) // turn):
        for name in order:
            start = process_time()
            for k in range(number * turn, (number + 1) * turn):
                calls[name](images[k % len(images)])
            times[name].append((process_time() - start) / turn)
        order = order[1:] + order[:1]
    told = []
    for name, (megabytes, macs, same_paths, difference) in rows.items():
        speedup = median(one / own for one, own in zip(times["static"], times[name], strict=True))
        figures = [f"{1e3 * median(times[name]):.2f}", f"{macs:.2f}", f"{speedup:.2f}", f"{speedup / macs:.2f}"]
        told.append([name, megabytes, *figures, same_paths, difference])
    return told


def main(
    network: tyro.conf.Positional[str],
    images: int = 300,
    rounds: int = 1,
    turn: int = 10,
    threads: int = 1,
    run_rate: float = 0.5,
    skip_rates: bool = False,
    data_root: Path = DATA_ROOT,
) -> None:
    """Print a table in Markdown.

    Args:
        network: Run folder, zoo:NAME, or a network by name.
        images: Images, each with its own path.
        rounds: How often each file classifies all images.
        turn: Images that a file classifies before it is the next one's turn.
        threads: Threads of the runtime.
        run_rate: Fraction of the images that run each block of a network by name.
        skip_rates: Also measure files that skip all blocks and that run all blocks.
        data_root: Folder that contains the data sets.
    """
    torch.set_num_threads(threads)
    runtimes = {"ONNX Runtime": onnxruntime_call}
    versions = f"torch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}"
    if importlib.util.find_spec("openvino") is not None:
        import openvino

        runtimes["OpenVINO"] = openvino_call
        versions += f", OpenVINO {openvino.__version__.split('-')[0]}"
    subject = find_subject(network, images, run_rate, data_root)
    print(f"{network}, {images} images, {rounds} rounds, {threads} threads, {versions}, commit {commit()}\n")
    for cells in (COLUMNS, ["---"] * len(COLUMNS)):
        print("| " + " | ".join(cells) + " |")
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(subject, Path(folder), skip_rates=skip_rates)
        for runtime, make in runtimes.items():
            rows = measure(files, make, subject.images_TCHW, threads=threads, turn=turn, rounds=rounds)
            for row in rows:
                print("| " + " | ".join([runtime, *row]) + " |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
