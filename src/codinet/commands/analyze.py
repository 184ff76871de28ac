"""`codinet analyze`: how trained runs distribute images over paths."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from codinet.analysis import Request, RunAnalysis, analysis_of
from codinet.analysis.names import short_names
from codinet.analysis.progress import bars
from codinet.commands.shared import print_json
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders of `codinet train`."""
    features: Path | None = None
    """File (.npy, .npz, .safetensors) with one row for each test image, to correlate paths with."""
    static: Path | None = None
    """Static run whose last layer gives the features. Default: the routed run's own last layer."""
    tsne: bool = True
    """Lay relaxed paths out by t-SNE too, which needs scikit-learn."""
    images: int = 10_000
    """Test images to augment and compare; of more, a random choice is taken."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    seed: int = 0
    """Seed of augmentations, choices and layouts."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Analyse each run, or use the analysis in its folder."""
    if not args.runs:
        raise UserError("There is nothing to analyse; give one run folder or more.")
    if args.images < 2:
        raise UserError(f"--images must be 2 or more, got {args.images}.")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed must be a whole number from 0 to {2**31 - 1}, got {args.seed}.")
    if args.features and args.static:
        raise UserError("--features and --static exclude each other; leave one of them out.")
    names = short_names(args.runs)
    folders = [RunFolder.open(path) for path in args.runs]
    request = Request(
        data_root=args.data_root,
        device=pick_device(args.device),
        features=args.features,
        static=RunFolder.open(args.static) if args.static else None,
        tsne=args.tsne,
        images=args.images,
        seed=args.seed,
    )
    found: list[RunAnalysis] = []
    with bars() as (watch, note):
        for name, folder in zip(names, folders, strict=True):
            found.append(analysis_of(folder, request, watch=watch(name), note=note))
    if args.json:
        rows = zip(args.runs, found, strict=True)
        print_json({"runs": [{"run": str(path), **analysis.figures} for path, analysis in rows]})
    else:
        print_table("Original against augmented images; paths", ["", *names], _rows([a.figures for a in found]))


def _rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row a figure, a column a run."""

    def row(title: str, form: str, *keys: str, scale: float = 1) -> list[str]:
        cells = [title]
        for figures in runs:
            value: Any = figures
            for key in keys:
                value = (value or {}).get(key)
            cells.append("–" if value is None else form.format(value * scale if scale != 1 else value))
        return cells

    kinds = dict.fromkeys(kind for figures in runs for kind in figures["consistency"].get("same_path_kinds", {}))
    return [
        row("images compared with an augmentation", "{:,}", "images"),
        row("pairs with the same path", "{:.1f} %", "consistency", "same_path", scale=100),
        *(row(f"  {kind}", "{:.1f} %", "consistency", "same_path_kinds", kind, "mean", scale=100) for kind in kinds),
        row("blocks changed by augmentation", "{:.2f}", "consistency", "blocks_changed"),
        row("mean KL divergence of predictions, nats", "{:.4f}", "kl", "mean"),
        row("same prediction", "{:.1f} %", "consistency", "same_prediction", scale=100),
        row("accuracy, original", "{:.2f} %", "consistency", "accuracy_original"),
        row("accuracy, augmented", "{:.2f} %", "consistency", "accuracy_augmented"),
        row("accuracy with another image's path", "{:.2f} %", "swapped", "accuracy_any"),
        row("  … of its class", "{:.2f} %", "swapped", "accuracy_class"),
        row("PCC of path and feature similarity, relaxed", "{:.3f}", "correlation", "pcc_relaxed"),
        row("PCC of path and feature similarity, hard", "{:.3f}", "correlation", "pcc_hard"),
        row("  features", "{}", "correlation", "features"),
        row("  over", "{}", "correlation", "which_pairs"),
        row("distinct paths", "{}", "usage", "distinct_paths"),
        row("path entropy, bits", "{:.2f}", "usage", "path_entropy"),
    ]
