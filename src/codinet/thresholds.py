"""The threshold at which a network meets a budget: one set of weights serves many budgets."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from codinet.checks import (
    LARGEST_COUNT,
    require_callable,
    require_finite,
    require_kind,
    require_number,
    require_tensor,
    require_whole,
)
from codinet.cost import CostTable, block_costs
from codinet.errors import UserError
from codinet.evaluate import exact_inference
from codinet.model import RoutedNetwork, in_evaluation, require_network
from codinet.relaxation import hard, require_threshold

MISSED = 0.02  # gap between cost and budget, as a share of the static cost, that is reported
CLOSE = 5e-4  # gap to the budget at which the search for a threshold ends
FAR = 8.0  # logits beyond which no threshold is searched


def threshold_for(model: RoutedNetwork, images_BCHW: torch.Tensor, budget: float, *, batch: int = 250) -> float:
    """The run threshold at which these normalised images cost nearest to `budget`, a share of the static network.

    Use images that nothing is measured on afterwards. They go through the network `batch` at a time. Where few images
    are near a router's threshold, as after vanilla routing, costs come in steps, and the nearest may be far from the
    budget.
    """
    require_budget(model, budget)
    require_images(images_BCHW)
    channels, height, width = images_BCHW.shape[1:]
    table = block_costs(model, (channels, height, width))
    return find_threshold(partial(mean_cost, model, table, images_BCHW, batch=batch), budget)


def mean_cost(
    model: RoutedNetwork, table: CostTable, images_BCHW: torch.Tensor, threshold: float, *, batch: int
) -> float:
    """The mean cost of images in evaluation mode with hard decisions, as a share of the static network."""
    require_network(model)
    require_kind("table", table, CostTable, "the cost table of the network; block_costs makes it")
    require_images(images_BCHW)
    require_threshold(threshold)
    require_whole("batch", batch, 1, LARGEST_COUNT)
    decide = partial(hard, threshold=threshold)
    with in_evaluation(model), exact_inference():
        outputs = [model(images, decide=decide) for images in images_BCHW.split(int(batch))]
    require_finite("The router scores of these images", torch.cat([output.scores_BN2 for output in outputs]))
    return table.share(torch.cat([output.path_BN for output in outputs])).mean().item()


def require_images(images_BCHW: Any) -> None:
    """A batch of finite images. Reads the values, so it waits for the device."""
    require_tensor("images", images_BCHW, ("B", "C", "H", "W"))
    require_finite("images", images_BCHW)


def require_budget(model: RoutedNetwork, budget: float) -> None:
    """A budget that this network can be given."""
    require_network(model)
    if model.routers is None:
        raise UserError("Budgets apply to routed networks only, and this network is static.")
    require_number("budget", budget, 0, 1, above=True)


def require_reach(table: CostTable, budget: float, who: str) -> None:
    """A budget that is not below the cost with every block skipped."""
    least = table.share(torch.zeros(1, len(table.run_N))).item()
    if budget < least:
        raise UserError(
            f"A budget of {budget:g} cannot be met: with every block skipped {who} still costs {least:.4f} of its "
            "static form; ask for more."
        )


def find_threshold(cost_at: Callable[[float], float], budget: float, *, steps: int = 14) -> float:
    """The run threshold whose cost is nearest to the budget; a higher threshold runs fewer blocks.

    `cost_at` is the cost at a threshold. The search takes at most `steps` of its values after the first.
    """
    require_callable("cost_at", cost_at)
    require_number("budget", budget)
    require_whole("steps", steps, 0, 1000)

    def look(threshold: float) -> float:
        cost = cost_at(threshold)
        require_number(f"The cost at threshold {threshold:g}", cost)
        return cost

    tried = {0.0: look(0.5)}  # by logits
    way = 1 if tried[0.0] > budget else -1
    # The answer is usually near: steps that double pass it, and bisection between the last two finds it.
    short, beyond, stride, at = 0.0, None, 0.25, 0.0
    for _ in range(steps):
        if abs(tried[at] - budget) < CLOSE or (beyond is None and abs(short) >= FAR):
            break
        at = way * min(abs(short) + stride, FAR) if beyond is None else (short + beyond) / 2
        stride *= 2
        tried[at] = look(_sigmoid(at))
        if (tried[at] > budget) == (way > 0):
            short = at
        else:
            beyond = at
    return _sigmoid(min(tried, key=lambda logit: (abs(tried[logit] - budget), abs(logit))))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
