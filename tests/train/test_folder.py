import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from codinet.config import RunConfig
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.train import loop
from codinet.train.folder import alone_in

CPU = torch.device("cpu")
HOLD = """
import sys
from pathlib import Path
from codinet.train.folder import alone_in

with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_training(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder until it is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_two_trainings_do_not_share_a_run_folder(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with another_training(out), pytest.raises(UserError, match=r"Another training is at work in .*run; wait for it"):
        loop.train(out, small_run, few, device=CPU, resume=True)
    assert not (out / "metrics.jsonl").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)  # the other one was killed: it is free again
    assert (out / "evaluation.json").exists()


def test_a_folder_is_free_after_a_training(tmp_path: Path) -> None:
    for _ in range(2):
        with alone_in(tmp_path):
            pass
    with another_training(tmp_path):
        pass
