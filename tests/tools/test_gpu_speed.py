"""The GPU table of docs/inference.md is made from results/speed."""

import json
from pathlib import Path

from codinet.report.drawing import standalone_svg, to_svg
from tools.gpu_speed import ALT, FIGURE, PAGE, RESULTS, draw, read_rows, render, table

ROW = {"engine": "switch", "against": "static-compiled", "batch": 1024, "precision": "bfloat16", "p50_ms": 2.0}
SPEED = {"mac_speedup": 2.0, "speedup": 1.5, "realised": 0.75, "peak_mb": 10.4}
PLACE = {"device": "NVIDIA H200", "torch": "2.11.0", "commit": "abc"}


def test_page_and_figure_are_up_to_date() -> None:
    rows, again = read_rows(RESULTS), "run python -m tools.gpu_speed"
    assert render(PAGE.read_text(), rows) == PAGE.read_text(), again
    assert standalone_svg(to_svg(draw(rows)), ALT) == FIGURE.read_text(), again


def test_a_row_has_both_times(tmp_path: Path) -> None:
    static = {**ROW, **SPEED, "engine": "static-compiled", "p50_ms": 3.0, "peak_mb": 20.0}
    other = {**static, "batch": 1, "p50_ms": 9.0}
    document = {"network": "resnet50", "rows": [other, static, {**ROW, **SPEED}], "environment": PLACE}
    (tmp_path / "a.json").write_text(json.dumps(document))
    head, _, row, _, measured = table(read_rows(tmp_path)).splitlines()
    assert row == "| `resnet50` | 1,024 | `switch` | `static-compiled` | 3 | 2 | 2.00 | 1.50 | 0.75 | 20 | 10 | abc |"
    assert head.count("|") == row.count("|")
    assert measured == "H200, torch 2.11.0, bfloat16."
