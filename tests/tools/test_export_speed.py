"""The tool that times exported files without codinet's engines."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")

from codinet.data import Dataset
from tools import export_speed


def test_a_row_for_each_file_and_runtime(
    finished_run: Path, few: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [1, None, 0, 1, 0, None, 0, 1, 1]
    monkeypatch.setattr(export_speed, "usual_of", lambda *_args: usual)
    export_speed.main(str(finished_run), images=4, turn=2, threads=torch.get_num_threads(), skip_rates=True)
    title, _, *table = capsys.readouterr().out.splitlines()
    assert "4 images, 1 rounds" in title
    rows = [line.strip("| ").split(" | ") for line in table]
    assert rows[0] == list(export_speed.COLUMNS)
    files = ["static", "routed", "usual", "all skipped", "all run"]
    runtimes = ["ONNX Runtime", *(["OpenVINO"] if importlib.util.find_spec("openvino") else [])]
    assert [row[:2] for row in rows[2:]] == [[runtime, file] for runtime in runtimes for file in files]
    assert all(row[7] == "4 of 4" and float(row[8]) < 1e-4 for row in rows[2:] if row[1] != "static")


def test_a_network_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    export_speed.main("resnet14", images=4, turn=4, threads=torch.get_num_threads())
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[:2] for row in rows] == [["ONNX Runtime", "static"], ["ONNX Runtime", "routed"]]
