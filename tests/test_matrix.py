"""Two networks of timm through every command; `make matrix` plays all of `tests.matrix.NETWORKS`."""

import importlib.util
from pathlib import Path

import pytest
from tests.matrix import play

if any(importlib.util.find_spec(name) is None for name in ("timm", "onnxruntime", "matplotlib")):
    pytest.skip("requires timm, onnxruntime and matplotlib", allow_module_level=True)


@pytest.mark.parametrize("arch", ["timm:test_resnet", "timm:test_convnext"])
def test_every_command_works_on_a_network_of_a_library(arch: str, tmp_path: Path) -> None:
    row = play(arch, 32, tmp_path)
    assert row.blocks > 0
    assert 0 < row.cost_share <= 1.05
