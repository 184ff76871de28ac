"""What a path costs: a table of multiply-adds per block, and the cost of paths over it (Eq. 10).

Convention: one MAC is one multiply-add of a convolution or a matrix product; BatchNorm, activations, pooling
and additions are not counted, as in `torch.utils.flop_counter` (which counts two per MAC). The paper's CIFAR
columns count two per multiply-add under the name "GMACCs" and its ImageNet columns one; `paper_gmaccs` gives
that unit. Every printed number names its unit.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from codinet.checks import (
    require_image_shape,
    require_kind,
    require_number,
    require_whole,
    shown,
)
from codinet.errors import UserError, first_line
from codinet.model import RoutedNetwork, require_network

_MOST = 2**53  # MACs that a float64 holds exactly


@dataclass(frozen=True)
class CostTable:
    """Multiply-adds of each part of a network, for one image of `image_shape`."""

    run_N: tuple[int, ...]  # the whole block, its shortcut included
    skip_N: tuple[int, ...]  # the shortcut alone
    router_N: tuple[int, ...]
    fixed: int  # stem and classifier
    image_shape: tuple[int, int, int]
    paper_unit: int  # what the paper counts per multiply-add: 1 or 2

    def __post_init__(self) -> None:
        """A table with impossible entries is a `UserError`."""
        columns = {"run_N": self.run_N, "skip_N": self.skip_N, "router_N": self.router_N}
        for name, column in columns.items():
            require_kind(name, column, tuple, "a tuple with the MACs of each block")
            for macs in column:
                require_whole(f"An entry of {name}", macs, 0, _MOST)
        lengths = [len(column) for column in columns.values()]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise UserError(f"run_N, skip_N and router_N must have one entry per block, got {lengths} entries.")
        if any(run < skip for run, skip in zip(self.run_N, self.skip_N, strict=True)):
            raise UserError("Running a block must not cost less than skipping it: run_N must be at least skip_N.")
        require_whole("fixed", self.fixed, 0, _MOST)
        require_whole("paper_unit", self.paper_unit, 1, 2)
        require_image_shape(self.image_shape)
        if self.static_macs == 0:
            raise UserError("A cost table must hold some MACs, got 0 in every entry.")

    @property
    def static_macs(self) -> int:
        """MACs of the network without routers, every block run. Cost shares are relative to it."""
        return self.fixed + sum(self.run_N)

    @property
    def added_N(self) -> tuple[int, ...]:  # noqa: N802 - named by its shape, as run_N is
        """What running each block adds to skipping it."""
        return tuple(run - skip for run, skip in zip(self.run_N, self.skip_N, strict=True))

    def path_macs(self, path_BN: torch.Tensor) -> torch.Tensor:
        """MACs_B (float64) of hard or relaxed paths, routers included."""
        require_kind("paths", path_BN, torch.Tensor, "a tensor")
        if path_BN.ndim != 2 or path_BN.shape[1] != len(self.run_N) or path_BN.is_complex():
            raise UserError(f"paths must be a tensor of B×{len(self.run_N)} decisions, got {shown(path_BN)}.")
        added_N = torch.tensor(self.added_N, dtype=torch.float64, device=path_BN.device)
        always = self.fixed + sum(self.skip_N) + sum(self.router_N)
        return path_BN.double() @ added_N + always

    def share(self, path_BN: torch.Tensor) -> torch.Tensor:
        """MACs_B over the static network's."""
        return self.path_macs(path_BN) / self.static_macs

    def loss_weights(self) -> torch.Tensor:
        """c_k of Eq. 11: what running block k adds, divided by the mean over blocks, so that Σ c_k = n."""
        if not any(self.added_N):
            raise UserError("Running a block of this network adds no MACs, so its blocks have no cost to weigh.")
        added_N = torch.tensor(self.added_N)
        return (added_N / added_N.double().mean()).float()

    def paper_gmaccs(self, macs: float) -> float:
        """MACs in the unit of the paper's tables for this family of networks."""
        require_number("macs", macs)
        return macs * self.paper_unit / 1e9


def block_costs(model: RoutedNetwork, image_shape: tuple[int, int, int]) -> CostTable:
    """The cost table of a network for images of `image_shape`: (channels, height, width).

    Runs one forward pass on the meta device, which computes shapes and no numbers. Images that the network cannot
    take are a `UserError`.
    """
    require_network(model)
    image_shape = require_image_shape(image_shape)
    if model.in_channels not in (None, image_shape[0]):
        raise UserError(
            f"The network takes images of {model.in_channels} channels, and image_shape has {image_shape[0]}: "
            f"{image_shape}."
        )
    shapes = copy.deepcopy(model).to("meta").eval()
    dtype = next((parameter.dtype for parameter in shapes.parameters()), torch.float32)
    images = torch.empty(1, *image_shape, device="meta", dtype=dtype)
    try:
        parts = _count_parts(shapes, images)
    except UserError:
        raise
    except Exception as error:  # a foreign network may fail in any way
        raise UserError(
            f"This network cannot take images of {'×'.join(map(str, image_shape))}: {first_line(error)}"
        ) from error
    return CostTable(*parts, image_shape=image_shape, paper_unit=model.paper_unit)


@torch.no_grad()
def _count_parts(
    shapes: RoutedNetwork, images: torch.Tensor
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """run_N, skip_N, router_N and fixed."""
    fixed, x = _counted(shapes.stem, images)
    state = shapes.routers.start(images) if shapes.routers is not None else ()
    run, skip, router = [], [], []
    for k, block in enumerate(shapes.blocks):
        skip.append(_counted(block.shortcut, x)[0])
        if shapes.routers is None:
            router.append(0)
        else:
            macs, (_, state) = _counted(shapes.routers.router(k), x, state)
            router.append(macs)
        macs, x = _counted(block, x)
        run.append(macs)
    return tuple(run), tuple(skip), tuple(router), fixed + _counted(shapes.head, x)[0]


def _counted(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """The MACs of a call and its result. Products outside of layers, such as attention, are counted too."""
    with FlopCounterMode(display=False) as counter:
        result = function(*args)
    return counter.get_total_flops() // 2, result
