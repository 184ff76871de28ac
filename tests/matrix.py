"""Every command on networks of timm and torchvision: `python -m tests.matrix` plays all of them and prints a table.

`make test` plays two (`test_matrix.py`); `make matrix` plays all, which takes minutes. One network is trained for a few
steps to a budget, opened in a new process, evaluated, asked for predictions, reported, timed, exported, and its ONNX
file is compared with it.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from codinet import cli, open_run
from codinet.model import RoutedNetwork
from codinet.relaxation import hard, run_probability

NETWORKS = {  # the side of the images that it is tried on
    "timm:resnet18": 64,
    "timm:convnext_atto": 64,
    "timm:vit_tiny_patch16_224": 64,
    "timm:mobilenetv3_small_100": 64,
    "timm:swin_tiny_patch4_window7_224": 64,
    "timm:efficientnet_lite0": 64,
    "torchvision:resnet50": 64,
    "torchvision:swin_t": 64,
}
QUANTILES = (0.25, 0.5, 0.75)  # of the run probabilities: the thresholds at which the ONNX file is compared
IMAGES = 32  # that the ONNX file is compared on
TOLERANCE = 1e-4  # of logits
_REOPEN = """
import sys, torch
from codinet import open_run
for folder in sys.argv[1:]:
    images, logits = torch.load(f"{folder}/answers.pt", weights_only=True)
    with torch.inference_mode():
        assert torch.equal(open_run(f"{folder}/run").load_model()(images).logits_BK, logits), folder
"""


class Row(NamedTuple):
    """What was seen of one network."""

    arch: str
    blocks: int
    cost_share: float
    paths: int  # that the ONNX file was compared on
    worst: float  # difference of logits between ONNX Runtime and torch


def play(arch: str, side: int, folder: Path) -> Row:
    """Play all commands on one network, in a folder of its own. A step that goes wrong raises AssertionError.

    Leaves the run and its answers for `require_same_answers`.
    """
    photos, run = draw_photos(folder / "photos", side), folder / "run"
    flags = ["--arch", arch, "--image-size", str(side), "--crop", "1", "--budget", "0.7", "--epochs", "2"]
    flags += ["--finetune", "1", "--batch", "8", "--warmup", "0", "--device", "cpu", "--out", str(run), "--json"]
    trained = command("train", str(photos), *flags)
    images_BCHW = torch.randn(IMAGES, 3, side, side, generator=torch.Generator().manual_seed(0))
    model = open_run(run).load_model()
    torch.save((images_BCHW, model(images_BCHW).logits_BK), folder / "answers.pt")
    assert command("eval", str(run), "--json")["accuracy"] == trained["accuracy"]
    answer = command("predict", str(run), str(next(photos.glob("*/*.jpg"))), "--json")
    assert len(answer["predictions"][0]["path"]) == len(model.blocks)
    command("report", str(run), "--out", str(folder / "report"), "--device", "cpu")
    assert (folder / "report" / "index.html").exists()
    timed = command("bench", str(run), "--batch", "1", "2", "--rounds", "1", "--images", "2", "--json")
    assert timed
    paths, worst = compare_onnx(run, images_BCHW, folder / "network.onnx")
    return Row(arch, len(model.blocks), trained["cost_share"], paths, worst)


def draw_photos(folder: Path, side: int) -> Path:
    """Three classes of coloured noise, which a network tells apart by the colour."""
    generator = torch.Generator().manual_seed(1)
    for label in range(3):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(14):
            noise_HWC = torch.randint(0, 128, (side, side, 3), generator=generator, dtype=torch.uint8)
            noise_HWC[..., label] += 100
            Image.fromarray(noise_HWC.numpy()).save(folder / f"class{label}" / f"{number:02d}.jpg")
    return folder


def command(*words: str) -> Any:
    """Run a command in this process; its JSON, if it prints some."""
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        code = cli.main(list(words))
    assert code == 0, f"codinet {' '.join(words)}: exit code {code}: {complaints.getvalue()[-2000:]}"
    return json.loads(printed.getvalue()) if "--json" in words else None


def require_same_answers(*folders: Path) -> None:
    """A new process builds the networks of `play` from config and safetensors, and gets the same logits."""
    words = [sys.executable, "-c", _REOPEN, *map(str, folders)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def compare_onnx(run: Path, images_BCHW: torch.Tensor, file: Path) -> tuple[int, float]:
    """Export, and compare at several thresholds; the number of distinct paths, and the worst difference of logits."""
    from codinet.engines.onnx import OnnxEngine

    command("export", str(run), "--out", str(file), "--json")
    engine, model = OnnxEngine(file, threads=1), open_run(run).load_model()
    seen: set[tuple[int, ...]] = set()
    worst = 0.0
    for threshold in thresholds(model, images_BCHW):
        with torch.inference_mode():
            expected = model(images_BCHW, decide=partial(hard, threshold=threshold))
        output = engine(images_BCHW, threshold=threshold)
        assert torch.equal(output.path_BN, expected.path_BN), f"paths differ at {threshold}"
        worst = max(worst, (output.logits_BK - expected.logits_BK).abs().max().item())
        seen |= set(map(tuple, expected.path_BN.int().tolist()))
    assert worst <= TOLERANCE, f"logits differ by {worst:.2g}"
    return len(seen), worst


@torch.inference_mode()
def thresholds(model: RoutedNetwork, images_BCHW: torch.Tensor) -> list[float]:
    """Thresholds at which images take many paths. Each is in the middle between two run probabilities."""
    ordered = run_probability(model(images_BCHW).scores_BN2).flatten().sort().values
    places = [int(quantile * len(ordered)) for quantile in QUANTILES]
    return [float(ordered[place - 1 : place + 1].mean()) for place in places]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose names contain this")
    chosen = {arch: side for arch, side in NETWORKS.items() if parser.parse_args().only in arch}
    torch.set_num_threads(1)
    print("| network | routed blocks | cost share | paths compared | worst difference of logits |")
    print("|---|---:|---:|---:|---:|")
    for arch, side in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            row = play(arch, side, Path(folder))
            require_same_answers(Path(folder))
        figures = f"{row.cost_share:.3f} | {row.paths} | {row.worst:.1e}"
        print(f"| `{row.arch}` | {row.blocks} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
