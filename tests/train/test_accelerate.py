"""Compiled, captured and fused training against the eager one.

Without a GPU only compiled training is tested, of a network with few shapes of features: each of them takes the
compiler several seconds.
"""

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from codinet.config import ExtraConfig
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident
from codinet.model import RoutedNetwork
from codinet.presets import paper
from codinet.resolving import resolve
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step, Task

# Compilers give warnings of their own, which differ between versions.
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 50
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SIZE, BATCH = (32, 128) if GPU else (8, 32)
CHANNELS, CLASSES = (3, 10) if GPU else (1, 3)
# The learning rate. At 0.01 a difference of 1e-6 in one weight grows to 0.3 % of an eager loss within these steps.
RATE = 0.001
Make = Callable[[int], RoutedNetwork]


@pytest.fixture
def make(two_blocks: Make) -> Make:
    """The network with the weights of a seed."""

    def build(seed: int) -> RoutedNetwork:
        torch.manual_seed(seed)
        return create_model("resnet20")

    return build if GPU else two_blocks


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Sums in one order and in full precision: else two eager runs differ by more than what is tested."""
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False, benchmark=False)
    with flags:
        yield


def _data() -> Resident:
    """Noisy pictures, one per class, so that there is something to learn."""
    random = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, CLASSES, (1000,), generator=random)
    classes_KCHW = torch.randn(CLASSES, CHANNELS, SIZE, SIZE, generator=random)
    pictures_NCHW = classes_KCHW[labels_N] + torch.randn(1000, CHANNELS, SIZE, SIZE, generator=random)
    bytes_NCHW = (128 + 40 * pictures_NCHW).clamp(0, 255).byte()
    mean_C, std_C = torch.full((CHANNELS,), 128.0), torch.full((CHANNELS,), 56.0)
    return Resident(bytes_NCHW.to(DEVICE), labels_N.to(DEVICE), mean_C.to(DEVICE), std_C.to(DEVICE))


def _make_step(make: Make, mode: str, *, amp: bool) -> Step:
    """A step of the paper's recipe."""
    data, config = _data(), paper("pictures")
    config = replace(
        config,
        losses=replace(config.losses, budget=0.6),
        schedule=replace(config.schedule, batch=BATCH),
        extra=ExtraConfig(cutout=SIZE // 4),
    )
    config = resolve(config, gpu=GPU)
    model = make(0).to(DEVICE).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stage = stages_of(config)[0]
    table, controller = block_costs(model, (CHANNELS, SIZE, SIZE)), BudgetController(0.6, steps=1000, device=DEVICE)
    speed = {"eager": Speed, "graph": accelerate.compiled, "kernels": accelerate.fused}[mode]()
    views = Augmentation((SIZE, SIZE), config.schedule.views, flip=True, pad=SIZE // 8, blank=config.extra.cutout)
    return Step(Task(model, data, table, config, views, controller, amp=amp), stage, speed)


def _losses(make: Make, mode: str, *, amp: bool) -> list[float]:
    """The losses of the first steps."""
    step = _make_step(make, mode, amp=amp)
    torch.manual_seed(1)
    go = accelerate.capture(step) if GPU and mode != "eager" else step
    places, found = torch.Generator().manual_seed(2), []
    for _ in range(STEPS):
        step.index_L.copy_(torch.randperm(len(step.data), generator=places)[:BATCH])
        step.lr.fill_(RATE)
        step.sums.zero_()
        go()
        found.append(step.means()["loss"])
    return found


@pytest.mark.skipif(not GPU and shutil.which("c++") is None, reason="compiling for a CPU needs a C++ compiler")
def test_graphed_and_compiled_training_follows_eager(make: Make) -> None:
    assert _losses(make, "graph", amp=False) == pytest.approx(_losses(make, "eager", amp=False), rel=1e-3)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_fused_kernels_follow_eager_as_closely_as_bfloat16_allows(make: Make) -> None:
    pytest.importorskip("triton")
    assert _losses(make, "kernels", amp=True) == pytest.approx(_losses(make, "eager", amp=True), rel=0.05)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_capturing_a_step_leaves_the_settings_of_cudnn(make: Make) -> None:
    assert not torch.backends.cudnn.benchmark
    _losses(make, "graph", amp=False)
    assert not torch.backends.cudnn.benchmark


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_a_captured_step_stays_as_long_as_its_graph(make: Make) -> None:
    step = _make_step(make, "graph", amp=False)
    replay, kept = accelerate.capture(step), weakref.ref(step)
    del step
    gc.collect()
    assert kept() is not None
    replay()
