from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from codinet import files
from codinet.model import RoutedNetwork
from codinet.train.checkpoint import KEEP, Position, latest, restore, restore_step, save
from codinet.train.step import Step

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]


@pytest.fixture
def step(two_blocks: Network, make_step: MakeStep) -> Step:
    return make_step(two_blocks(0))


def keep(folder: Path, step: Step, *positions: Position) -> None:
    for position in positions:
        save(folder, position, step.model, step, step.controller)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-9] ^= 16
    file.write_bytes(content)


def test_a_step_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, step: Step, two_blocks: Network, make_step: MakeStep
) -> None:
    torch.manual_seed(3)
    for _ in range(2):
        step()
    keep(tmp_path / "c", step, Position(0, 0, 2))
    for _ in range(2):
        step()

    torch.manual_seed(99)
    other = make_step(two_blocks(1))
    found = latest(tmp_path / "c", pytest.fail)
    assert found is not None
    assert found.position == Position(0, 0, 2)
    restore(found, other.model, other.controller)
    restore_step(found, other)
    for _ in range(2):
        other()

    for name, tensor in step.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert all(torch.equal(tensor, other.momentum()[name]) for name, tensor in step.momentum().items())
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
    assert not any(tensor.any() for tensor in other.momentum().values())
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
    save(tmp_path, Position(0, 1), step.model, step, None)
    files.save_tensors(tmp_path / "0-00002-0000000.safetensors", {"x": torch.zeros(1)}, about={"kind": "model"})
    warnings: list[str] = []
    found = latest(tmp_path, warnings.append)
    assert found is not None
    assert found.position == Position(0, 1)
    (warning,) = warnings
    assert "0-00002-0000000.safetensors is no checkpoint. Going back to the checkpoint before it." in warning


def test_where_all_are_damaged_each_is_named(tmp_path: Path, step: Step) -> None:
    keep(tmp_path / "c", step, Position(0, 1), Position(0, 2))
    spoil(tmp_path / "c" / Position(0, 1).file_name)
    (tmp_path / "c" / Position(0, 2).file_name).write_bytes(b"")
    said: list[str] = []
    assert latest(tmp_path / "c", said.append) is None
    assert Position(0, 2).file_name in said[0]
    assert Position(0, 1).file_name in said[1]
    assert said[1].endswith("Going back to the beginning, for no other checkpoint is left.")


def test_a_run_that_went_back_keeps_what_it_writes_and_drops_the_damaged(tmp_path: Path, step: Step) -> None:
    keep(tmp_path / "c", step, Position(0, 4), Position(0, 5))
    for name in names(tmp_path / "c"):
        spoil(tmp_path / "c" / name)
    keep(tmp_path / "c", step, Position(0, 1))
    assert names(tmp_path / "c") == [Position(0, 1).file_name]
    assert latest(tmp_path / "c", pytest.fail) is not None
