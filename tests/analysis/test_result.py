import json
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.analysis.result import FORMAT, JSON, TENSORS, RunAnalysis, _digest
from codinet.errors import UserError
from codinet.files import DamagedError, save_tensors


def some() -> RunAnalysis:
    return RunAnalysis({"network": "abc", "seed": 0}, {"kl": {"mean": 0.1 + 0.2}}, {"kl": torch.rand(5)})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    one = some()
    one.save(tmp_path)
    other = RunAnalysis.load(tmp_path)
    assert other is not None
    assert (other.made_from, other.figures) == (one.made_from, one.figures)
    assert torch.equal(other.tensors["kl"], one.tensors["kl"])


@pytest.mark.parametrize("name", [JSON, TENSORS])
def test_half_an_analysis_is_none(tmp_path: Path, name: str) -> None:
    assert RunAnalysis.load(tmp_path) is None
    some().save(tmp_path)
    (tmp_path / name).unlink()
    assert RunAnalysis.load(tmp_path) is None


def test_another_version_is_none(tmp_path: Path) -> None:
    some().save(tmp_path)
    content = json.loads((tmp_path / JSON).read_text())
    (tmp_path / JSON).write_text(json.dumps(content | {"format": 99}))
    assert RunAnalysis.load(tmp_path) is None


def test_changed_figures_and_tensors_are_found_out(tmp_path: Path) -> None:
    some().save(tmp_path)
    whole = (tmp_path / JSON).read_text()
    (tmp_path / JSON).write_text(whole.replace("abc", "abd"))
    with pytest.raises(UserError, match="do not belong together"):
        RunAnalysis.load(tmp_path)
    (tmp_path / JSON).write_text(whole)
    content = bytearray((tmp_path / TENSORS).read_bytes())
    content[-1] ^= 1
    (tmp_path / TENSORS).write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        RunAnalysis.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"figures": None}, {"figures": []}, {"made_from": 3}, {"made_from": {"seed": [1]}}],
)
def test_an_analysis_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    content = {"format": FORMAT, "made_from": {"seed": 0}, "figures": {}} | change
    (tmp_path / JSON).write_text(json.dumps(content))
    save_tensors(tmp_path / TENSORS, {"kl": torch.zeros(1)}, {"json": _digest(content)})
    with pytest.raises(DamagedError, match=r"analysis\.json (is not an analysis|does not say what it was made from)"):
        RunAnalysis.load(tmp_path)
