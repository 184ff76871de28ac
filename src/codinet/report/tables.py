"""Tables of a report: runs beside the paper's rows, in both units; config; environment. Cells are plain text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codinet.config import to_dict
from codinet.published import NAMES, PCC, PUBLISHED, SAME_PATH, UNITS, Published, data_key, matching
from codinet.report.inputs import Run

NONE = "–"


class Table(NamedTuple):
    id: str
    caption: str
    headings: list[str]
    rows: list[list[str]]
    words: int = 1  # the first columns, which hold words and stand left


def against_paper(runs: Sequence[Run]) -> Table:
    """A row a run and, under it, the paper's rows for the same data, network and method."""
    rows = []
    for run in runs:
        found, arch = run.evaluation, run.folder.config.network.arch
        rows.append(
            [
                run.name,
                f"{NAMES.get(data_key(run.folder.data.name), run.folder.data.name)}, {arch}, {run.method}",
                f"{found['accuracy']:.2f}",
                f"{found['macs'] / 1e6:.2f}",
                f"{found['paper_gmaccs']:.4g}",
                f"{found['cost_share']:.3f}",
                f"{found['mean_blocks']:.2f} of {run.paths.path_TN.shape[1]}",
                f"{found['distinct_paths']}",
                f"{found['path_entropy']:.2f}",
            ]
        )
        rows += [_paper_row(row) for row in matching(run.folder.data.name, arch, run.method)]
    headings = ["run", "data, network, method", "accuracy, %", "M MACs (one per multiply-add)"]
    headings += ["G, paper's unit", "share of static cost", "blocks run", "distinct paths", "path entropy, bits"]
    return Table("table-runs", "Runs, with the paper's rows for the same under each", headings, rows, words=2)


def _paper_row(row: Published) -> list[str]:
    name = f"{NAMES[row.data]}, {row.backbone}, {row.kind}"
    cells = [f"{row.accuracy:.2f}", *_costs(row), NONE, NONE, _number(row.paths, 0), NONE]
    return ["the paper", name, *cells]


def _costs(row: Published) -> list[str]:
    if row.gmaccs is None or row.macs is None:
        return [NONE, NONE]
    printed = f"{row.gmaccs:.2f}" if round(row.gmaccs, 2) == row.gmaccs else f"{row.gmaccs:g}"
    return [f"{row.macs / 1e6:,.0f}", printed]


def path_figures(runs: Sequence[Run]) -> Table:
    """What the paper claims of paths (consistency, divergence, correlation), and what an image's own is worth."""
    rows = []
    for run in runs:
        figures = run.analysis.figures
        consistency, correlation = figures["consistency"], figures.get("correlation", {})
        swapped = figures.get("swapped", {})  # which the first analyses did not measure
        rows.append(
            [
                run.name,
                run.method,
                _percent(consistency.get("same_path")),
                _number(consistency.get("blocks_changed"), 2),
                f"{figures['kl']['mean']:.3f}",
                _percent(consistency["same_prediction"]),
                f"{consistency['accuracy_augmented']:.2f}",
                _number(swapped.get("accuracy_any"), 2),
                _number(swapped.get("accuracy_class"), 2),
                _number(correlation.get("pcc_relaxed"), 3),
                _number(correlation.get("pcc_hard"), 3),
                correlation.get("features", NONE),
            ]
        )
    if any(data_key(run.folder.data.name) == "cifar10" for run in runs):
        rows += [
            [
                "the paper",
                f"{method}, ResNet-110",
                _percent(share),
                *[NONE] * 6,
                f"{PCC[method]}",
                NONE,
                "an ImageNet MoCo",
            ]
            for method, share in SAME_PATH.items()
        ]
    headings = ["run", "method", "pairs with the same path", "blocks changed", "mean KL, nats", "same prediction"]
    headings += ["accuracy augmented, %", "accuracy with another image's path, %", "… of its class, %"]
    headings += ["PCC, relaxed paths", "PCC, hard paths", "features"]
    caption = "Original against augmented images, swapped paths, and similarity of paths"
    return Table("table-paths", caption, headings, rows, words=2)


def published(data: Sequence[str]) -> list[Table]:
    """Every published row of the data sets, in the unit printed and in MACs."""
    tables = []
    for key in dict.fromkeys(data_key(name) for name in data):
        rows = [
            [row.method, row.backbone, f"{row.accuracy:.2f}", *_costs(row), _number(row.paths, 0), row.source]
            for row in PUBLISHED
            if row.data == key
        ]
        if rows:
            unit = "two" if UNITS[key] == 2 else "one"
            headings = ["method", "network", "accuracy, %", "M MACs (one per multiply-add)"]
            headings += [f"G as printed ({unit} per multiply-add)", "paths", "source"]
            tables.append(
                Table(f"table-published-{key}", f"Published results on {NAMES[key]}", headings, rows, words=2)
            )
    return tables


def configs(runs: Sequence[Run]) -> Table:
    """Every setting, a column a run."""
    flat = [_flat(to_dict(run.folder.config)) for run in runs]
    for values in flat:
        for key in ("source", "extra.start", "extra.teacher"):
            values[key] = Path(values[key]).name  # where a folder lies is nobody's business
    rows = [[key, *(values[key] for values in flat)] for key in flat[0]]
    return Table("table-config", "Configuration", ["setting", *(run.name for run in runs)], rows)


def environments(runs: Sequence[Run]) -> Table:
    """Where each run was made."""
    keys = list(dict.fromkeys(key for run in runs for key in run.folder.environment))
    rows = [[key, *(str(run.folder.environment.get(key, NONE)) for run in runs)] for key in keys]
    return Table("table-environment", "Where the runs were made", ["", *(run.name for run in runs)], rows)


def _flat(values: dict[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = NONE if value is None else f"{value:g}" if type(value) is float else str(value)
    return found


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
