"""Averaging, smoothing, blanks and a teacher within a captured step against the eager one. Needs a GPU."""

from dataclasses import replace

import pytest
import torch

from codinet.config import ExtraConfig
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.data.batches import Resident
from codinet.data.dataset import Dataset, Split
from codinet.presets import paper
from codinet.resolving import resolve
from codinet.run_reader import DataInfo
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.splits import augmentation_of
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step, Task
from codinet.train.teaching import Teacher

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU"),
    pytest.mark.filterwarnings("ignore"),  # compilers have their own warnings to tell, and other versions other ones
]
STEPS = 20
MODES = {"eager": Speed, "graph": accelerate.compiled, "kernels": accelerate.fused}


def _pictures() -> Dataset:
    random = torch.Generator().manual_seed(0)
    labels_N = torch.randint(0, 10, (1000,), generator=random)
    pictures_NCHW = torch.randn(10, 3, 32, 32, generator=random)[labels_N]
    noisy_NCHW = pictures_NCHW + torch.randn(1000, 3, 32, 32, generator=random)
    split = Split((128 + 40 * noisy_NCHW).clamp(0, 255).byte(), labels_N)
    return Dataset("pictures", split, split, tuple("0123456789"), (128.0,) * 3, (56.0,) * 3, pad=4, flip=True)


def _take_steps(mode: str, *, stage: int, amp: bool) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Loss and distillation of each step, and what was averaged."""
    device, dataset, config = torch.device("cuda"), _pictures(), paper("pictures")
    data = Resident.of(dataset.train, dataset, device)
    config = replace(
        config,
        losses=replace(config.losses, budget=0.6),
        schedule=replace(config.schedule, batch=128),
        extra=ExtraConfig(label_smoothing=0.1, ema=0.999, teacher="t", distill=0.5, cutout=8),
    )
    config = resolve(config, gpu=True)
    torch.manual_seed(1)
    # Other statistics than the data's own, so that images are rescaled for it.
    known = replace(DataInfo.of(dataset), mean=(120.0,) * 3)
    teacher = Teacher(create_model("resnet20", routed=False), known, dataset, device)
    torch.manual_seed(0)
    model = create_model("resnet20").to(device).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    of = stages_of(config)[stage]
    table, controller = block_costs(model, (3, 32, 32)), BudgetController(0.6, steps=1000, device=device)
    views = augmentation_of(config, dataset)
    task = Task(model, data, table, config, views, controller, amp=amp, teacher=teacher)
    step = Step(task, of, MODES[mode]())
    torch.cuda.manual_seed(2)
    go = step if mode == "eager" else accelerate.capture(step)
    assert step.averaged()["updates"] == 0  # whatever the capture tried
    places = torch.Generator().manual_seed(3)
    losses, taught = [], []
    for _ in range(STEPS):
        step.index_L.copy_(torch.randperm(len(data), generator=places)[:128])
        step.lr.fill_(0.001)  # at 0.01 what is rounded otherwise grows too fast to compare
        step.sums.zero_()
        go()
        losses.append(step.means()["loss"])
        taught.append(step.means()["distillation"])
    return losses, taught, step.averaged()


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    ("mode", "amp", "near"), [("graph", False, 1e-3), ("graph", True, 0.05), ("kernels", True, 0.05)]
)
def test_a_captured_step_averages_and_is_taught_as_the_eager_one(mode: str, amp: bool, near: float, stage: int) -> None:
    if mode == "kernels":
        pytest.importorskip("triton")
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False, benchmark=False):
        losses, taught, averaged = _take_steps(mode, stage=stage, amp=amp)
        eager_losses, eager_taught, eager_averaged = _take_steps("eager", stage=stage, amp=amp)
    assert losses == pytest.approx(eager_losses, rel=near)
    assert taught == pytest.approx(eager_taught, rel=2 * near)
    assert all(value > 0 for value in taught)
    assert averaged["updates"] == STEPS
    for name in ("model.fc.weight", "model.bn1.running_mean"):
        gap = (averaged[name] - eager_averaged[name]).norm() / eager_averaged[name].norm()
        assert gap < near, name
