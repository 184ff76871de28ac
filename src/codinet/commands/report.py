"""`codinet report`: figures and tables of one or more runs on one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from codinet.commands.analyze import progress_bars, short_names
from codinet.commands.printing import note, print_json
from codinet.config import DATA_ROOT
from codinet.errors import UserError

if TYPE_CHECKING:
    from codinet.runs import RunFolder


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders of `codinet train`, routed or static, or zoo:NAME (unpacked into runs/NAME); shown side by side."""
    out: Path | None = None
    """Folder to write index.html and figures/ into. Default: report/ in the first run's folder."""
    tsne: bool = True
    """Also compute t-SNE maps of runs that have no analysis yet."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for runs that have no analysis yet."""
    device: str | None = None
    """cpu, cuda or mps. Default: the best available."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Analyse the runs that have no analysis yet, then write the page."""
    if not args.runs:
        raise UserError("report needs at least one run folder.")
    # Imported here because torch is slow to import and matplotlib is optional.
    from codinet.analysis import Request, analyse_run
    from codinet.environment import pick_device
    from codinet.report.build_report import write_report
    from codinet.report.run_data import read_run, unique_slugs
    from codinet.runs import open_folder

    names, device = short_names(args.runs), pick_device(args.device)
    folders = [open_folder(path, data_root=args.data_root, device=device, note=note) for path in args.runs]
    for folder in folders:
        folder.require_finished()
    out = args.out or folders[0].path / "report"
    with progress_bars() as (progress, bar_note):
        runs = []
        for name, slug, folder in zip(names, unique_slugs(names), folders, strict=True):
            request = Request(args.data_root, device, static=_static_run_for(folder, folders), tsne=args.tsne)
            analysis = analyse_run(folder, request, progress=progress(name), any_options=True, note=bar_note)
            runs.append(read_run(folder, analysis, name, slug))
        report = write_report(runs, out, progress=progress(f"{len(runs)} runs" if len(runs) > 1 else names[0]))
    if args.json:
        written = {"report": str(report.page), "figures": report.figures}
        print_json({**written, "runs": [str(path) for path in args.runs]})
    else:
        print(f"Report: {report.page}")


def _static_run_for(folder: RunFolder, folders: list[RunFolder]) -> RunFolder | None:
    """The first static run on the same data; its last layer gives better features than the routed run's own."""
    for other in folders:
        if not other.config.network.routed and other.data.same_images(folder.data):
            return other
    return None
