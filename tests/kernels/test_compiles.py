"""Every kernel compiles for the GPU it was made for, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TRAINING = {"_pack", "conv3x3", "conv3x3_weight", "add_weights", "norm_forward", "norm_backward", "mix_forward"}
TRAINING |= {"mix_backward", "_forward", "_backward"}


def compiled(what: str, folder: Path) -> str:
    """What `cross_compile.py` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)  # nothing compiled earlier is used
    script = Path(__file__).with_name("cross_compile.py")
    done = subprocess.run(
        [sys.executable, str(script), what], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("what", "names"), [("training", TRAINING), ("engine", {"network_kernel"})])
def test_kernels_compile_for_an_h200(what: str, names: set[str], tmp_path: Path) -> None:
    assert set(compiled(what, tmp_path).split()) == names


def test_kernels_that_need_more_shared_memory_than_the_device_has_are_refused(tmp_path: Path) -> None:
    assert compiled("fit", tmp_path).splitlines()[0] == "fit"
