"""Compiled, captured and fused training against the eager one. Needs a GPU: what is captured is a CUDA graph."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from codinet.config import resolve
from codinet.cost import block_costs
from codinet.data.resident import Resident
from codinet.model import create_model
from codinet.presets import paper
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU"),
    pytest.mark.filterwarnings("ignore"),  # compilers have their own to tell, and other versions other ones
]
STEPS = 50


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Sums in one order and in full precision: else two eager runs differ by more than what is tested."""
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False, benchmark=False)
    with flags:
        yield


def _data(device: torch.device) -> Resident:
    """Noisy pictures, one to a class: of the size the kernels are made for, and something to learn."""
    random = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, 10, (1000,), generator=random)
    pictures_NCHW = torch.randn(10, 3, 32, 32, generator=random)[labels_N] + torch.randn(
        1000, 3, 32, 32, generator=random
    )
    bytes_NCHW = (128 + 40 * pictures_NCHW).clamp(0, 255).byte()
    mean_C, std_C = torch.full((3,), 128.0), torch.full((3,), 56.0)
    return Resident(bytes_NCHW.to(device), labels_N.to(device), mean_C.to(device), std_C.to(device))


def _losses(mode: str, *, amp: bool) -> list[float]:
    """Of the first steps of the paper's recipe."""
    device = torch.device("cuda")
    data, config = _data(device), paper("pictures")
    config = replace(config, losses=replace(config.losses, budget=0.6), schedule=replace(config.schedule, batch=128))
    config = resolve(config, gpu=True)
    torch.manual_seed(0)
    model = create_model("resnet20").to(device).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stage = stages_of(config)[0]
    step = Step(
        model,
        data,
        block_costs(model, (3, 32, 32)),
        config,
        stage,
        BudgetController(0.6, steps=1000, device=device),
        pad=4,
        flip=True,
        amp=amp,
        speed={"eager": Speed, "graph": accelerate.compiled, "kernels": accelerate.fused}[mode](),
    )
    torch.cuda.manual_seed(1)
    go = step if mode == "eager" else accelerate.capture(step)
    places, found = torch.Generator().manual_seed(2), []
    for i in range(STEPS):
        step.index_L.copy_(torch.randperm(len(data), generator=places)[:128])
        step.lr.fill_(stage.lr_at(i / 100))
        step.sums.zero_()
        go()
        found.append(step.means()["loss"])
    return found


def test_graphed_and_compiled_training_follows_eager() -> None:
    assert _losses("graph", amp=False) == pytest.approx(_losses("eager", amp=False), rel=1e-3)


def test_fused_kernels_follow_eager_as_closely_as_bfloat16_allows() -> None:
    pytest.importorskip("triton")
    assert _losses("kernels", amp=True) == pytest.approx(_losses("eager", amp=True), rel=0.05)
