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


def test_where_it_is_tight_headings_break_before_names_and_figures_do(
    monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    headings, row = ["trained network", "accuracy, %"], ["cifar10-resnet110-056", "94.47"]
    for columns, lines in ((80, 1), (37, 2)):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table("Networks", headings, [row])
        _, _, *head, _, body, _ = capsys.readouterr().out.splitlines()
        assert len(head) == lines
        assert body.split() == ["│", row[0], "│", row[1], "│"]


def test_a_table_without_rows_has_its_headings(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    print_table("Networks", ["network", "share of the static cost"], [])
    assert "network" in capsys.readouterr().out
