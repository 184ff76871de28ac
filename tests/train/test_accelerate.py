"""Compiled, captured and fused training against the eager one. Needs a GPU: what is captured is a CUDA graph."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from codinet.config import resolve
from codinet.cost import block_costs
from codinet.data.digits import load_digits
from codinet.data.resident import Resident
from codinet.model import create_model
from codinet.presets import paper
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
STEPS = 50


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Sums in one order and in full precision: else two eager runs differ by more than what is tested."""
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False, benchmark=False)
    with flags:
        yield


def _losses(mode: str, *, amp: bool) -> list[float]:
    """Of the first steps of the paper's recipe on digits."""
    device, dataset = torch.device("cuda"), load_digits()
    config = paper("digits")
    config = replace(config, losses=replace(config.losses, budget=0.6), schedule=replace(config.schedule, batch=128))
    config = resolve(config, gpu=True)
    torch.manual_seed(0)
    model = create_model("resnet20", in_channels=dataset.image_shape[0]).to(device).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stage = stages_of(config)[0]
    step = Step(
        model,
        Resident.of(dataset.train, dataset, device),
        block_costs(model, dataset.image_shape),
        config,
        stage,
        BudgetController(0.6, steps=1000, device=device),
        pad=dataset.pad,
        flip=dataset.flip,
        amp=amp,
        speed={"eager": Speed, "graph": accelerate.compiled, "kernels": accelerate.fused}[mode](),
    )
    torch.cuda.manual_seed(1)
    go = step if mode == "eager" else accelerate.capture(step)
    places, found = torch.Generator().manual_seed(2), []
    for i in range(STEPS):
        step.index_L.copy_(torch.randperm(len(dataset.train), generator=places)[:128])
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
