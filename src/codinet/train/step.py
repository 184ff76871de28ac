"""One optimisation step on fixed buffers: views, forward, losses, backward, update, budget, sums.

Nothing here waits for the device or allocates by what it finds there, so the same function runs eagerly and
inside a CUDA graph. The host sets `index_L`, `lr` and the controller's target before each step, and reads
`sums` when it wants figures.
"""

from contextlib import nullcontext

import torch
from torch.nn import functional as F

from codinet.config import RunConfig
from codinet.cost import CostTable
from codinet.data.resident import Resident
from codinet.data.views import random_views
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.model import RoutedNetwork, RoutedStep, train_only
from codinet.relaxation import run_probability
from codinet.train.budget import BudgetController
from codinet.train.stages import Stage

SUMS = (
    *("loss", "classification", "consistency", "diversity", "cost", "decay"),
    *("gamma", "accuracy", "cost_share", "steps"),
)
_TERMS = SUMS[:6]


class Step:
    """The step of one stage."""

    def __init__(
        self,
        model: RoutedNetwork,
        data: Resident,
        table: CostTable,
        config: RunConfig,
        stage: Stage,
        controller: BudgetController | None,
        *,
        pad: int,
        flip: bool,
        amp: bool,
        block_step: RoutedStep | None = None,
    ) -> None:
        device = data.labels_N.device
        schedule, network = config.schedule, config.network
        assert schedule.batch is not None
        self.model, self.data, self.stage, self.controller = model, data, stage, controller
        self.block_step = block_step
        self.losses, self.views, self.noised = config.losses, schedule.views, config.losses.paths == "noised"
        self.acting = stage.path_losses and network.routed
        self.pad, self.flip, self.amp, self.device = pad, flip, amp, device
        self.weights_N = table.loss_weights().to(device)
        self.run_share_N, self.base_share = share_of_blocks(table, device)

        train_only(model, routers=stage.train_routers, backbone=True)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.lr = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(
            self.trained.values(),
            lr=self.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        for parameter in self.trained.values():
            # Made now rather than by the first step, so that a graph finds them and a checkpoint names them.
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.index_L = torch.zeros(schedule.batch, dtype=torch.long, device=device)
        self.sums = torch.zeros(len(SUMS), device=device)
        self.bad = torch.full((2,), -1.0, device=device)  # step and term of the first loss that is not finite

    def momentum(self) -> dict[str, torch.Tensor]:
        return {name: self.optimizer.state[p]["momentum_buffer"] for name, p in self.trained.items()}

    def __call__(self) -> None:
        images_LCHW, labels_L = self.data.take(self.index_L)
        inputs_BCHW = random_views(images_LCHW, self.views, pad=self.pad, flip=self.flip)
        labels_B = labels_L.repeat_interleave(self.views)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.amp else nullcontext():
            output = self.model(inputs_BCHW, decide=self.stage.decide, step=self.block_step)
        zero = torch.zeros((), device=self.device)
        terms = Terms(F.cross_entropy(output.logits_BK, labels_B), zero, zero, zero)
        gamma, decay = zero, zero
        hard_BN = (output.scores_BN2[..., 1] >= output.scores_BN2[..., 0]).float()
        cost_share = (hard_BN @ self.run_share_N).mean() + self.base_share
        if self.acting:
            paths_BN = output.path_BN if self.noised else run_probability(output.scores_BN2)
            paths_LMN = paths_BN.unflatten(0, (len(labels_L), self.views))
            terms = terms._replace(
                consistency=consistency(paths_LMN, margin=self.losses.m_c),
                diversity=diversity(paths_LMN, margin=self.losses.m_d),
                cost=expected_cost(paths_BN, self.weights_N),
            )
            decay = score_decay(output.scores_BN2)
            gamma = self.controller.gamma() if self.controller else zero + (self.losses.gamma or 0.0)
        loss = total(terms, alpha=self.losses.alpha, beta=self.losses.beta, gamma=gamma)
        loss = loss + self.losses.score_decay * decay
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            if self.acting and self.controller:
                self.controller.observe(cost_share)
            hits = (output.logits_BK.argmax(dim=1) == labels_B).float().mean()
            self._note(torch.stack([loss, *terms, decay, gamma, hits, cost_share, torch.ones_like(loss)]).detach())

    def _note(self, figures: torch.Tensor) -> None:
        finite = figures[: len(_TERMS)].isfinite()
        # The total is listed first but is bad because a term is: name the term where there is one.
        culprit = torch.where(finite[1:].all(), 0, 1 + finite[1:].int().argmin()).float()
        now = torch.stack([self.sums[-1], culprit])
        first = (~finite.all()) & (self.bad[0] < 0)
        self.bad.copy_(torch.where(first, now, self.bad))
        self.sums.add_(figures)

    def first_bad(self) -> tuple[int, str] | None:
        """Step since the sums were cleared and name of the first loss that was not finite (waits for the device)."""
        step, term = self.bad.tolist()
        return None if step < 0 else (int(step), _TERMS[int(term)])

    def means(self) -> dict[str, float]:
        """Averages over the steps since the sums were cleared (waits for the device)."""
        values = self.sums.tolist()
        steps = max(values[-1], 1.0)
        return {name: value / steps for name, value in zip(SUMS[:-1], values[:-1], strict=True)}


def share_of_blocks(table: CostTable, device: torch.device) -> tuple[torch.Tensor, float]:
    """What running each block adds to the share of the static cost, and the share that is always spent."""
    blocks = len(table.run_N)
    none = torch.zeros(1, blocks)
    each = table.share(torch.eye(blocks)) - table.share(none)
    return each.float().to(device), table.share(none).item()
