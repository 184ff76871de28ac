"""The threshold at which a network costs what is asked for: one set of weights serves many budgets."""

import math
from collections.abc import Callable
from functools import partial

import torch

from codinet.cost import CostTable, block_costs
from codinet.errors import UserError
from codinet.evaluate import exact_inference
from codinet.model import RoutedNetwork, in_evaluation
from codinet.relaxation import hard

MISSED = 0.02  # gap between cost and budget, as a share of the static cost, that is told
CLOSE = 5e-4  # to the budget, where a search for a threshold may end
FAR = 8.0  # logits beyond which a threshold is not looked for


def threshold_for(model: RoutedNetwork, images_BCHW: torch.Tensor, budget: float, *, batch: int = 250) -> float:
    """The run threshold at which these images, normalised, cost nearest to a share of the static network.

    Take images that nothing is measured on afterwards. Where few images sit near a router's threshold, as after
    vanilla routing, costs come in steps, and the nearest may be far from what was asked for.
    """
    require_budget(model, budget)
    channels, height, width = images_BCHW.shape[1:]
    table = block_costs(model, (channels, height, width))
    return find_threshold(partial(mean_cost, model, table, images_BCHW, batch=batch), budget)


def mean_cost(
    model: RoutedNetwork, table: CostTable, images_BCHW: torch.Tensor, threshold: float, *, batch: int
) -> float:
    """What images cost in evaluation mode with hard decisions, as a share of the static network."""
    decide = partial(hard, threshold=threshold)
    with in_evaluation(model), exact_inference():
        paths = [model(images, decide=decide).path_BN for images in images_BCHW.split(batch)]
    return table.share(torch.cat(paths)).mean().item()


def require_budget(model: RoutedNetwork, budget: float) -> None:
    if model.routers is None:
        raise UserError("A static network costs what it costs; a budget is for a routed one.")
    if not 0 < budget <= 1:
        raise UserError(f"A budget of {budget:g} is no share of the static cost; give a number above 0, up to 1.")


def require_reach(table: CostTable, budget: float, who: str) -> None:
    least = table.share(torch.zeros(1, len(table.run_N))).item()
    if budget < least:
        raise UserError(
            f"A budget of {budget:g} cannot be met: with every block skipped {who} still costs {least:.4f} of its "
            "static form; ask for more."
        )


def find_threshold(cost_at: Callable[[float], float], budget: float, *, steps: int = 14) -> float:
    """The run threshold whose cost is nearest to the budget; a higher threshold runs fewer blocks."""
    tried = {0.0: cost_at(0.5)}  # by logits
    way = 1 if tried[0.0] > budget else -1
    # It is mostly near: steps that double pass it, and halves between the last two find it.
    short, beyond, stride, at = 0.0, None, 0.25, 0.0
    for _ in range(steps):
        if abs(tried[at] - budget) < CLOSE or (beyond is None and abs(short) >= FAR):
            break
        at = way * min(abs(short) + stride, FAR) if beyond is None else (short + beyond) / 2
        stride *= 2
        tried[at] = cost_at(_sigmoid(at))
        if (tried[at] > budget) == (way > 0):
            short = at
        else:
            beyond = at
    return _sigmoid(min(tried, key=lambda logit: (abs(tried[logit] - budget), abs(logit))))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
