"""The best fixed path: all images run the same blocks, which are chosen greedily on training images.

A router has to beat this. It is a static network with fewer blocks; unlike with a smaller network, any budget that a
set of blocks costs can be met.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from codinet.methods.method import (
    ROUTING,
    Method,
    Stage,
    StageStart,
    finetune_stage,
    main_stage,
    starts_trained,
    static_stage,
)
from codinet.relaxation import hard
from codinet.routers import Biases, OnceRouters

if TYPE_CHECKING:
    from codinet.config import RunConfig

CERTAIN = 20.0  # the run score of a block of the path, and its negative for the others
GAP = 0.01  # gap between cost and budget within which paths count as meeting it
_GRID = 1_000_000  # costs are rounded to this fraction of the static cost when sets of blocks are looked for


class BiasRouters(OnceRouters):
    """The same path for all images.

    Args:
        number: Number of blocks.
        image_channels: Channels of an image; not used.
    """

    def __init__(self, number: int, image_channels: int) -> None:
        super().__init__(number)
        self.out = Biases(number, CERTAIN)

    def scores(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self.out().expand(images_BCHW.shape[0], -1, -1)

    @torch.no_grad()
    def set_path(self, path: Sequence[bool]) -> None:
        """Run exactly these blocks."""
        run_N = torch.tensor([CERTAIN if runs else -CERTAIN for runs in path])
        self.out.bias.view(-1, 2)[:, 1] = run_N.to(self.out.bias)


def choose_path(costs: Sequence[float], budget: float, loss_of: Callable[[list[bool]], float]) -> list[bool]:
    """Drop blocks one by one, each time the one without which the loss is lowest, until the rest costs the budget.

    A block is only dropped if the budget can still be met to `GAP`, or as closely as any set of blocks does.

    Args:
        costs: What each block adds to the cost share.
        budget: The cost share of the blocks that are kept.
        loss_of: The loss of a path.

    Returns:
        Whether each block runs.
    """
    units = [round(cost * _GRID) for cost in costs]
    aim = round(budget * _GRID)
    gap = max(round(GAP * _GRID), _nearest(units, aim))
    path = [True] * len(costs)
    while sum(unit for unit, runs in zip(units, path, strict=True) if runs) > aim + gap:
        kept = [unit for unit, runs in zip(units, path, strict=True) if runs]
        spare = {unit for unit in set(kept) if _nearest(_without(kept, unit), aim) <= gap}  # what may be dropped
        candidates = [
            [runs and block != k for block, runs in enumerate(path)]
            for k, unit in enumerate(units)
            if path[k] and unit in spare
        ]
        path = min(candidates, key=loss_of)
    return path


def _without(units: Sequence[int], unit: int) -> list[int]:
    """The numbers without the first one that equals `unit`."""
    first = units.index(unit)
    return [*units[:first], *units[first + 1 :]]


def _nearest(units: Sequence[int], aim: int) -> int:
    """How close the sum of some of these numbers can get to `aim`."""
    sums = 1  # bit s is set if s is the sum of some of them
    for unit in units:
        sums |= sums << unit
    below, above = sums & ((1 << aim + 1) - 1), sums >> aim  # below has bit 0, the sum of none of them
    short = aim + 1 - below.bit_length()
    return min(short, (above & -above).bit_length() - 1) if above else short


class FixedMethod(Method):
    """Half of stage 1 trains the whole network, the other half and stage 2 the path that is chosen in between.

    A network that starts from trained weights needs no first half.
    """

    name = "fixed"
    title = "best fixed path"
    routers = ("bias",)
    settings = ROUTING
    one_path = True

    def stages(self, config: "RunConfig") -> list[Stage]:
        schedule = config.schedule
        whole = 0 if starts_trained(config) else schedule.epochs // 2
        kept: dict[str, Any] = {"decide": hard, "train_routers": False, "path_losses": False, "meets_budget": False}
        return [
            *static_stage(schedule, whole),
            *main_stage("path", schedule, schedule.epochs - whole, **kept),
            *finetune_stage(schedule, meets_budget=False),
        ]

    def begin_stage(self, stage: Stage, start: StageStart) -> None:
        routers = start.routers
        assert isinstance(routers, BiasRouters)
        if stage.name == "static":
            routers.set_path([True] * len(start.run_share_N))
        if stage.name != "path" or start.budget is None:
            return

        def loss_of(path: list[bool]) -> float:
            routers.set_path(path)
            return start.measure_loss()

        routers.set_path(choose_path(start.run_share_N.tolist(), start.budget - start.base_share, loss_of))


METHOD = FixedMethod()
