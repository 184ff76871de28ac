from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import files
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.train.checkpoint import KEEP, Checkpoint, Position, RunIdentity, latest, restore, restore_step, save
from codinet.train.step import Step

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]
RUN = RunIdentity({"source": "digits", "seed": 0, "network": {"arch": "resnet20"}}, data="0" * 64)


@pytest.fixture
def step(two_blocks: Network, make_step: MakeStep) -> Step:
    return make_step(two_blocks(0))


def keep(folder: Path, step: Step, *positions: Position) -> None:
    for position in positions:
        save(folder, position, step.model, step, step.controller, RUN)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-9] ^= 16
    file.write_bytes(content)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw", "decay_norms": False, "clip": 0.5}])
def test_a_step_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, two_blocks: Network, make_step: MakeStep, settings: dict[str, Any]
) -> None:
    step = make_step(two_blocks(0), **settings)
    torch.manual_seed(3)
    for _ in range(2):
        step()
    keep(tmp_path / "c", step, Position(0, 0, 2))
    for _ in range(2):
        step()

    torch.manual_seed(99)
    other = make_step(two_blocks(1), **settings)
    found = latest(tmp_path / "c", pytest.fail)
    assert found is not None
    assert found.position == Position(0, 0, 2)
    kinds = {"exp_avg", "exp_avg_sq", "updates"} if settings else {"momentum"}
    assert {f"{kind}.fc.bias" for kind in kinds} == {name for name in step.optimizer_state() if "fc.bias" in name}
    restore(found, other.model, other.controller)
    restore_step(found, other)
    for _ in range(2):
        other()

    for name, tensor in step.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert all(torch.equal(tensor, other.optimizer_state()[name]) for name, tensor in step.optimizer_state().items())
    assert step.means() == other.means()
    assert step.controller is not None
    assert other.controller is not None
    assert step.controller.state() == other.controller.state()


def test_a_new_stage_starts_without_momentum_and_sums(
    tmp_path: Path, step: Step, two_blocks: Network, make_step: MakeStep
) -> None:
    step()
    keep(tmp_path / "c", step, Position(1, 0, 0, rows=5))
    found = latest(tmp_path / "c", pytest.fail)
    assert found is not None
    other = make_step(two_blocks(1), stage=1)
    restore_step(found, other)
    assert not any(tensor.any() for tensor in other.optimizer_state().values())
    assert not other.sums.any()


def test_the_newest_two_are_kept(tmp_path: Path, step: Step) -> None:
    places = [Position(0, 1), Position(0, 1, 7), Position(0, 2), Position(0, 10), Position(1, 0)]
    for number, place in enumerate(places):
        keep(tmp_path / "c", step, place)
        kept = [each.file_name for each in places[: number + 1][-KEEP:]]
        assert names(tmp_path / "c") == kept
        found = latest(tmp_path / "c", pytest.fail)
        assert found is not None
        assert found.position == place


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "missing", pytest.fail) is None
    (tmp_path / ".0-00001-0000000.safetensors.99.tmp").write_bytes(b"half")
    assert latest(tmp_path, pytest.fail) is None


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path: Path, step: Step) -> None:
    keep(tmp_path / "c", step, Position(0, 1), Position(0, 2))
    spoil(tmp_path / "c" / Position(0, 2).file_name)
    said: list[str] = []
    found = latest(tmp_path / "c", said.append)
    assert found is not None
    assert found.position == Position(0, 1)
    (sentence,) = said
    assert Position(0, 2).file_name in sentence
    assert sentence.endswith("Going back to the checkpoint before it.")


def test_a_sealed_file_of_another_kind_is_no_checkpoint(tmp_path: Path, step: Step) -> None:
    save(tmp_path, Position(0, 1), step.model, step, None, RUN)
    files.save_tensors(tmp_path / "0-00002-0000000.safetensors", {"x": torch.zeros(1)}, about={"kind": "model"})
    warnings: list[str] = []
    found = latest(tmp_path, warnings.append)
    assert found is not None
    assert found.position == Position(0, 1)
    (warning,) = warnings
    assert "0-00002-0000000.safetensors is not a checkpoint. Going back to the checkpoint before it." in warning


