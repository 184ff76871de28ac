import json

import pytest

from codinet.commands.shared import figures, print_json, print_table

Said = pytest.CaptureFixture[str]


def test_a_table_shows_names_as_they_are(capsys: Said) -> None:
    print_table("runs/[bold]a[/b]", ["file", "n"], [["x[/y].png", "1"], [":smile:", "2"]])
    said = capsys.readouterr().out
    assert all(name in said for name in ("runs/[bold]a[/b]", "x[/y].png", ":smile:"))


def test_json_keeps_every_digit(capsys: Said) -> None:
    print_json({"share": 0.1 + 0.2})
    assert json.loads(capsys.readouterr().out)["share"] == 0.1 + 0.2


def test_figures_name_their_units() -> None:
    summary = {
        **{"accuracy": 97.25, "cost_share": 0.6, "macs": 1_500_000.0, "paper_gmaccs": 0.003, "mean_blocks": 5.0},
        **{"distinct_paths": 12, "path_entropy": 2.5, "always_on": 1, "always_off": 2, "n": 500},
    }
    rows = dict(figures(summary))
    assert rows["accuracy"] == "97.25 %"
    assert rows["cost, M MACs an image (one per multiply-add)"] == "1.500"
    assert rows["blocks always on / always off"] == "1 / 2"
