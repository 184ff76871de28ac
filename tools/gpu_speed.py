"""Renders the GPU table and figure of docs/inference.md from outputs of `codinet bench --json` in results/speed.

    codinet bench resnet50 --device cuda --precision bfloat16 --run-rate 0.5 --batch 256 64 1 --engines switch \
        --rounds 10 --images 512 --json > results/speed/resnet50.json
    python -m tools.gpu_speed
"""

import json
import re
from pathlib import Path
from typing import Any

from codinet import files
from codinet.report.drawing import COLOURS, FAINT, Figure, panels, standalone_svg, styled, to_svg

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, FIGURE = (
    ROOT / "results" / "speed",
    ROOT / "docs" / "inference.md",
    ROOT / "docs" / "images" / "gpu-speed.svg",
)
BEGIN, END = "<!-- begin tools.gpu_speed -->\n", "<!-- end tools.gpu_speed -->\n"
ALT = "Speed-up of routed networks over static ones on a GPU, measured and by multiply-adds"


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of routed engines, each with its network, environment and the static row it is compared with."""
    found = []
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text())
        for row in document["rows"]:
            if row["engine"].startswith("static"):
                continue
            static = next(r for r in document["rows"] if (r["engine"], r["batch"]) == (row["against"], row["batch"]))
            found.append({**row, "static": static, "network": document["network"], **document["environment"]})
    return sorted(found, key=lambda row: (row["network"].rpartition(":")[0], row["network"], -row["batch"]))


def table(rows: list[dict[str, Any]]) -> str:
    """The table, and a line that says how it was measured."""
    heads = [
        "network",
        "batch",
        "engine",
        "compared with",
        "ms: static",
        "ms: routed",
        "fewer MACs",
        "faster",
        "realised",
    ]
    lines = [" | ".join(["", *heads, "MB: static", "MB: routed", "commit", ""]).strip()]
    lines.append("|---|---:|---|---|" + "---:|" * 7 + "---|")
    for row in rows:
        static = row["static"]
        times = [f"{r['p50_ms']:.3g}" for r in (static, row)]
        ratios = [f"{row[name]:.2f}" for name in ("mac_speedup", "speedup", "realised")]
        memory = [f"{r['peak_mb']:.0f}" for r in (static, row)]
        cells = [f"`{row['network']}`", f"{row['batch']:,}", f"`{row['engine']}`", f"`{row['against']}`"]
        lines.append("| " + " | ".join([*cells, *times, *ratios, *memory, row["commit"]]) + " |")
    settings = {f"{row['device'].removeprefix('NVIDIA ')}, torch {row['torch']}, {row['precision']}" for row in rows}
    return "\n".join(lines) + "\n\n" + "; ".join(sorted(settings)) + ".\n"


@styled
def draw(rows: list[dict[str, Any]]) -> Figure:
    """One bar per row, with a mark where multiply-adds alone would put it."""
    figure, ((axes,),) = panels(1, 1, width=6.4, height=0.7 + 0.3 * len(rows))
    names = [f"{row['network']}, batch {row['batch']:,}" for row in rows]
    places = [float(place) for place in range(len(rows))]
    bars = axes.barh(places, [row["speedup"] for row in rows], color=COLOURS[0], height=0.6, label="measured")
    axes.bar_label(bars, [f"{row['speedup']:.2f}" for row in rows], padding=3)
    for place, row in zip(places, rows, strict=True):
        label = "by multiply-adds" if place == 0 else "_"  # a legend omits labels with an underscore
        axes.vlines(row["mac_speedup"], place - 0.38, place + 0.38, colors=COLOURS[1], linewidth=2, label=label)
    axes.axvline(1, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over the fastest static network")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def render(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with a new table between the two comments."""
    return re.sub(f"(?s){BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(rows)}\n{END}", page)


def main() -> None:
    rows = read_rows(RESULTS)
    files.write(PAGE, render(PAGE.read_text(), rows).encode())
    files.write(FIGURE, standalone_svg(to_svg(draw(rows)), ALT).encode())


if __name__ == "__main__":
    main()
