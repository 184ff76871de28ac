"""Find the run threshold at which a trained network meets a budget. One set of weights serves many budgets."""

import math
from collections.abc import Callable, Sequence
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
from codinet.relaxation import hard, require_threshold, run_probability
from codinet.routers import SEARCH_STEPS

MISSED = 0.02  # gap between cost share and budget that is reported
CLOSE = 5e-4  # gap to the budget at which the search for a threshold ends
FAR = 8.0  # logits beyond which a threshold is searched only if none within reaches the budget
FARTHEST = 32.0  # logits beyond which none is searched; the sigmoid of 37 is 1 in double precision
MORE_STEPS = 6  # for a search beyond FAR: two to find an interval, the others because it is wider


def threshold_for(model: RoutedNetwork, images_BCHW: torch.Tensor, budget: float, *, batch: int = 250) -> float:
    """Return the run threshold at which the mean cost of these images is nearest to a budget.

    Where few images are near a router's threshold, as after vanilla routing, the cost changes in large steps, and the
    nearest one may be far from the budget.

    Args:
        model: A routed network.
        images_BCHW: Normalised images. Use images on which nothing is measured afterwards.
        budget: A fraction of the static network's cost.
        batch: Images per forward pass.
    """
    require_budget(model, budget)
    require_images(images_BCHW)
    channels, height, width = images_BCHW.shape[1:]
    table = block_costs(model, (channels, height, width))
    cost_at = partial(mean_cost, model, table, images_BCHW, batch=batch)
    return find_threshold(cost_at, budget, steps=search_steps(model))


def search_steps(model: RoutedNetwork) -> int:
    """Return the number of thresholds that a search tries for a routed network."""
    assert model.routers is not None
    return model.routers.search_steps


def mean_cost(
    model: RoutedNetwork, table: CostTable, images_BCHW: torch.Tensor, threshold: float, *, batch: int
) -> float:
    """Return the mean cost share of images in evaluation mode with hard decisions at this threshold."""
    require_kind("table", table, CostTable, "the cost table of the network; block_costs makes it")
    require_threshold(threshold)
    return table.share(_route(model, images_BCHW, threshold, batch)[1]).mean().item()


def run_probabilities(model: RoutedNetwork, images_BCHW: torch.Tensor, *, batch: int) -> torch.Tensor:
    """Return the run probability of every block for images in evaluation mode with hard decisions."""
    return run_probability(_route(model, images_BCHW, 0.5, batch)[0])


def _route(
    model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The router scores and paths of images in evaluation mode."""
    require_network(model)
    require_images(images_BCHW)
    require_whole("batch", batch, 1, LARGEST_COUNT)
    decide = partial(hard, threshold=threshold)
    with in_evaluation(model), exact_inference():
        outputs = [model(images, decide=decide) for images in images_BCHW.split(int(batch))]
    scores_BN2, path_BN = (torch.cat(parts) for parts in zip(*(output[1:] for output in outputs), strict=True))
    require_finite("The router scores of these images", scores_BN2)
    return scores_BN2, path_BN


def require_images(images_BCHW: Any) -> None:
    """Raise a `UserError` unless this is a batch of finite images. Waits for the device."""
    require_tensor("images", images_BCHW, ("B", "C", "H", "W"))
    require_finite("images", images_BCHW)


def require_budget(model: RoutedNetwork, budget: float) -> None:
    """Raise a `UserError` unless the network is routed and the budget is valid."""
    require_network(model)
    if model.routers is None:
        raise UserError("Budgets apply to routed networks only, and this network is static.")
    require_number("budget", budget, 0, 1, above=True)


def require_reach(table: CostTable, budget: float, who: str, always: Sequence[int] = ()) -> None:
    """Raise a `UserError` if the budget is below the cost of the cheapest path; `who` names the network.

    Args:
        table: The cost table of the network.
        budget: A fraction of the static network's cost.
        who: The name of the network.
        always: The blocks that always run.
    """
    path_1N = torch.zeros(1, len(table.run_N))
    path_1N[:, list(always)] = 1
    least = table.share(path_1N).item()
    if budget < least:
        skipped = "every block skipped" if not always else f"only the {len(always)} blocks that always run"
        raise UserError(f"The budget must be at least {least:.4f}, the cost of {who} with {skipped}, got {budget:g}.")


def find_threshold(cost_at: Callable[[float], float], budget: float, *, steps: int = SEARCH_STEPS) -> float:
    """Return the run threshold whose cost is nearest to the budget. A higher threshold runs fewer blocks.

    Args:
        cost_at: The cost as a function of the threshold.
        budget: The cost to meet.
        steps: At most this many values of `cost_at` are computed after the first, and `MORE_STEPS` more where the
            scores are so large that no threshold within `FAR` reaches the budget.
    """
    require_callable("cost_at", cost_at)
    require_number("budget", budget)
    require_whole("steps", steps, 0, 1000)

    def measure(threshold: float) -> float:
        cost = cost_at(threshold)
        require_number(f"The cost at threshold {threshold:g}", cost)
        return cost

    tried = {0.0: measure(0.5)}  # by logits
    direction = 1 if tried[0.0] > budget else -1
    # The answer is usually near: doubling steps find an interval, then bisection finds the threshold.
    short, beyond, stride, at, reach = 0.0, None, 0.25, 0.0, FAR
    while steps > 0 and abs(tried[at] - budget) >= CLOSE:
        if beyond is None and abs(short) >= reach:
            if reach == FARTHEST:
                break
            stride, reach, steps = FAR, FARTHEST, steps + MORE_STEPS
        at = direction * min(abs(short) + stride, reach) if beyond is None else (short + beyond) / 2
        stride, steps = 2 * stride, steps - 1
        tried[at] = measure(_sigmoid(at))
        if (tried[at] > budget) == (direction > 0):
            short = at
        else:
            beyond = at
    return _sigmoid(min(tried, key=lambda logit: (abs(tried[logit] - budget), abs(logit))))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
