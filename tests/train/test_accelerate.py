"""Compiled, captured and fused training against the eager one. Without a GPU, compiled training alone."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from codinet.config import ExtraConfig, resolve
from codinet.cost import block_costs
from codinet.data.resident import Resident
from codinet.model import create_model
from codinet.presets import paper
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step

# Compilers have their own warnings to tell, and other versions other ones.
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 50
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SIZE, BATCH = (32, 128) if GPU else (8, 32)
# Of learning. At 0.01 a millionth more in one weight grows to 0.3 % of an eager loss within these steps.
RATE = 0.001


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Sums in one order and in full precision: else two eager runs differ by more than what is tested."""
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False, benchmark=False)
    with flags:
        yield


def _data() -> Resident:
    """Noisy pictures, one to a class: something to learn."""
    random = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, 10, (1000,), generator=random)
    classes_KCHW = torch.randn(10, 3, SIZE, SIZE, generator=random)
    pictures_NCHW = classes_KCHW[labels_N] + torch.randn(1000, 3, SIZE, SIZE, generator=random)
    bytes_NCHW = (128 + 40 * pictures_NCHW).clamp(0, 255).byte()
    mean_C, std_C = torch.full((3,), 128.0), torch.full((3,), 56.0)
    return Resident(*(tensor.to(DEVICE) for tensor in (bytes_NCHW, labels_N, mean_C, std_C)))


def _losses(mode: str, *, amp: bool) -> list[float]:
    """Of the first steps of the paper's recipe."""
    data, config = _data(), paper("pictures")
    config = replace(
        config,
        losses=replace(config.losses, budget=0.6),
        schedule=replace(config.schedule, batch=BATCH),
        extra=ExtraConfig(cutout=SIZE // 4),
    )
    config = resolve(config, gpu=GPU)
    torch.manual_seed(0)
    model = create_model("resnet20").to(DEVICE).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stage = stages_of(config)[0]
    step = Step(
        model,
        data,
        block_costs(model, (3, SIZE, SIZE)),
        config,
        stage,
        BudgetController(0.6, steps=1000, device=DEVICE),
        pad=SIZE // 8,
        flip=True,
        amp=amp,
        speed={"eager": Speed, "graph": accelerate.compiled, "kernels": accelerate.fused}[mode](),
    )
    torch.manual_seed(1)
    go = accelerate.capture(step) if GPU and mode != "eager" else step
    places, found = torch.Generator().manual_seed(2), []
    for _ in range(STEPS):
        step.index_L.copy_(torch.randperm(len(data), generator=places)[:BATCH])
        step.lr.fill_(RATE)
        step.sums.zero_()
        go()
        found.append(step.means()["loss"])
    return found


@pytest.mark.skipif(not GPU and shutil.which("c++") is None, reason="compiling for a CPU needs a C++ compiler")
def test_graphed_and_compiled_training_follows_eager() -> None:
    assert _losses("graph", amp=False) == pytest.approx(_losses("eager", amp=False), rel=1e-3)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_fused_kernels_follow_eager_as_closely_as_bfloat16_allows() -> None:
    pytest.importorskip("triton")
    assert _losses("kernels", amp=True) == pytest.approx(_losses("eager", amp=True), rel=0.05)