def test_where_all_are_damaged_each_is_named(tmp_path: Path, step: Step) -> None:
    keep(tmp_path / "c", step, Position(0, 1), Position(0, 2))
    spoil(tmp_path / "c" / Position(0, 1).file_name)
    (tmp_path / "c" / Position(0, 2).file_name).write_bytes(b"")
    said: list[str] = []
    assert latest(tmp_path / "c", said.append) is None
    assert Position(0, 2).file_name in said[0]
    assert Position(0, 1).file_name in said[1]
    assert said[1].endswith("Going back to the start, because no other checkpoint is left.")


def test_a_run_that_went_back_keeps_what_it_writes_and_drops_the_damaged(tmp_path: Path, step: Step) -> None:
    keep(tmp_path / "c", step, Position(0, 4), Position(0, 5))
    for name in names(tmp_path / "c"):
        spoil(tmp_path / "c" / name)
    keep(tmp_path / "c", step, Position(0, 1))
    assert names(tmp_path / "c") == [Position(0, 1).file_name]
    assert latest(tmp_path / "c", pytest.fail) is not None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (RUN._replace(config=RUN.config | {"seed": 5}), "seed was 0, now 5"),
        (RUN._replace(config=RUN.config | {"network": {"arch": "resnet32"}}), "arch was resnet20, now resnet32"),
        (RUN._replace(config=RUN.config | {"source": "cifar10"}), "source was digits, now cifar10"),
        (RUN._replace(data="1" * 64), "other data"),
    ],
)
def test_checkpoints_of_another_run_are_refused(tmp_path: Path, step: Step, other: RunIdentity, why: str) -> None:
    keep(tmp_path, step, Position(0, 1))
    found = latest(tmp_path, pytest.fail, RUN)
    assert found is not None
    assert found.run == RUN
    with pytest.raises(UserError, match=rf"checkpoints of another run \({why}\)"):
        latest(tmp_path, pytest.fail, other)


def test_own_data_may_move(tmp_path: Path, step: Step) -> None:
    here, there = (RUN._replace(config=RUN.config | {"source": place}) for place in ("/here/photos", "/there/photos"))
    save(tmp_path, Position(0, 1), step.model, step, step.controller, here)
    assert latest(tmp_path, pytest.fail, there) is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model.fc.bias": None}, r"it lacks model\.fc\.bias"),
        ({"model.fc.bias": torch.zeros(5)}, r"its model\.fc\.bias is torch\.float32 \[5\] where torch\.float32 \[3\]"),
        ({"model.fc.bias": torch.zeros(3, dtype=torch.float64)}, r"its model\.fc\.bias is torch\.float64"),
        ({"model.more": torch.zeros(1)}, r"it holds model\.more, which this run does not have"),
        ({"controller.cost": None}, r"it lacks controller\.cost"),
        ({"momentum.fc.bias": None}, r"it lacks momentum\.fc\.bias"),
        ({"sums": None}, "its sums are missing"),
        ({"random.cpu": None}, "its random state or statistics cannot be used"),
        ({"random.cpu": torch.zeros(3, dtype=torch.uint8)}, "its random state or statistics cannot be used"),
        ({"random.cpu": torch.zeros(5056)}, "its random state or statistics cannot be used"),
    ],
)
def test_a_valid_file_that_lacks_something_is_refused(
    tmp_path: Path, step: Step, change: dict[str, torch.Tensor | None], why: str
) -> None:
    step()
    keep(tmp_path, step, Position(0, 0, 1))
    found = latest(tmp_path, pytest.fail)
    assert found is not None
    tensors = {name: tensor for name, tensor in (found.tensors | change).items() if tensor is not None}
    with pytest.raises(UserError, match=rf"0000001\.safetensors does not fit this run: {why}.*; remove it to continue"):
        _restore_all(Checkpoint(found.position, tensors, found.run, found.file), step)


def _restore_all(checkpoint: Checkpoint, step: Step) -> None:
    restore(checkpoint, step.model, step.controller)
    restore_step(checkpoint, step)
