"""What `make demo` runs: static, vanilla and CoDiNet on the embedded digits, at one budget.

Writes three run folders, a picture of which class runs which block, and a report under --out; prints a table and what
it shows. A second call shows the results of the first.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.cli import guarded, parse
from codinet.commands import report
from codinet.commands.printing import print_table
from codinet.config import RunConfig
from codinet.data import load
from codinet.environment import torch_threads
from codinet.evaluate import Evaluation
from codinet.presets import as_static, as_vanilla, demo
from codinet.report.drawing import to_png
from codinet.report.path_figures import draw_run_rates
from codinet.resolving import resolve
from codinet.train import train
from codinet.train.reporting import Console


@dataclass(frozen=True)
class Args:
    out: Path = Path("runs/demo")
    """Folder to write."""


def run(args: Args) -> int:
    return compare(args.out, demo("digits"))


def compare(out: Path, wanted: RunConfig) -> int:
    """Train the three networks, write the report and print the results.

    Args:
        out: The folder to write.
        wanted: The training of CoDiNet; the other two are its static and its vanilla form.

    Returns:
        The exit code, 0.
    """
    config = resolve(wanted)
    dataset = load(config.source, Path())
    kinds = {"static": as_static(config), "vanilla": as_vanilla(config), "codinet": config}
    # One CPU thread: images of 8×8 pixels are too small for a GPU or a second thread to help.
    device = torch.device("cpu")
    found: dict[str, Evaluation] = {}
    with torch_threads(1):
        for name, kind in kinds.items():
            _, found[name] = train(out / name, kind, dataset, device=device, resume=True, reporter=Console())
    groups = ARCHITECTURES[config.network.arch].counts
    picture = out / "paths.png"
    files.write(picture, to_png(draw_run_rates(found["codinet"].paths, dataset.classes, groups)))
    remark = explain(found)
    runs = tuple(out / name for name in kinds)
    report.run(report.Args(runs=runs, out=out / "report", device="cpu"), remark=remark)
    print_table(
        f"{dataset.name.capitalize()}, {config.network.arch}, "
        f"budget {config.losses.budget:g} of the static network's MACs",
        ["network", "accuracy, %", "share of cost", "M MACs", "blocks run", "distinct paths", "entropy, bits"],
        [
            [
                name,
                f"{result.accuracy:.2f}",
                f"{result.cost_share:.3f}",
                f"{result.macs / 1e6:.3f}",
                f"{result.mean_blocks:.2f}",
                str(result.distinct_paths),
                f"{result.path_entropy:.2f}",
            ]
            for name, result in found.items()
        ],
    )
    print(remark)
    print(f"Which class runs which block: {picture}. The report: {out / 'report' / 'index.html'}.")
    return 0


def explain(found: dict[str, Evaluation]) -> str:
    """What the demo shows, in two sentences for people who see such results for the first time."""
    codinet, vanilla = found["codinet"], found["vanilla"]
    image = 100 / len(codinet.paths.label_T)
    values = ", ".join(f"{name} {result.accuracy:.1f} %" for name, result in found.items())
    accuracy = f"The accuracies are {values}, and one test image is {image:.1f} %"
    spread = abs(codinet.accuracy - vanilla.accuracy)
    if spread <= 5 * image:
        accuracy += ": these digits are too easy to tell the two routed networks apart by accuracy"
    paths = "With few paths, an image and its augmentation share one more often, because less can change"
    if codinet.distinct_paths > vanilla.distinct_paths:
        paths = (
            f"CoDiNet's losses change the paths, {codinet.distinct_paths} instead of {vanilla.distinct_paths}; with "
            "more paths, an image and its augmentation share one less often, so compare the PCC in the report, which "
            "tells whether similar images take similar paths"
        )
    return f"{accuracy}. {paths}."


def main() -> int:
    args = parse(Args, sys.argv[1:], prog="python -m codinet.demo")
    return 0 if args is None else run(args)


if __name__ == "__main__":
    sys.exit(guarded(main))
