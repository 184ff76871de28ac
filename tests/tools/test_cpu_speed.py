"""The tool that times CPU engines next to plain torch."""

import pytest

from tools import cpu_speed


def test_a_row_for_each_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    cpu_speed.main(("resnet14",), batch=(1, 2), images=2, rounds=1)
    head, _, *table = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in table]
    assert head.strip("| ").split(" | ") == list(cpu_speed.COLUMNS)
    assert [row[:3] for row in rows] == [["`resnet14`", "1", "1"], ["`resnet14`", "2", "1"]]
    assert all(float(cell) > 0 for row in rows for cell in row[3:])
    assert all(float(row[4]) == pytest.approx(float(row[5]) / float(row[6]), rel=0.05) for row in rows)
