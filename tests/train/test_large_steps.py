"""What makes large steps possible and fast: parts of a step, blocks that are computed again, views that grow."""

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.cli import main
from codinet.config import DataConfig, RunConfig, ScheduleConfig
from codinet.model import RoutedNetwork
from codinet.runs import RunFolder
from codinet.train import accelerate
from codinet.train.accelerate import Execution, build_step
from codinet.train.stages import view_side
from codinet.train.step import SUMS, Speed, Step

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]
SameRun = Callable[[Path, Path], None]
Life = Callable[..., dict[str, Any]]


def test_gradients_of_the_parts_of_a_step_are_averaged(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    twin = copy.deepcopy(model)
    step = make_step(model, accumulate=2)
    step.lr.zero_()
    torch.manual_seed(7)
    step()
    half = make_step(twin)
    half.lr.zero_()
    half.index_L, half.part = half.index_L[:2].clone(), 2
    half.image_L = half.index_L.clone()
    torch.manual_seed(7)
    gradients, figures = [], []
    for start in (0, 2):
        half.index_L.copy_(torch.arange(start, start + 2))
        half.sums.zero_()
        assert half.controller is not None
        half.controller.integral.zero_()  # both parts of a step have the same γ
        half.controller.cost.fill_(1.0)
        half()
        gradients.append([weight.grad for weight in twin.parameters()])
        figures.append(half.sums.clone())
    for weight, first, second in zip(model.parameters(), *gradients, strict=True):
        torch.testing.assert_close(weight.grad, (first + second) / 2)
    torch.testing.assert_close(step.sums, torch.stack(figures).mean(dim=0))
    assert step.sums[SUMS.index("steps")] == 1


def saved_bytes(run: Callable[[], None]) -> int:
    """The bytes that are kept for the backward pass, without those that blocks keep for themselves."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(kept.values())


@pytest.mark.parametrize("router", ["fc", "rnn"])
def test_recomputed_blocks_give_the_same_run(
    train_words: Callable[..., list[str]], tmp_path: Path, assert_same_run: SameRun, router: str
) -> None:
    words = ("--router", router, "--ema", "0.9", "--accumulate", "2")
    assert main(train_words(tmp_path / "kept", *words)) == 0
    assert main(train_words(tmp_path / "again", *words, "--recompute")) == 0
    assert_same_run(tmp_path / "kept", tmp_path / "again")


def test_recomputed_blocks_keep_less_memory_and_the_same_statistics(two_blocks: Network, make_step: MakeStep) -> None:
    networks = [two_blocks(0), two_blocks(0)]
    steps = []
    for model, recompute in zip(networks, (False, True), strict=True):
        task = make_step(model).task
        built = build_step(task, make_step(model).stage, Execution(compile=False, recompute=recompute), pytest.fail)
        built.step.lr.fill_(0.1)
        model.train()
        steps.append(built.step)
    kept = []
    for step in steps:
        torch.manual_seed(3)
        kept.append(saved_bytes(step))
    assert kept[1] < kept[0] / 2
    for name, tensor in networks[0].state_dict().items():
        assert torch.equal(tensor, networks[1].state_dict()[name]), name
    assert steps[1].sums.equal(steps[0].sums)


def test_batch_norms_keep_their_momentum_after_a_failure(two_blocks: Network) -> None:
    model = two_blocks(0)
    speed = accelerate._recomputing(Speed(), model)
    momenta = [part.momentum for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    with contextlib.suppress(KeyError), speed.backward():
        raise KeyError
    assert momenta == [part.momentum for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)] != []


def test_views_grow_worked_example() -> None:
    config = RunConfig("", data=DataConfig(grow_from=128), schedule=ScheduleConfig(epochs=11))
    sides = [view_side(config, 224, epoch) for epoch in range(12)]  # the last one is of stage 2
    assert sides == [128, 128, 128, 160, 160, 192, 192, 224, 224, 224, 224, 224]
    assert view_side(RunConfig(""), 224, 0) == 224


@given(st.integers(8, 300), st.integers(0, 300), st.integers(1, 300))
def test_views_never_shrink_and_end_at_the_size_of_the_images(first: int, more: int, epochs: int) -> None:
    config = RunConfig("", data=DataConfig(grow_from=first), schedule=ScheduleConfig(epochs=epochs))
    sides = [view_side(config, first + more, epoch) for epoch in range(epochs)]
    assert sides == sorted(sides)
    assert sides[-1] == first + more
    assert sides[0] >= first
    assert len(set(sides)) <= max(1, more // 32) + 1


GROWING = ("--arch", "resnet14", "--view", "resized", "--image-size", "40", "--grow-from", "8", "--start", "none")


def test_a_run_whose_views_grow_resumes_exactly(
    photos: Path, tmp_path: Path, life: Life, assert_same_run: SameRun
) -> None:
    words = (*GROWING, "--batch", "8", "--epochs", "3", "--ema", "0.9")
    whole = life(tmp_path / "whole", *words, source=photos)
    assert whole["codes"] == [0], whole["said"]
    assert "40×40, views of random parts, at first 8×8" in whole["said"]
    killed = life(tmp_path / "killed", *words, source=photos, save_seconds=-1, ask_every=1, after=60, saves=9)
    assert killed["signal"] is not None
    assert life(tmp_path / "killed", *words, source=photos)["codes"] == [0]
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_every_size_gets_its_own_step(photos: Path, tmp_path: Path, train_words: Any, monkeypatch: Any) -> None:
    sizes, real = [], Step.__init__

    def seen(self: Step, task: Any, *rest: Any) -> None:
        sizes.append(task.augmentation.size)
        real(self, task, *rest)

    monkeypatch.setattr(Step, "__init__", seen)
    words = train_words(tmp_path / "run", *GROWING, "--batch", "8", "--epochs", "3", source=photos)
    assert main(words) == 0
    assert sizes == [(8, 8), (40, 40), (40, 40)]  # stage 1, its last epoch, stage 2
    assert RunFolder.open(tmp_path / "run").config.data.grow_from == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--accumulate", "3"], "--accumulate must divide --batch 16, got 3."),
        (["--accumulate", "0"], "--accumulate must divide --batch 16, got 0."),
        (["--grow-from", "4"], "--grow-from must be 8 or more, got 4."),
        (["--grow-from", "8", "--view", "padded"], "--grow-from requires --view resized."),
        (["--grow-from", "8"], "--grow-from requires --view resized, and so an image folder or a packed data set."),
    ],
)
def test_values_that_cannot_work(
    words: list[str], sentence: str, train_words: Callable[..., list[str]], tmp_path: Path, capsys: Any
) -> None:
    assert main(train_words(tmp_path / "run", *words)) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_networks_of_one_size_cannot_grow(photos: Path, tmp_path: Path, train_words: Any, capsys: Any) -> None:
    words = ["--arch", "timm:vit_tiny_patch16_224", "--view", "resized", "--image-size", "32", "--grow-from", "16"]
    assert main(train_words(tmp_path / "run", *words, "--crop", "1", source=photos)) == 2
    assert "--grow-from 16 cannot be used with timm:vit_tiny_patch16_224: " in capsys.readouterr().err
    assert main(train_words(tmp_path / "run", *GROWING, "--image-size", "8", "--grow-from", "9", source=photos)) == 2
    assert "--grow-from must be at most 8, the side of the images, got 9." in capsys.readouterr().err
