"""Builds a report: decides which figures and tables it has, and writes the page and the figures to a folder."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import codinet
from codinet import files
from codinet.analysis.features import Progress, no_progress
from codinet.errors import UserError
from codinet.report import image_figures, path_figures, report_tables, result_figures, space_figures
from codinet.report.drawing import save_figure
from codinet.report.page import ReportFigure, Section, Table, render
from codinet.report.run_data import Run


class Report(NamedTuple):
    """The files of a report."""

    page: Path
    figures: list[str]  # names of the files in figures/


def write_report(runs: Sequence[Run], out: Path, *, remark: str = "", progress: Progress = no_progress) -> Report:
    """Write index.html and figures/ into a folder.

    The page is written after its figures, so it never lacks one. Figures of an earlier report in this folder that the
    new one does not have are deleted at the end.

    Args:
        runs: The runs to show side by side.
        out: The folder, which is created if necessary.
        remark: A paragraph for the top of the page.
        progress: Called at the start, with the number of sections.

    Raises:
        UserError: The folder cannot be written.
    """
    figures = out / "figures"
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {out}: {error.strerror}; choose another --out.") from error
    runs = [replace(run, position=position) for position, run in enumerate(runs)]
    builders = _sections(runs)
    advance = progress("report", len(builders))
    sections, svgs = [], {}
    for build in builders:
        section = build()
        for part in section.parts:
            if isinstance(part, ReportFigure):
                svgs[part.name] = save_figure(part.figure, figures, part.name, part.alt)
        sections.append(section)
        advance(1)
    page = out / "index.html"
    earlier = _figures_of(page)
    footer = f"Made by codinet {codinet.__version__} from run folders. All figures are in figures/ as SVG and PNG."
    files.write(page, render(_title(runs), [_lead(runs), *filter(None, [remark])], sections, svgs, footer).encode())
    for file in _files(earlier - svgs.keys()):
        with suppress(OSError):
            (figures / file).unlink()
    return Report(page, _files(svgs))


def _files(names: Iterable[str]) -> list[str]:
    return sorted(f"{name}.{kind}" for name in names for kind in ("svg", "png"))


def _figures_of(page: Path) -> set[str]:
    """Names of the figures on a page of an earlier report; other files in figures/ are not ours to delete."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(re.findall(r'<figure id="fig-([a-z0-9-]+)" class="picture">', text))


def _title(runs: Sequence[Run]) -> str:
    names = ", ".join(run.name for run in runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")
    return f"Routing report: {names}"


def _lead(runs: Sequence[Run]) -> str:
    summaries = []
    for run in runs:
        found = run.evaluation
        cost = f"at {found['cost_share']:.2f} of the static cost" if run.routed else "with all blocks"
        paths = f", {found['distinct_paths']} paths" if run.routed else ""
        summaries.append(f"{run.name} ({run.method}): {found['accuracy']:.2f} % {cost}{paths}")
    return "; ".join(summaries) + "."


def _sections(runs: Sequence[Run]) -> list[Callable[[], Section]]:
    """Functions that build the sections, in order; building one takes a while because of its figures."""
    routed = [run for run in runs if run.routed]
    builders = [lambda: _results(runs), lambda: _training(runs)]
    if routed:
        builders.append(lambda: _blocks(routed))
    builders.append(lambda: _consistency(runs, routed))
    if routed:
        builders += [lambda: _space(routed), lambda: _similarity(routed), lambda: _images(routed)]
    published = report_tables.published_tables([run.folder.data.name for run in runs])
    if published:
        builders.append(lambda: _published(published))
    return [*builders, lambda: _settings(runs)]


def _results(runs: Sequence[Run]) -> Section:
    text = (
        "Accuracy, cost and paths on the test set. MACs count one per multiply-add of convolutions and matrix products."
    )
    if any(run.unit is not None for run in runs):  # the paper uses one of the data sets
        text += " In the paper, GMACCs on CIFAR and SVHN count two per multiply-add, those on ImageNet one."
        if not any(report_tables.paper_rows(run) for run in runs):
            text += " The paper has no results for these networks."
    text += report_tables.times_text(runs)
    return Section("results", "Results", text, [report_tables.results_table(runs), result_figures.accuracy_cost(runs)])


def _training(runs: Sequence[Run]) -> Section:
    watched = {row.get("watched", "test") for run in runs for row in run.metrics}
    text = f"Accuracy, cost and paths are those of the {' and '.join(sorted(watched)) or 'test'} images."
    return Section("training", "Training", text, [result_figures.training(runs)])


def _blocks(runs: Sequence[Run]) -> Section:
    text = "Which blocks run for which classes, how many blocks an image runs, and how many paths there are."
    rates = [path_figures.run_rates(run) for run in runs]
    return Section(
        "blocks", "Block usage", text, [*rates, path_figures.blocks_run(runs), path_figures.path_counts(runs)]
    )


def _consistency(runs: Sequence[Run], routed: Sequence[Run]) -> Section:
    number = " or ".join(f"{count:,}" for count in sorted({run.analysis.figures["images"] for run in runs}))
    text = (
        f"Each of {number} test images is compared with one augmentation of it: a random crop, a horizontal flip, a "
        "vertical flip or a rotation by up to 15 degrees."
    )
    if routed:
        text += " The accuracy with another image's path shows how much an image's own path matters."
    if len(routed) < len(runs):
        text += " A static network has one path, which never changes; its predictions can still change."
    settings = {(run.analysis.made_from.get("seed"), run.analysis.figures["images"]) for run in runs}
    if len(settings) > 1:
        text += " Note: these runs were analysed with different seeds or numbers of images."
    parts: list[ReportFigure | Table] = [report_tables.paths_table(runs)]
    if routed:
        parts.append(path_figures.same_path(routed))
    return Section("consistency", "Consistency", text, [*parts, path_figures.kl_histogram(runs)])


def _space(runs: Sequence[Run]) -> Section:
    text = (
        "Maps of the relaxed paths of test images. Consistency pulls the views of an image together; diversity pushes "
        "different images apart."
    )
    parts: list[ReportFigure | Table] = []
    for number, data in enumerate(dict.fromkeys(run.folder.data.sha256 for run in runs), start=1):
        same_data = [run for run in runs if run.folder.data.sha256 == data]
        parts += space_figures.routing_space(same_data, "" if number == 1 else f"-{number}")
    return Section("space", "Routing space", text, parts)


def _similarity(runs: Sequence[Run]) -> Section:
    text = "Do images with similar features take similar paths? On the dotted line both similarities are equal."
    return Section("similarity", "Similar images, similar paths", text, [space_figures.similarity(runs)])


def _images(runs: Sequence[Run]) -> Section:
    text = "Images that run few or many blocks, and images that share a path."
    figures = (image_figures.easiest_and_hardest, image_figures.shared_paths)
    return Section("images", "Images", text, [figure(run) for run in runs for figure in figures])


def _published(published: Sequence[Table]) -> Section:
    text = "All results of the paper's tables on these data sets, and of two later works, as printed and in MACs."
    return Section("published", "Published results", text, published)


def _settings(runs: Sequence[Run]) -> Section:
    text = "The settings of each run, and the machine and versions it was trained with."
    return Section(
        "settings", "Settings", text, [report_tables.settings_table(runs), report_tables.environments_table(runs)]
    )
