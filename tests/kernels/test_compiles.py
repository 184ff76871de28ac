"""Every kernel compiles for the GPU it was made for, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TRAINING = {"_pack", "conv3x3", "conv3x3_weight", "add_weights", "norm_forward", "norm_backward", "mix_forward"}
TRAINING |= {"mix_backward", "_forward", "_backward"}


@pytest.mark.parametrize(("what", "names"), [("training", TRAINING), ("engine", {"network_kernel"})])
def test_kernels_compile_for_an_h200(what: str, names: set[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # nothing compiled earlier is taken for granted
    script = Path(__file__).with_name("cross_compile.py")
    done = subprocess.run(
        [sys.executable, str(script), what], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == names
