"""`codinet analyze`: measure how trained runs distribute images over paths."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from codinet.commands.printing import note, print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError, one_line
from codinet.resolving import require_seed

if TYPE_CHECKING:
    from codinet.analysis.features import Progress


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders of `codinet train`, or zoo:NAME (see `codinet models`)."""
    out: Path = Path("runs")
    """Folder that zoo:NAME is unpacked into, as a run folder NAME."""
    features: Path | None = None
    """File (.npy, .npz, .safetensors) with one row per test image, to correlate paths with."""
    static: Path | None = None
    """Static run whose last layer gives the features. Default: the last layer of the routed run itself."""
    tsne: bool = True
    """Also compute t-SNE maps of relaxed paths, which needs scikit-learn."""
    images: int = 10_000
    """Number of test images to compare with an augmentation; a random sample if the test set has more."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda or mps. Default: the best available."""
    seed: int = 0
    """Seed of augmentations, samples and t-SNE."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Analyse each run, or use the analysis in its folder."""
    if not args.runs:
        raise UserError("analyze needs at least one run folder.")
    if args.images < 2:
        raise UserError(f"--images must be at least 2, got {args.images}.")
    require_seed(args.seed)
    if args.features and args.static:
        raise UserError("--features and --static cannot be used together.")
    # Imported here so that `codinet --help` does not import torch.
    from codinet.analysis import Request, analyse_run
    from codinet.environment import pick_device
    from codinet.runs import open_folder, open_run

    names, device = short_names(args.runs), pick_device(args.device)
    folders = [
        open_folder(path, data_root=args.data_root, device=device, runs=args.out, note=note) for path in args.runs
    ]
    request = Request(
        data_root=args.data_root,
        device=device,
        features=args.features,
        static=open_run(args.static) if args.static else None,
        tsne=args.tsne,
        images=args.images,
        seed=args.seed,
    )
    with progress_bars() as (progress, bar_note):
        found = [
            analyse_run(folder, request, progress=progress(name), note=bar_note)
            for name, folder in zip(names, folders, strict=True)
        ]
    if args.json:
        rows = zip(args.runs, found, strict=True)
        print_json({"runs": [{"run": str(path), **analysis.figures} for path, analysis in rows]})
    else:
        print_table("Original and augmented images; paths", ["", *names], _rows([a.figures for a in found]))


def _rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """One row per figure, one column per run."""

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
        row("  … of the same class", "{:.2f} %", "swapped", "accuracy_class"),
        row("PCC of path and feature similarity, relaxed", "{:.3f}", "correlation", "pcc_relaxed"),
        row("PCC of path and feature similarity, hard", "{:.3f}", "correlation", "pcc_hard"),
        row("  features", "{}", "correlation", "features"),
        row("  over", "{}", "correlation", "which_pairs"),
        row("distinct paths", "{}", "usage", "distinct_paths"),
        row("path entropy, bits", "{:.2f}", "usage", "path_entropy"),
    ]


def short_names(paths: Sequence[Path]) -> list[str]:
    """Names for run folders: the folder's own name, preceded by as many parents as make all names different.

    Raises:
        UserError: A folder is given twice.
    """
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        raise UserError("A run folder is given twice; give each folder once.")
    names: list[str] = []
    for depth in range(1, max((len(path.parts) for path in resolved), default=0) + 1):
        names = [one_line("/".join(path.parts[-depth:])) for path in resolved]
        if len(set(names)) == len(names):
            break
    return names


@contextmanager
def progress_bars() -> Iterator[tuple[Callable[[str], "Progress"], Callable[[str], None]]]:
    """Show progress on stderr: bars in a terminal, one line per step elsewhere.

    Yields:
        A function from a run's name to its `Progress`, and a function that prints a message.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:

        def progress_of(name: str) -> "Progress":
            def progress(title: str, total: int | None) -> Callable[[int], None]:
                if not console.is_terminal:
                    console.print(f"{name}: {title}")
                task = bars.add_task(f"{name}: {title}", total=total)

                def advance(done: int) -> None:
                    bars.advance(task, done)
                    if total is None:  # the first call ends a step of unknown length
                        bars.update(task, total=1, completed=1)

                return advance

            return progress

        yield progress_of, console.print
