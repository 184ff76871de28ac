import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codinet import files
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
        pytest.raises(UserError, match=r"Another training is running in .*run; wait for it or choose another --out"),
    ):
        loop.train(out, small_run, few, device=CPU, resume=True)
    assert not (out / "metrics.jsonl").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)  # the other one was killed: it is free again
    assert (out / "evaluation.json").exists()


def test_a_refused_training_changes_nothing(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    held_by_another: Callable[[Path], AbstractContextManager[None]],
) -> None:
    out = tmp_path / "run"
    with held_by_another(out / "checkpoints"):
        for resume in (False, True):
            with pytest.raises(UserError, match="Another training is running in"):
                loop.train(out, replace(small_run, seed=5), few, device=CPU, resume=resume)
        assert [path.name for path in out.rglob("*")] == ["checkpoints", ".lock"]


def test_a_training_killed_before_it_wrote_anything_can_be_repeated(
    tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints" / ".lock").touch()
    (out / ".config.json.123.tmp").touch()
    loop.train(out, small_run, few, device=CPU)
    assert (out / "evaluation.json").exists()


def test_checkpoints_without_a_config_continue_the_same_run_only(
    tmp_path: Path, small_run: RunConfig, few: Dataset, assert_same_run: Callable[[Path, Path], None]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    loop.train(whole, small_run, few, device=CPU)
    shutil.copytree(whole, out)
    for name in ("config.json", "evaluation.json", "model.safetensors"):
        (out / name).unlink()
    for other in (replace(small_run, seed=5), replace(small_run, network=replace(small_run.network, arch="resnet32"))):
        with pytest.raises(UserError, match=r"checkpoints of another run \((seed|arch) was .*\); restore"):
            loop.train(out, other, few, device=CPU, resume=True)
        assert not (out / "config.json").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)
    assert_same_run(whole, out)


def test_checkpoints_that_record_no_run_need_its_config(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    out = tmp_path / "run"
    loop.train(out, small_run, few, device=CPU)
    for file in (out / "checkpoints").glob("*.safetensors"):  # as versions before this one wrote them
        tensors, about = files.load_tensors(file)
        del about["run"]
        files.save_tensors(file, tensors, about)
    (out / "evaluation.json").unlink()
    loop.train(out, small_run, few, device=CPU, resume=True)
    for name in ("config.json", "evaluation.json"):
        (out / name).unlink()
    for file in (out / "checkpoints").glob("*.safetensors"):
        tensors, about = files.load_tensors(file)
        about.pop("run", None)
        files.save_tensors(file, tensors, about)
    with pytest.raises(UserError, match=r"holds checkpoints but no config\.json"):
        loop.train(out, small_run, few, device=CPU, resume=True)
