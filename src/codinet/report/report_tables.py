"""The tables of a report: runs beside the paper's rows, paths, published results, settings and environments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codinet.config import to_dict
from codinet.published import NAMES, PCC, PUBLISHED, SAME_PATH, UNITS, Published, data_key, matching
from codinet.report.page import Table
from codinet.report.run_data import Run

NONE = "–"


def results_table(runs: Sequence[Run]) -> Table:
    """A row per run, followed by the paper's rows for the same data, network and method.

    Top-5 accuracy and times have columns if a run has them, and the paper's unit if the paper uses the data of a run.
    """
    timed, in_paper = any(run.time for run in runs), any(run.unit is not None for run in runs)
    top5 = any("top5_accuracy" in run.evaluation for run in runs)
    rows = []
    for run in runs:
        evaluation = run.evaluation
        cells = [f"{evaluation['accuracy']:.2f}", *[_number(evaluation.get("top5_accuracy"), 2)] * top5]
        cells += [f"{evaluation['macs'] / 1e6:.2f}"]
        cells += [NONE if run.unit is None else f"{evaluation['macs'] * run.unit / 1e9:.4g}"] * in_paper
        cells += [f"{evaluation['cost_share']:.3f}"]
        cells += _times(run) * timed
        cells += [f"{evaluation['mean_blocks']:.2f} of {run.paths.path_TN.shape[1]}"]
        cells += [f"{evaluation['distinct_paths']}", f"{evaluation['path_entropy']:.2f}"]
        rows.append([run.name, f"{run.data_name}, {run.folder.config.network.title}, {run.method}", *cells])
        for row in paper_rows(run):
            name = f"{NAMES[row.data]}, {row.backbone}, {row.kind}"
            times = [NONE] * (3 * timed)
            cells = [
                f"{row.accuracy:.2f}",
                *[NONE] * top5,
                *_costs(row),
                NONE,
                *times,
                NONE,
                _number(row.paths, 0),
                NONE,
            ]
            rows.append(["the paper", name, *cells])
    headings = ["run", "data, network, method", "accuracy, %", *["top-5 accuracy, %"] * top5]
    headings += ["M MACs (one per multiply-add)"]
    headings += ["G, paper's unit"] * in_paper
    headings += ["share of static cost"]
    headings += ["ms per image, measured", "… static network, ms", "speed-up, measured"] * timed
    headings += ["blocks run", "distinct paths", "path entropy, bits"]
    quoted = any(paper_rows(run) for run in runs)
    caption = "Runs, each followed by the paper's rows for the same" if quoted else "Runs"
    return Table("table-runs", caption, headings, rows, text_columns=2)


def paper_rows(run: Run) -> list[Published]:
    """The paper's results for the data, network and method of a run."""
    return matching(run.folder.data.name, run.folder.config.network.title, run.method)


def times_text(runs: Sequence[Run]) -> str:
    """Where, when and how the times of the runs were measured; empty if none were."""
    timed = [(run, run.time) for run in runs if run.time is not None]
    if not timed:
        return ""
    places: dict[str, list[str]] = {}
    for run, found in timed:
        places.setdefault(f"on {found.place}, on {found.measured.partition(' ')[0]}", []).append(run.name)
    where = next(iter(places))
    if len(places) > 1:
        where = "; ".join(f"{', '.join(names)} {place}" for place, names in places.items())
    engines = dict.fromkeys(f"{found.engine} against {found.static_engine}" for run, found in timed if run.routed)
    text = " Times are of one image at a time, next to the static network of the same architecture; they were measured "
    return text + where + (f" (engines: {', '.join(engines)})." if engines else ".")


def _times(run: Run) -> list[str]:
    """Milliseconds of the run and of the static network, and the speed-up."""
    found = run.time
    if found is None:
        return [NONE] * 3
    speedup = f"{found.speedup:.2f} ×" if run.routed else NONE
    return [f"{found.run_ms:.3g}", f"{found.static_ms:.3g}", speedup]


def paths_table(runs: Sequence[Run]) -> Table:
    """A row per run: consistency, divergence, accuracy with swapped paths, and correlation with features."""
    rows = []
    for run in runs:
        figures = run.analysis.figures
        consistency, correlation = figures["consistency"], figures.get("correlation", {})
        swapped = figures.get("swapped", {})  # missing in analyses of revision 1
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
        for method, fraction in SAME_PATH.items():
            pcc = [f"{PCC[method]}", NONE, "an ImageNet MoCo"]
            rows.append(["the paper", f"{method}, ResNet-110", _percent(fraction), *[NONE] * 6, *pcc])
    headings = ["run", "method", "pairs with the same path", "blocks changed", "mean KL, nats", "same prediction"]
    headings += ["accuracy augmented, %", "accuracy with another image's path, %", "… of the same class, %"]
    headings += ["PCC, relaxed paths", "PCC, hard paths", "features"]
    caption = "Original and augmented images, swapped paths, and correlation with features"
    return Table("table-paths", caption, headings, rows, text_columns=2)


def published_tables(data: Sequence[str]) -> list[Table]:
    """Every published result on these data sets, in the printed unit and in MACs; a table per data set."""
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
            caption = f"Published results on {NAMES[key]}"
            tables.append(Table(f"table-published-{key}", caption, headings, rows, text_columns=2))
    return tables


def settings_table(runs: Sequence[Run]) -> Table:
    """Every setting, a column per run."""
    columns = [_flatten(to_dict(run.folder.config)) for run in runs]
    for values in columns:
        for key in ("source", "extra.start", "extra.teacher", "extra.weights"):
            values[key] = Path(values[key]).name  # a report does not show local paths
    rows = [[key, *(values[key] for values in columns)] for key in columns[0]]
    return Table("table-config", "Configuration", ["setting", *(run.name for run in runs)], rows)


def environments_table(runs: Sequence[Run]) -> Table:
    """The machine and the versions of each run."""
    keys = list(dict.fromkeys(key for run in runs for key in run.folder.environment))
    rows = [[key, *(str(run.folder.environment.get(key, NONE)) for run in runs)] for key in keys]
    return Table("table-environment", "Environment of each run", ["", *(run.name for run in runs)], rows)


def _costs(row: Published) -> list[str]:
    if row.gmaccs is None or row.macs is None:
        return [NONE, NONE]
    printed = f"{row.gmaccs:.2f}" if round(row.gmaccs, 2) == row.gmaccs else f"{row.gmaccs:g}"
    return [f"{row.macs / 1e6:,.0f}", printed]


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = NONE if value is None else f"{value:g}" if type(value) is float else str(value)
    return flat


def _percent(fraction: float | None) -> str:
    return NONE if fraction is None else f"{100 * fraction:.1f} %"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
