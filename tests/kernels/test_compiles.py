"""Every kernel compiles for an H200, on machines without a GPU too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BLOCK = {"_pack", "conv3x3", "conv3x3_weight", "add_weights", "norm_forward", "norm_backward", "mix_forward"}
BLOCK |= {"mix_backward", "_forward", "_backward", "batch_sums", "mix_inputs"}
ROWS = {"_conv", "_pool", "_pool_parts", "_scores", "_max_pool"}


@pytest.mark.timeout(175)
@pytest.mark.parametrize(
    "names", [{"block": BLOCK, "network": {"network_kernel"}}, {"fit": set()}, {"rows": ROWS}], ids=" ".join
)
def test_kernels_compile_for_an_h200(names: dict[str, set[str]], tmp_path: Path) -> None:
    """`fit` checks that kernels that need too much shared memory are rejected, so it loads none.

    It has a process of its own, because Triton asks for the memory of the device once.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # an empty cache, so that everything is compiled
    command = [sys.executable, str(Path(__file__).with_name("cross_compile.py")), *names]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stderr
    assert {what: set(found) for what, *found in map(str.split, result.stdout.splitlines())} == names
