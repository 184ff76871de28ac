"""The tool that times `codinet predict` against the masked and the static network."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from codinet.data import Dataset
from tools import predict_speed


def test_a_row_for_each_number_of_threads_and_batch_size(
    finished_run: Path, few: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(3):
        Image.fromarray(few.test.images_NCHW[index, 0].numpy()).save(tmp_path / f"{index}.png")
    predict_speed.main(str(finished_run), tmp_path, batch=(1, 2), threads=(torch.get_num_threads(),), rounds=1)
    title, _, *table = capsys.readouterr().out.splitlines()
    assert title.startswith("3 images, 1 rounds, ")
    rows = [line.strip("| ").split(" | ") for line in table]
    assert rows[0] == list(predict_speed.COLUMNS)
    assert [row[1:3] for row in rows[2:]] == [["1", "branch"], ["2", "gather"]]
    assert all(float(cell) > 0 for row in rows[2:] for cell in row[3:7])
