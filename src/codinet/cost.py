"""The cost of a path: a table of multiply-adds per block, and the cost of paths according to it (Eq. 10).

One MAC is one multiply-add of a convolution or a matrix product. BatchNorm, activations, pooling and additions are not
counted, as in `torch.utils.flop_counter` (which counts two per MAC). In the paper, the column "GMACCs" counts two per
multiply-add for CIFAR and one for ImageNet; `paper_gmaccs` converts to that unit.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from codinet.checks import (
    require_image_shape,
    require_kind,
    require_number,
    require_whole,
    shown,
)
from codinet.errors import UserError, first_line
from codinet.model import CoDiNet, RoutedNetwork, in_evaluation, require_network

_MOST = 2**53  # MACs that float64 represents exactly


@dataclass(frozen=True)
class CostTable:
    """Multiply-adds of each part of a network, for one image of `image_shape`: (channels, height, width)."""

    run_N: tuple[int, ...]  # the block including its shortcut
    skip_N: tuple[int, ...]  # the shortcut alone
    router_N: tuple[int, ...]  # the first one includes what routers compute once per image
    fixed: int  # stem and classifier
    image_shape: tuple[int, int, int]
    paper_unit: int  # operations that the paper counts per multiply-add: 1 or 2

    def __post_init__(self) -> None:
        """Raises a `UserError` for impossible entries."""
        columns = {"run_N": self.run_N, "skip_N": self.skip_N, "router_N": self.router_N}
        for name, column in columns.items():
            require_kind(name, column, tuple, "a tuple with the MACs of each block")
            for macs in column:
                require_whole(f"An entry of {name}", macs, 0, _MOST)
        lengths = [len(column) for column in columns.values()]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise UserError(f"run_N, skip_N and router_N must have one entry per block, got {lengths} entries.")
        if any(run < skip for run, skip in zip(self.run_N, self.skip_N, strict=True)):
            raise UserError("run_N must be at least skip_N: running a block cannot cost less than skipping it.")
        require_whole("fixed", self.fixed, 0, _MOST)
        require_whole("paper_unit", self.paper_unit, 1, 2)
        require_image_shape(self.image_shape)
        if self.static_macs == 0:
            raise UserError("A cost table must have at least one entry above 0, got only zeros.")

    @property
    def static_macs(self) -> int:
        """MACs of the network without routers and with every block run. Cost shares are relative to this."""
        return self.fixed + sum(self.run_N)

    @property
    def added_N(self) -> tuple[int, ...]:  # noqa: N802 - named by its shape, as run_N is
        """MACs that running each block adds to skipping it."""
        return tuple(run - skip for run, skip in zip(self.run_N, self.skip_N, strict=True))

    def path_macs(self, path_BN: torch.Tensor) -> torch.Tensor:
        """Returns the MACs of hard or relaxed paths, routers included.

        Args:
            path_BN: Decisions between 0 and 1.

        Returns:
            MACs_B, float64; on the CPU for paths on Apple's MPS.
        """
        require_kind("paths", path_BN, torch.Tensor, "a tensor")
        if path_BN.ndim != 2 or path_BN.shape[1] != len(self.run_N) or path_BN.is_complex():
            raise UserError(f"paths must be a real tensor of B×{len(self.run_N)} decisions, got {shown(path_BN)}.")
        path_BN = in_float64(path_BN)
        added_N = torch.tensor(self.added_N, dtype=torch.float64, device=path_BN.device)
        always = self.fixed + sum(self.skip_N) + sum(self.router_N)
        return path_BN @ added_N + always

    def share(self, path_BN: torch.Tensor) -> torch.Tensor:
        """Returns the cost shares of paths (B): their MACs divided by those of the static network."""
        return self.path_macs(path_BN) / self.static_macs

    def loss_weights(self) -> torch.Tensor:
        """Returns c_k of Eq. 11: the MACs that running block k adds, divided by their mean, so that Σ c_k = n."""
        if not any(self.added_N):
            raise UserError("Loss weights require that running a block adds MACs; in this network it adds no MACs.")
        added_N = torch.tensor(self.added_N)
        return (added_N / added_N.double().mean()).float()

    def paper_gmaccs(self, macs: float) -> float:
        """Converts MACs to the unit of the paper's tables for this family of networks."""
        require_number("macs", macs)
        return macs * self.paper_unit / 1e9


