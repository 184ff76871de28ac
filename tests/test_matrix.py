"""Two networks of timm through every command; `make matrix` plays all of `tests.matrix.NETWORKS`."""

import importlib.util
from pathlib import Path

import pytest
from tests.matrix import play, require_same_answers

if any(importlib.util.find_spec(name) is None for name in ("timm", "onnxruntime", "matplotlib")):
    pytest.skip("requires timm, onnxruntime and matplotlib", allow_module_level=True)


def test_every_command_works_on_networks_of_a_library(tmp_path: Path) -> None:
    for name in ("test_resnet", "test_convnext"):
        row = play(f"timm:{name}", 32, tmp_path / name)
        assert row.blocks > 0
        assert 0 < row.cost_share <= 1.05
    require_same_answers(*tmp_path.iterdir())
