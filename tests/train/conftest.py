"""A network small enough to follow by hand, a step on it, and trainings that can be killed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from codinet.backbones import BasicBlock, Block
from codinet.bench.run_rate import settle, with_run_rate
from codinet.config import ExtraConfig, LossConfig, RunConfig, ScheduleConfig
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.data import Dataset
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident
from codinet.evaluate import Evaluation
from codinet.model import RoutedNetwork
from codinet.resolving import resolve
from codinet.routers import ROUTERS
from codinet.train import loop
from codinet.train.budget import BudgetController
from codinet.train.reporting import Reporter
from codinet.train.stages import stages_of
from codinet.train.step import Step, Task
from codinet.train.teaching import Teacher

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _a_checkpoint_after_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short it was, so that there is something to go on from."""
    monkeypatch.setattr(loop, "PAUSE_SECONDS", -1)


class TwoBlocks(RoutedNetwork):
    """A stem of four channels, two routed blocks, three classes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.ModuleList(BasicBlock(4, 4, 1, "3x3") for _ in range(2))
        self.fc = nn.Linear(4, 3)
        self.routers = ROUTERS["fc"]([4, 4])
        self.paper_unit = 2

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self.conv(images_BCHW).relu()

    @property
    def blocks(self) -> Sequence[Block]:
        return list(self.body)  # type: ignore[arg-type]

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.fc(x_BCHW.mean(dim=(2, 3)))


@pytest.fixture(scope="session")
def two_blocks() -> Callable[[int], RoutedNetwork]:
    """The network with the weights of a seed."""
    return TwoBlocks


@pytest.fixture(scope="session")
def dozen() -> Resident:
    """Twelve random images of three classes."""
    generator = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(0, 256, (12, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return Resident(images_NCHW, torch.arange(12) % 3, torch.tensor([128.0]), torch.tensor([74.0]))


@pytest.fixture(scope="session")
def sixty() -> Resident:
    """Sixty random images of ten classes."""
    random = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=random)
    return Resident(images_NCHW, torch.arange(60) % 10, torch.full((3,), 128.0), torch.full((3,), 74.0))


@pytest.fixture(scope="session")
def half_open(sixty: Resident) -> RoutedNetwork:
    """A network that runs each block for half of the sixty images. Do not change it."""
    torch.manual_seed(0)
    ((images_NCHW, _),) = sixty.batches(60)
    return with_run_rate(settle(create_model("resnet20"), images_NCHW), images_NCHW, 0.5)


@pytest.fixture
def make_step(dozen: Resident) -> Callable[..., Step]:
    """A step of a stage (0: joint, 1: finetune) on the dozen images, four at a time."""

    def make(
        model: RoutedNetwork,
        losses: LossConfig | None = None,
        *,
        stage: int = 0,
        views: int = 2,
        pad: int = 1,
        flip: bool = True,
        amp: bool = False,
        extra: ExtraConfig | None = None,
        teacher: Teacher | None = None,
        **schedule_settings: Any,
    ) -> Step:
        schedule = ScheduleConfig(epochs=10, finetune=5, batch=4, views=views, weight_decay=0.01, **schedule_settings)
        config = RunConfig("dozen", losses=losses or LossConfig(), schedule=schedule, extra=extra or ExtraConfig())
        config = resolve(config)
        budget = config.losses.budget
        controller = BudgetController(budget, steps=100, device=CPU) if budget is not None else None
        table = block_costs(model, (1, 6, 6))
        views_of = Augmentation((6, 6), views, flip=flip, pad=pad, blank=config.extra.cutout)
        task = Task(model, dozen, table, config, views_of, controller, amp=amp, teacher=teacher)
        step = Step(task, stages_of(config)[stage])
        step.index_L.copy_(torch.arange(4))
        step.lr.fill_(0.1)
        return step

    return make


@pytest.fixture(scope="session")
def life(train_words: Callable[..., list[str]]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Lives a training into a folder, with --resume, to its end or its fate; see lives.py."""
    driver = Path(__file__).with_name("lives.py")
    with subprocess.Popen([sys.executable, driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as lives:

        def live(out: Path, *more: str, size: int = 1, source: Path | None = None, **fate: Any) -> dict[str, Any]:
            assert lives.stdin is not None
            assert lives.stdout is not None
            words = train_words(out, "--resume", *more, **({"source": source} if source else {}))
            request = {"words": words, "out": str(out), "size": size, "fate": fate}
            print(json.dumps(request), file=lives.stdin, flush=True)
            return json.loads(lives.stdout.readline())

        yield live


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty JPEG files of several sizes: bright or dark noise."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for index in range(40):
        place = folder / ("bright" if index % 2 else "dark")
        place.mkdir(exist_ok=True)
        pixels = random.integers(0, 128, (32 + index % 5, 40, 3), dtype=np.uint8) + 127 * (index % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index:02}.jpg")
    return folder


class Stopped(Exception):  # noqa: N818
    """What a test raises to stop a run."""


class Listener(Reporter):
    """Keeps what is said and came of it, and stops the run after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.titles: list[str] = []
        self.warnings: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.steps, self.done, self.stop_after = 0, 0, stop_after
        self.evaluation: Evaluation | None = None

    def begin(self, title: str, *, steps: int, done: int, evaluation: float = 0.0) -> None:
        self.titles.append(title)
        self.done = done

    def advance(self) -> None:
        self.steps += 1
        if self.steps == self.stop_after:
            raise Stopped

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


@pytest.fixture(scope="session")
def train() -> Callable[..., Listener]:
    """Trains to the end, or until it was stopped; gives what was said."""

    def run(out: Path, config: RunConfig, data: Dataset, *, stop_after: int | None = None, **how: Any) -> Listener:
        listener = Listener(stop_after)
        try:
            _, listener.evaluation = loop.train(out, config, data, device=CPU, reporter=listener, **how)
        except Stopped:
            assert stop_after is not None
        return listener

    return run


@pytest.fixture(scope="session")
def whole(
    tmp_path_factory: pytest.TempPathFactory, small_run: RunConfig, few: Dataset, train: Callable[..., Listener]
) -> Path:
    """The run that nothing has stopped: 2 + 1 epochs of four steps."""
    out = tmp_path_factory.mktemp("loop") / "whole"
    train(out, small_run, few)
    return out
