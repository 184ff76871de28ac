"""`codinet report`: one page of figures and tables on one run or several."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from codinet.analysis import Request, analysis_of
from codinet.analysis.names import short_names
from codinet.analysis.progress import bars
from codinet.commands.shared import print_json
from codinet.data import DATA_ROOT
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders of `codinet train`, routed or static, shown side by side."""
    out: Path | None = None
    """Folder to write index.html and figures/ into. Default: report/ in the first run's folder."""
    tsne: bool = True
    """Where a run is not analysed yet: lay its paths out by t-SNE too."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for runs that are not analysed yet."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Analyse what is not analysed yet, then write the page."""
    if not args.runs:
        raise UserError("There is nothing to report on; give one run folder or more.")
    # Imported here because matplotlib is an extra: without it every other verb works.
    from codinet.report.inputs import read_run, unique_slugs
    from codinet.report.write import write_report

    names = short_names(args.runs)
    folders = [RunFolder.open(path) for path in args.runs]
    for folder in folders:
        folder.require_finished()
    out = args.out or args.runs[0] / "report"
    device = pick_device(args.device)
    with bars() as (watch, note):
        runs = []
        for name, slug, folder in zip(names, unique_slugs(names), folders, strict=True):
            request = Request(args.data_root, device, static=_static_beside(folder, folders), tsne=args.tsne)
            analysis = analysis_of(folder, request, watch=watch(name), any_options=True, note=note)
            runs.append(read_run(folder, analysis, name, slug))
        report = write_report(runs, out, watch=watch(f"{len(runs)} runs" if len(runs) > 1 else names[0]))
    if args.json:
        written = {"report": str(report.page), "figures": report.figures}
        print_json({**written, "runs": [str(path) for path in args.runs]})
    else:
        print(f"The report is {report.page}; open it in a browser.")


def _static_beside(folder: RunFolder, folders: list[RunFolder]) -> RunFolder | None:
    """The first static run of the same data: its last layer is the better source of features."""
    for other in folders:
        if not other.config.network.routed and other.data.same_images(folder.data):
            return other
    return None
