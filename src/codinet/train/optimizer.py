"""The optimiser of a training step: SGD or AdamW, which parameters decay, and the clipping of gradients.

Everything is on the device and nothing waits for it, so that a step can be captured as a CUDA graph. All state exists
from the beginning, so that a graph and a checkpoint find it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from codinet.config import ScheduleConfig

_SECOND_BETA, _EPSILON = 0.999, 1e-8  # of AdamW
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# Learned tokens and tables of positions, by the last part of their names in timm and torchvision.
_TOKENS = frozenset(
    {"cls_token", "class_token", "dist_token", "reg_token"}
    | {"pos_embed", "pos_embedding", "absolute_pos_embed", "relative_position_bias_table"}
)
# How a checkpoint names the tensors that torch's optimisers keep for a parameter.
_STATE = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "updates"}
STATE_PREFIXES = tuple(f"{name}." for name in _STATE.values())


class _Group(NamedTuple):
    parameters: list[nn.Parameter]
    weight_decay: float


class Optimizer:
    """Updates parameters from their gradients.

    It calls the functions that torch's own optimisers call. The classes of torch.optim import torch's compiler, which
    takes longer than everything else before a short training.

    Args:
        model: The network. Its parameters that require gradients are trained.
        schedule: Kind of optimiser, momentum, weight decay, clipping.
        lr: The learning rate, a scalar tensor on the network's device. It may change between steps.
    """

    def __init__(self, model: nn.Module, schedule: ScheduleConfig, lr: torch.Tensor) -> None:
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.clip, self.momentum, self.lr = schedule.clip, schedule.momentum, lr
        self.update = self._adamw if schedule.optimizer == "adamw" else self._sgd
        exempt = set() if schedule.decay_norms else undecayed(model)
        self.groups = [
            _Group([p for name, p in self.trained.items() if name not in exempt], schedule.weight_decay),
            _Group([p for name, p in self.trained.items() if name in exempt], 0.0),
        ]
        self.fused = lr.device.type in ("cpu", "cuda")
        self.kept: dict[torch.Tensor, dict[str, torch.Tensor]] = {
            p: _initial_state(p, schedule.optimizer, fused=self.fused) for p in self.trained.values()
        }

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.trained.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradients, if that is on, and update the parameters. In distributed training they are means."""
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.trained.values(), self.clip)
        for group in self.groups:
            pairs = [(p, p.grad) for p in group.parameters if p.grad is not None]
            if pairs:
                parameters, gradients = map(list, zip(*pairs, strict=True))
                self.update(parameters, gradients, group.weight_decay)

    def _sgd(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], weight_decay: float) -> None:
        buffers: list[torch.Tensor | None] = [*self._kept(parameters, "momentum_buffer")] if self.momentum else []
        sgd(
            parameters,
            gradients,
            buffers,
            fused=self.fused,
            weight_decay=weight_decay,
            momentum=self.momentum,
            lr=self.lr,  # type: ignore[arg-type]  # which may be a tensor
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adamw(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], weight_decay: float) -> None:
        adamw(
            parameters,
            gradients,
            self._kept(parameters, "exp_avg"),
            self._kept(parameters, "exp_avg_sq"),
            [],
            self._kept(parameters, "step"),
            fused=self.fused,
            capturable=self.lr.device.type == "cuda",
            amsgrad=False,
            beta1=self.momentum,
            beta2=_SECOND_BETA,
            lr=self.lr,
            weight_decay=weight_decay,
            eps=_EPSILON,
            maximize=False,
        )

    def _kept(self, parameters: list[torch.Tensor], name: str) -> list[torch.Tensor]:
        return [self.kept[parameter][name] for parameter in parameters]

    def state(self) -> dict[str, torch.Tensor]:
        """All tensors that change, by kind and name of the parameter: `momentum.fc.weight`."""
        return {
            f"{kind}.{name}": self.kept[parameter][key]
            for key, kind in _STATE.items()
            for name, parameter in self.trained.items()
            if key in self.kept[parameter]
        }


def _initial_state(parameter: torch.Tensor, kind: str, *, fused: bool) -> dict[str, torch.Tensor]:
    """What torch's optimisers would make in their first step."""
    if kind == "sgd":
        return {"momentum_buffer": torch.zeros_like(parameter)}
    return {
        # Without a fused kernel, torch reads the count on the host.
        "step": torch.zeros((), device=parameter.device if fused else "cpu"),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def undecayed(model: nn.Module) -> set[str]:
    """The parameters to which weight decay does not apply with --no-decay-norms.

    Args:
        model: The network. If it, or the network that it routes, has a method `no_weight_decay`, as those of timm do,
            the parameters that the method names are included.

    Returns:
        The names of biases, of parameters with one dimension, of those of normalisation layers, and of learned tokens
        and positions.
    """
    names: set[str] = set()
    for prefix, part in model.named_modules():
        own = part.named_parameters(prefix, recurse=False)
        names |= {name for name, p in own if isinstance(part, _NORMS) or p.ndim <= 1 or _is_exempt(name)}
        stated = getattr(part, "no_weight_decay", None)
        if callable(stated):
            names |= {f"{prefix}.{name}".lstrip(".") for name in stated()}
    return names & {name for name, _ in model.named_parameters()}


def _is_exempt(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last == "bias" or last in _TOKENS


def part_of(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors under a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
