import dataclasses
import json
from pathlib import Path

import pytest
import torch

from codinet.report import inference_time as module
from codinet.report.inference_time import FILE, InferenceTime, inference_time
from codinet.report.run_data import Run
from codinet.runs import RunFolder

CPU = torch.device("cpu")


@pytest.fixture
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "IMAGES", 8)


def timed(run: Run, folder: Path, network: str = "digest") -> tuple[InferenceTime | None, list[str]]:
    """The time of a run, read from and kept in another folder."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes((run.folder.path / "model.safetensors").read_bytes())
    notes: list[str] = []
    moved = dataclasses.replace(run.folder, path=folder)
    return inference_time(moved, run.paths, network, CPU, note=notes.append), notes


@pytest.mark.usefixtures("few_calls")
def test_a_time_is_measured_once_per_network(runs: list[Run], tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    found, notes = timed(runs[0], tmp_path)
    assert notes == []
    assert found is not None
    assert (found.engine, found.static_engine, found.threads) == ("branch", "static", 1)
    assert min(found.run_ms, found.static_ms) > 0
    assert found.images == min(8, len(runs[0].paths.label_T))
    assert found.device
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)

    content = json.loads((tmp_path / FILE).read_text())
    content["time"] |= {"run_ms": 1.0, "static_ms": 2.5}
    (tmp_path / FILE).write_text(json.dumps(content))
    again, _ = timed(runs[0], tmp_path)
    assert again is not None
    assert again.speedup == 2.5
    other, _ = timed(runs[0], tmp_path, network="another")
    assert other is not None
    assert other.speedup != 2.5

    for bad in ('{"format": 1}', "[]", "{", json.dumps({**content, "time": {**content["time"], "run_ms": -1}})):
        (tmp_path / FILE).write_text(bad)
        measured, notes = timed(runs[0], tmp_path)
        assert measured is not None
        assert measured.run_ms > 0
        assert notes == []


@pytest.mark.usefixtures("few_calls")
def test_a_static_run_takes_its_own_time(runs: list[Run], tmp_path: Path) -> None:
    found, _ = timed(runs[2], tmp_path)
    assert found is not None
    assert found.speedup == 1
    assert found.engine == found.static_engine == "static"


@pytest.mark.usefixtures("few_calls")
def test_what_fails_is_a_note(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).mkdir()  # which no file can replace
    found, notes = timed(runs[0], tmp_path)
    assert found is not None
    assert [note.startswith("The measured time is not saved: ") for note in notes] == [True]

    def broken(_folder: RunFolder, _device: torch.device) -> None:
        raise RuntimeError("no driver\nmore")

    monkeypatch.setattr(RunFolder, "load_model", broken)
    found, notes = timed(runs[0], tmp_path / "new")
    assert found is None
    assert [note.endswith("is not measured (no driver).") for note in notes] == [True]
