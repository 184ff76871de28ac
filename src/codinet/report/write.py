"""A report on disk: index.html, and every figure as SVG and PNG beside it."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import codinet
from codinet import files
from codinet.analysis.forward import Watch, silent
from codinet.errors import UserError
from codinet.report import svg
from codinet.report.contents import sections
from codinet.report.inputs import Run
from codinet.report.page import Picture, render


class Report(NamedTuple):
    page: Path
    figures: list[str]  # names of the files in figures/ beside it


def write_report(runs: Sequence[Run], out: Path, *, watch: Watch = silent) -> Report:
    """Write the report into `out`. The page comes after its figures, so it never lacks one; figures of an earlier page
    there go after that."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {out}: {error.strerror}; choose another --out.") from error
    plan = sections(runs)
    advance = watch("report", len(plan))
    made, drawn = [], {}
    for _title, make in plan:
        section = make()
        for part in section.parts:
            if isinstance(part, Picture):
                drawn[part.name] = svg.draw(part.figure)
                files.write(out / "figures" / f"{part.name}.svg", svg.standalone(drawn[part.name], part.alt).encode())
                files.write(out / "figures" / f"{part.name}.png", svg.png(part.figure))
        made.append(section)
        advance(1)
    page = out / "index.html"
    earlier = _figures_of(page)
    files.write(page, render(_title_of(runs), _lead(runs), made, drawn, _footer()).encode())
    for file in _files(earlier - drawn.keys()):
        with suppress(OSError):
            (out / "figures" / file).unlink()
    return Report(page, _files(drawn))


def _files(names: Iterable[str]) -> list[str]:
    return sorted(f"{name}.{kind}" for name in names for kind in ("svg", "png"))


def _figures_of(page: Path) -> set[str]:
    """Names of the figures that a page shows, which a report wrote; any other file in figures/ is somebody's own."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(re.findall(r'<figure id="fig-([a-z0-9-]+)" class="picture">', text))


def _title_of(runs: Sequence[Run]) -> str:
    names = ", ".join(run.name for run in runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")
    return f"Routing report: {names}"


def _lead(runs: Sequence[Run]) -> str:
    said = []
    for run in runs:
        found = run.evaluation
        cost = f"at {found['cost_share']:.2f} of the static cost" if run.routed else "with every block run"
        paths = f", {found['distinct_paths']} paths" if run.routed else ""
        said.append(f"{run.name} ({run.method}): {found['accuracy']:.2f} % {cost}{paths}")
    return "; ".join(said) + "."


def _footer() -> str:
    return f"Made by codinet {codinet.__version__} from run folders. The figures lie beside this page as SVG and PNG."