def in_float64(values: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in float64, on its own device; Apple's MPS has no float64, so from there on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def block_costs(model: RoutedNetwork, image_shape: tuple[int, int, int]) -> CostTable:
    """Counts the multiply-adds of a network in one forward pass.

    Codinet's own networks on a CPU get a batch of no images. Others might not accept that, so a copy on the meta device
    gets one image; the first use of that device takes a second or two, because it imports torch's compiler.

    Args:
        model: The network. It is not changed.
        image_shape: (channels, height, width).

    Returns:
        The cost table.

    Raises:
        UserError: The network does not accept images of this shape.
    """
    require_network(model)
    image_shape = require_image_shape(image_shape)
    if model.in_channels not in (None, image_shape[0]):
        raise UserError(
            f"image_shape must have {model.in_channels} channels, as the network requires, got {image_shape}."
        )
    like = next(model.parameters(), torch.empty(0))
    empty = isinstance(model, CoDiNet) and like.device.type == "cpu"
    counted = model if empty else _shapes_of(model)
    images = torch.empty(0 if empty else 1, *image_shape, device="cpu" if empty else "meta", dtype=like.dtype)
    try:
        with in_evaluation(counted):
            parts = _count_parts(counted, images)
    except UserError:
        raise
    except Exception as error:  # an adopted network may raise anything
        raise UserError(
            f"This network does not accept images of {'×'.join(map(str, image_shape))}: {first_line(error)}"
        ) from error
    return CostTable(*parts, image_shape=image_shape, paper_unit=model.paper_unit)


def _shapes_of(model: RoutedNetwork) -> RoutedNetwork:
    """A copy on the meta device."""
    shapes = copy.deepcopy(model).to("meta")
    for module in shapes.modules():
        if type(module) in (nn.BatchNorm2d, nn.ReLU):  # no MACs, no new shape, and a third of the time on this device
            module.forward = _unchanged
    return shapes


def _unchanged(x_BCHW: torch.Tensor) -> torch.Tensor:
    return x_BCHW


@torch.no_grad()
def _count_parts(
    model: RoutedNetwork, images: torch.Tensor
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Returns run_N, skip_N, router_N and fixed."""
    fixed, x = _counted(model.stem, images)
    once, state = (0, ()) if model.routers is None else _counted(model.routers.start, images)
    run, skip, router = [], [], []
    for k, block in enumerate(model.blocks):
        skip.append(_counted(block.shortcut, x)[0])
        if model.routers is None:
            router.append(0)
        else:
            macs, (_, state) = _counted(model.routers.router(k), x, state)
            router.append(macs + (once if k == 0 else 0))
        macs, x = _counted(block, x)
        run.append(macs)
    return tuple(run), tuple(skip), tuple(router), fixed + _counted(model.head, x)[0]


def _counted(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """Returns the MACs of a call and its result. Products outside layers, such as attention, are counted too."""
    with _FlopCounter() as counter:
        result = function(*args)
    return counter.flops // 2, result


class _FlopCounter(TorchDispatchMode):
    """Counts as `torch.utils.flop_counter.FlopCounterMode`, with its formulas. A batch of no images counts as one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation imports torch's compiler, which takes as long as importing torch

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, formula = kwargs or {}, flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:  # an operation may consist of others that have a formula
                result = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        result = func(*args, **kwargs)
        args, kwargs, out = tree_map_only(torch.Tensor, _shape, (args, kwargs, result))
        self.flops += formula(*args, **kwargs, out_val=out)
        return result


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(max(1, size) for size in tensor.shape)
