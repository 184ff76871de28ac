from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from codinet.config import RunConfig
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.train import loop

CPU = torch.device("cpu")


def test_two_trainings_do_not_share_a_run_folder(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    held_by_another: Callable[[Path], AbstractContextManager[None]],
) -> None:
    out = tmp_path / "run"
    with (
        held_by_another(out / "checkpoints"),
        pytest.raises(UserError, match=r"Another training is at work in .*run; wait for it or choose another --out"),
    ):
        loop.train(out, small_run, few, device=CPU, resume=True)
    assert not (out / "metrics.jsonl").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)  # the other one was killed: it is free again
    assert (out / "evaluation.json").exists()
