"""What a path costs: a table of multiply-adds per block, and the cost of paths over it (Eq. 10).

Convention: one MAC is one multiply-add of a convolution or a matrix product; BatchNorm, activations, pooling
and additions are not counted, as in `torch.utils.flop_counter` (which counts two per MAC). The paper's CIFAR
columns count two per multiply-add under the name "GMACCs" and its ImageNet columns one; `paper_gmaccs` gives
that unit, and every figure printed names its own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from codinet.model import RoutedNetwork


@dataclass(frozen=True)
class CostTable:
    """Multiply-adds of each part of a network, for one image of `image_shape`."""

    run_N: tuple[int, ...]  # the whole block, its shortcut included
    skip_N: tuple[int, ...]  # the shortcut alone
    router_N: tuple[int, ...]
    fixed: int  # stem and classifier
    image_shape: tuple[int, int, int]
    paper_unit: int

    @property
    def static_macs(self) -> int:
        """The network without routers, every block run: what shares are shares of."""
        return self.fixed + sum(self.run_N)

    @property
    def added_N(self) -> tuple[int, ...]:  # noqa: N802 - named by its shape, as run_N is
        """What running each block adds to skipping it."""
        return tuple(run - skip for run, skip in zip(self.run_N, self.skip_N, strict=True))

    def path_macs(self, path_BN: torch.Tensor) -> torch.Tensor:
        """MACs_B (float64) of hard or relaxed paths, routers included."""
        added_N = torch.tensor(self.added_N, dtype=torch.float64, device=path_BN.device)
        always = self.fixed + sum(self.skip_N) + sum(self.router_N)
        return path_BN.double() @ added_N + always

    def share(self, path_BN: torch.Tensor) -> torch.Tensor:
        """MACs_B over the static network's."""
        return self.path_macs(path_BN) / self.static_macs

    def loss_weights(self) -> torch.Tensor:
        """c_k of Eq. 11: what running block k adds, divided by the mean over blocks, so that Σ c_k = n."""
        added_N = torch.tensor(self.added_N)
        return (added_N / added_N.double().mean()).float()

    def paper_gmaccs(self, macs: float) -> float:
        """The unit of the paper's tables for this family of networks."""
        return macs * self.paper_unit / 1e9


def block_costs(model: RoutedNetwork, image_shape: tuple[int, int, int]) -> CostTable:
    """The table of a network, read off one forward pass on shapes alone (no arithmetic is done)."""
    shapes = copy.deepcopy(model).to("meta").eval()
    with torch.no_grad():
        images = torch.empty(1, *image_shape, device="meta")
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
        fixed += _counted(shapes.head, x)[0]
    return CostTable(
        tuple(run), tuple(skip), tuple(router), fixed, image_shape=image_shape, paper_unit=model.paper_unit
    )


def _counted(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """The MACs of a call, attention and other products outside of layers among them, and what it gives."""
    with FlopCounterMode(display=False) as counter:
        result = function(*args)
    return counter.get_total_flops() // 2, result
