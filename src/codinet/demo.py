"""What `make demo` runs: static, vanilla and CoDiNet on the embedded digits, at one budget.

Writes three run folders, a picture of which class runs which block, and a report under --out, and prints a table. A
second call shows the results of the first.
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
from codinet.config import RunConfig, resolve
from codinet.data import load
from codinet.evaluate import Evaluation
from codinet.presets import as_static, as_vanilla, demo
from codinet.report.drawing import to_png
from codinet.report.path_figures import draw_run_rates
from codinet.train import train
from codinet.train.reporting import Console


@dataclass(frozen=True)
class Args:
    out: Path = Path("runs/demo")
    """Folder to write."""


def run(args: Args) -> int:
    return compare(args.out, demo("digits"))


def compare(out: Path, wanted: RunConfig) -> int:
    config = resolve(wanted)
    dataset = load(config.source, Path())
    kinds = {"static": as_static(config), "vanilla": as_vanilla(config), "codinet": config}
    # One CPU thread: images of 8×8 pixels are too small for a GPU or a second thread to help.
    device = torch.device("cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, Evaluation] = {}
    try:
        for name, kind in kinds.items():
            _, found[name] = train(out / name, kind, dataset, device=device, resume=True, reporter=Console())
    finally:
        torch.set_num_threads(threads)
    stages = ARCHITECTURES[config.network.arch].counts
    picture = out / "paths.png"
    files.write(picture, to_png(draw_run_rates(found["codinet"].paths, dataset.classes, stages)))
    report.run(report.Args(runs=tuple(out / name for name in kinds), out=out / "report", device="cpu"))
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
    print(f"Which class runs which block: {picture}. The report: {out / 'report' / 'index.html'}.")
    return 0


def main() -> int:
    args = parse(Args, sys.argv[1:], prog="python -m codinet.demo")
    return 0 if args is None else run(args)


if __name__ == "__main__":
    sys.exit(guarded(main))
