"""How `codinet bench --train` is shown."""

from typing import Any

from codinet.commands.tables import print_table


def print_training(title: str, rows: list[dict[str, Any]]) -> None:
    """A table for each number of inputs of a step."""
    headings = [
        "net",
        "mode",
        "inputs\na second",
        "ms\na step",
        "peak\nMB",
        "in\nconvs",
        "× static\nnet's time",
        "× eager\ntime",
    ]
    for inputs in dict.fromkeys(row["inputs_per_step"] for row in rows):
        shown = [row for row in rows if row["inputs_per_step"] == inputs]
        cells = [
            [
                "routed" if row["routed"] else "static",
                row["mode"],
                f"{row['inputs_per_s']:.0f}",
                f"{row['ms_per_step']:.1f}",
                _or_dash(row["peak_mb"], ".0f"),
                _or_dash(row["conv_share"], ".0%"),
                _or_dash(row["against_static"], ".2f"),
                _or_dash(row["against_eager"], ".2f"),
            ]
            for row in shown
        ]
        print_table(f"{shown[0]['arch']}, {title}, {shown[0]['precision']}, {inputs} inputs a step", headings, cells)


def _or_dash(figure: float | None, form: str) -> str:
    return "–" if figure is None else format(figure, form)
