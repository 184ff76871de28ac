"""SGD and AdamW on the device, which parameters decay, and clipping."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from codinet.config import ScheduleConfig
from codinet.model import RoutedNetwork
from codinet.train.optimizer import Optimizer, undecayed
from codinet.train.step import Step

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]


class Attention(nn.Module):
    """Parts of transformers to which weight decay does not apply."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.ones(1, 4, 6))
        self.own_table = nn.Parameter(torch.ones(3, 3))
        self.norm = nn.LayerNorm([4, 6])  # its weight has two dimensions
        self.layer = nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.ones(6))

    def no_weight_decay(self) -> set[str]:
        return {"own_table", "a_part_that_is_not_there"}


def test_norms_biases_positions_and_what_the_network_names_do_not_decay() -> None:
    names = {"pos_embed", "own_table", "norm.weight", "norm.bias", "layer.bias", "scale"}
    assert undecayed(Attention()) == names
    inside = nn.Sequential(Attention())
    assert undecayed(inside) == {f"0.{name}" for name in names}


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("decay_norms", [True, False])
def test_decay_without_a_gradient_shrinks_only_what_decays(kind: Any, decay_norms: bool) -> None:
    network = Attention()
    network.scale.requires_grad_(False)  # frozen: left alone
    schedule = ScheduleConfig(optimizer=kind, weight_decay=0.1, decay_norms=decay_norms)
    optimizer = Optimizer(network, schedule, torch.tensor(0.5))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    kept = {"scale"} | (set() if decay_norms else undecayed(network))
    for name, p in network.named_parameters():
        expected = before[name] * (1.0 if name in kept else 0.95)
        assert torch.allclose(p, expected, rtol=1e-6), name
    assert not any("scale" in name for name in optimizer.state())


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"optimizer": "adamw", "decay_norms": False}])
def test_steps_equal_those_of_torchs_classes_bit_for_bit(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network, twin = Attention(), Attention()
    twin.load_state_dict(network.state_dict())
    schedule, lr = ScheduleConfig(weight_decay=0.1, **settings), torch.tensor(0.1)
    optimizer = Optimizer(network, schedule, lr)
    exempt = set() if schedule.decay_norms else undecayed(twin)
    groups = [
        {"params": [p for name, p in twin.named_parameters() if (name in exempt) is chosen], "weight_decay": decay}
        for chosen, decay in ((False, 0.1), (True, 0.0))
    ]
    theirs: torch.optim.Optimizer
    if schedule.optimizer == "adamw":
        theirs = torch.optim.AdamW(groups[: 1 + bool(exempt)], lr=lr, betas=(schedule.momentum, 0.999), fused=True)
    else:
        theirs = torch.optim.SGD(groups[:1], lr=lr, momentum=schedule.momentum, fused=True)
    for number in range(3):
        lr.fill_(0.1 / (1 + number))
        optimizer.zero_grad()
        theirs.zero_grad()
        for ours, other in zip(network.parameters(), twin.parameters(), strict=True):
            if number != 1 or ours.ndim > 1:  # a parameter without a gradient stays
                ours.grad = torch.randn_like(ours)
                other.grad = ours.grad.clone()
        optimizer.step()
        theirs.step()
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True))


def test_two_steps_are_adamw_written_by_hand(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    step = make_step(model, optimizer="adamw", momentum=0.8, decay_norms=False)
    exempt = undecayed(model)
    assert not any(tensor.any() for tensor in step.optimizer_state().values())
    weights = {name: p.detach().clone() for name, p in step.trained.items()}
    mean, square = ({name: torch.zeros_like(p) for name, p in weights.items()} for _ in range(2))
    for number in (1, 2):
        lr = 0.01 / number
        step.lr.fill_(lr)
        step()
        for name, p in step.trained.items():
            assert p.grad is not None
            mean[name] = 0.8 * mean[name] + 0.2 * p.grad
            square[name] = 0.999 * square[name] + 0.001 * p.grad**2
            unbiased = mean[name] / (1 - 0.8**number), square[name] / (1 - 0.999**number)
            decay = 1.0 if name in exempt else 1 - lr * 0.01
            weights[name] = weights[name] * decay - lr * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    state = step.optimizer_state()
    for name, p in step.trained.items():
        assert torch.allclose(p, weights[name], rtol=1e-4, atol=1e-6), name
        assert torch.allclose(state[f"exp_avg.{name}"], mean[name], rtol=1e-4, atol=1e-7), name
        assert state[f"updates.{name}"] == 2


def test_only_a_gradient_above_the_limit_is_clipped(two_blocks: Network, make_step: MakeStep) -> None:
    def gradients(clip: float) -> torch.Tensor:
        step = make_step(copy.deepcopy(model), clip=clip)
        torch.manual_seed(1)
        step()
        return torch.cat([p.grad.flatten() for p in step.trained.values() if p.grad is not None])

    model = two_blocks(0)
    whole = gradients(0.0)
    limit = whole.norm().item() / 3
    assert torch.allclose(gradients(limit), whole / 3, rtol=1e-4, atol=1e-8)
    assert torch.equal(gradients(10 * limit), whole)


def test_a_training_on_the_cpu_needs_no_compiler(train_words: Callable[..., list[str]], tmp_path: Path) -> None:
    """Importing it takes longer than importing torch."""
    code = f"""
import sys
from codinet.cli import main
code = main({train_words(tmp_path / "run")!r})
sys.exit(code or "torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)
