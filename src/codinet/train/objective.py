"""The training objective for your own training loop: Eq. 12, with a budget instead of γ.

For networks that `codinet train` does not build, such as those of `make_dynamic`. Your loop provides images,
augmentation and optimiser.
"""

from functools import partial
from typing import Any

import torch

from codinet.checks import (
    LARGEST_COUNT,
    require_finite,
    require_image_shape,
    require_kind,
    require_number,
    require_tensor,
    require_whole,
    shown,
)
from codinet.config import ExtraConfig, LossConfig
from codinet.cost import block_costs
from codinet.errors import UserError
from codinet.losses import require_weight
from codinet.methods import DEFAULT, method_named
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, gumbel, require_tau
from codinet.thresholds import mean_cost, require_budget, require_images, require_reach, run_probabilities
from codinet.train.budget import BudgetController, estimated_cost
from codinet.train.stages import decay_scale
from codinet.train.step import COST_SHARE, loss_of, share_of_blocks

_WRONG_ORDER = (
    "All views of an image must be next to each other and have the same label, got views of one image with different "
    "labels; stack them with torch.stack(views, dim=1).flatten(0, 1) and labels.repeat_interleave(len(views))."
)


class Objective:
    """The loss of every step, and the controller that keeps the network at its budget.

    Pass `decide` to the forward passes of training: it makes relaxed, noised decisions.

    Args:
        model: A routed network, with routers fc, cnn or rnn, or of your own.
        image_shape: Channels, height and width of the images.
        budget: Mean cost to meet, as a fraction of the static network's MACs.
        steps: Length of the training.
        losses: Weights and margins, without budget and gamma.
        label_smoothing: Label smoothing of the cross entropy.
        tau: Temperature of the relaxation.
    """

    decide: Decide

    def __init__(
        self,
        model: RoutedNetwork,
        image_shape: tuple[int, int, int],
        *,
        budget: float,
        steps: int,
        losses: LossConfig | None = None,
        label_smoothing: float = 0.0,
        tau: float = 1.0,
    ) -> None:
        self.method = method_named(DEFAULT)
        require_budget(model, budget)
        _require_routers(model, self.method.routers)
        require_image_shape(image_shape)
        require_whole("steps", steps, 1, LARGEST_COUNT)
        require_number("label_smoothing", label_smoothing, 0, 1, below=True)
        require_tau(tau)
        if losses is not None:
            _require_losses(losses)
        table, device = block_costs(model, image_shape), next(model.parameters()).device
        assert model.routers is not None
        require_reach(table, budget, "the network", model.routers.always)
        self.model, self.table, self.steps, self.taken = model, table, steps, 0
        self.losses, self.extra = losses or LossConfig(), ExtraConfig(label_smoothing=label_smoothing)
        self.decide = partial(gumbel, tau=tau)
        self.controller = BudgetController(budget, steps=steps, device=device)
        self.weights_N = table.loss_weights().to(device)
        self.run_share_N, self.base_share = share_of_blocks(table, device)
        self.labels_differ = torch.zeros((), dtype=torch.bool, device=device)  # of views of one image, in any step

    @property
    def progress(self) -> float:
        """The fraction of the steps that is done."""
        return min(1.0, self.taken / self.steps)

    def __call__(self, output: RoutedOutput, labels_B: torch.Tensor, *, views: int) -> torch.Tensor:
        """Return the loss of one step and count the step.

        Args:
            output: The network's output. The views of an image are next to each other.
            labels_B: A label for each input. On the CPU they are checked at once. On a GPU that would make the host
                wait; there `settle` reports a step whose views of one image had different labels.
            views: Views per image.

        Raises:
            UserError: Views of one image have different labels, or an argument does not fit the network.
        """
        self._require_batch(output, labels_B, views)
        if not labels_B.is_cpu:
            self.labels_differ.logical_or_(_labels_differ(labels_B, views))
        self.controller.aim(self.progress)
        loss, figures = loss_of(
            output,
            labels_B,
            views=views,
            losses=self.losses,
            extra=self.extra,
            gamma=self.controller.gamma(),
            decay_scale=torch.full_like(self.controller.target, decay_scale(self.progress)),
            weights_N=self.weights_N,
            run_share_N=self.run_share_N,
            base_share=self.base_share,
            gather_rows=lambda paths_LMN: paths_LMN,
            teacher_BK=None,
            method=self.method,
        )
        self.controller.observe(figures[COST_SHARE] + self.base_share)
        self.taken += 1
        return loss

    def settle(self, images_BCHW: torch.Tensor, *, batch: int = 250) -> float:
        """Call after every epoch and at the end: correct the gap between budget and cost of plain images.

        The controller corrects its target. From half of the steps on, the routers are also shifted half of the way to
        the budget, and after the last step all of the way. `codinet train` does the same.

        Args:
            images_BCHW: Normalised images without augmentation; the same in every process of a distributed training.
            batch: Images per forward pass.

        Returns:
            The cost of the images now, as a fraction of the static network's.
        """
        require_images(images_BCHW)
        require_whole("batch", batch, 1, LARGEST_COUNT)
        if bool(self.labels_differ):  # read here, because `settle` waits for the device anyway
            raise UserError(_WRONG_ORDER)
        cost_at = partial(mean_cost, self.model, self.table, images_BCHW, batch=batch)
        if self.progress == 1:
            self.controller.calibrate([self.model], cost_at)
            return cost_at(0.5)
        estimate = estimated_cost(self.table, run_probabilities(self.model, images_BCHW, batch=batch))
        self.controller.settle([self.model], estimate(0.5), estimate, progress=self.progress)
        return cost_at(0.5)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the tensors that a checkpoint needs beside network and optimiser."""
        taken = torch.tensor(self.taken)
        return {"taken": taken, **{name: value.clone() for name, value in self.controller.state().items()}}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore a `state_dict`. One that does not fit is a `UserError` and changes nothing."""
        require_kind("state", state, dict, "the result of state_dict")
        own = self.controller.state()
        if set(state) != {"taken", *own}:
            raise UserError(f"state must hold {', '.join(['taken', *own])}, got {shown(sorted(map(str, state)))}.")
        for name, value in state.items():
            require_tensor(f"{name} of state", value, (), floating=name != "taken")
            require_finite(f"{name} of state", value)
        require_whole("taken of state", state["taken"].item(), 0, LARGEST_COUNT)
        self.taken = int(state["taken"])
        for name, value in own.items():
            value.copy_(state[name])

    def _require_batch(self, output: Any, labels_B: Any, views: Any) -> None:
        """Everything but labels on a GPU is checked without reading values."""
        require_kind("output", output, RoutedOutput, "what the network returns, a RoutedOutput")
        require_tensor("logits", output.logits_BK, ("B", "K"))
        number, classes = output.logits_BK.shape
        require_tensor("scores", output.scores_BN2, (number, len(self.weights_N), 2))
        require_tensor("path", output.path_BN, (number, len(self.weights_N)))
        require_tensor("labels", labels_B, (number,), floating=False)
        if labels_B.dtype != torch.int64:
            raise UserError(f"labels must be int64, got {shown(labels_B)}.")
        require_whole("views", views, 1, LARGEST_COUNT)
        if number % views:
            raise UserError(f"The number of inputs must be a multiple of views = {views}, got {number}.")
        device = self.weights_N.device
        for name, tensor in (("The output", output.logits_BK), ("labels", labels_B)):
            if tensor.device != device:
                raise UserError(f"{name} must be on the network's device, {device}, got {shown(tensor)}.")
        if labels_B.is_cpu and not torch.compiler.is_compiling():
            low, high = int(labels_B.min()), int(labels_B.max())
            if low < 0 or high >= classes:
                raise UserError(
                    f"labels must be from 0 to {classes - 1}, the network's classes, got labels from {low} to {high}."
                )
            if bool(_labels_differ(labels_B, views)):
                raise UserError(_WRONG_ORDER)


def _labels_differ(labels_B: torch.Tensor, views: int) -> torch.Tensor:
    """Whether views of one image have different labels, as a tensor on the device of the labels."""
    labels_LM = labels_B.reshape(-1, views)
    return (labels_LM != labels_LM[:, :1]).any()


def _require_routers(model: RoutedNetwork, known: tuple[str, ...]) -> None:
    """Require routers that the method has; a network with routers of the user's own states no kind."""
    kind = model.router_name if model.config is None else model.config.router
    if kind is not None and kind not in known:
        raise UserError(f"Objective requires routers {' or '.join(known)}, got {kind}.")


def _require_losses(losses: Any) -> None:
    require_kind("losses", losses, LossConfig, "a LossConfig")
    if (losses.budget, losses.gamma) != (None, None):
        raise UserError("losses must not set budget or gamma: the budget is an argument of Objective.")
    for name in ("alpha", "beta", "m_c", "m_d", "score_decay"):
        require_weight(f"{name} of losses", getattr(losses, name))
    if losses.paths not in ("noise-free", "noised"):
        raise UserError(f"paths of losses must be noise-free or noised, got {shown(losses.paths)}.")
