"""`codinet report`: figures and tables of one or more runs on one HTML page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
    time: bool = True
    """Also measure the time per image next to the static network: two seconds per run, once per machine."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for runs that have no analysis yet."""
    device: str | None = None
    """cpu, cuda or mps. Default: the best available."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args, *, remark: str = "") -> None:
    """Analyse the runs that have no analysis yet, measure their time, then write the page.

    Args:
        args: The flags.
        remark: A paragraph for the top of the page.
    """
    if not args.runs:
        raise UserError("report needs at least one run folder.")
    # Imported here because torch is slow to import and matplotlib is optional.
    from codinet.analysis import Request, analyse_run
    from codinet.environment import pick_device
    from codinet.report.build_report import write_report
    from codinet.report.inference_time import inference_time
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
            found = read_run(folder, analysis, name, slug)
            if args.time:
                advance = progress(name)("time per image", None)
                measured = inference_time(folder, found.paths, analysis.made_from["network"], device, note=bar_note)
                found = replace(found, time=measured)
                advance(1)
            runs.append(found)
        title = f"{len(runs)} runs" if len(runs) > 1 else names[0]
        report = write_report(runs, out, remark=remark, progress=progress(title))
    if args.json:
        written = {"report": str(report.page), "figures": report.figures}
        times = [asdict(run.time) if run.time else None for run in runs]
        print_json({**written, "runs": [str(path) for path in args.runs], "times": times})
    else:
        print(f"Report: {report.page}")


def _static_run_for(folder: RunFolder, folders: list[RunFolder]) -> RunFolder | None:
    """The first static run on the same data; its last layer gives better features than the routed run's own."""
    for other in folders:
        if not other.config.network.routed and other.data.same_images(folder.data):
            return other
    return None
