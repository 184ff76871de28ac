"""Style and types of the whole repository, as `make lint` checks them.

They are tests, so that `make test` runs them beside other tests.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FOLDERS = ["src", "tests", "tools"]


@pytest.mark.timeout(175)  # without a cache, mypy reads all of PyTorch
@pytest.mark.parametrize(
    "words",
    [["ruff", "check", *FOLDERS], ["ruff", "format", "--check", *FOLDERS], ["mypy"]],
    ids=["style", "format", "types"],
)
def test_it_finds_nothing(words: list[str]) -> None:
    program = BIN / words[0]
    if not program.exists():
        pytest.skip(f"{words[0]} is not installed beside {sys.executable}")
    found = subprocess.run([program, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert found.returncode == 0, found.stdout + found.stderr
