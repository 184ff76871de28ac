"""BlockDrop (Wu et al., CVPR 2018): a policy network looks at the image once and decides about all blocks.

It learns by policy gradients from a reward for correct answers with few blocks, first for the last blocks only and with
a frozen network, then for all blocks and together with the network.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from codinet.backbones import BasicBlock
from codinet.checks import require_tensor
from codinet.losses import expected_cost, score_decay
from codinet.methods.method import (
    ROUTING,
    Method,
    PathBatch,
    PathLoss,
    Stage,
    finetune_stage,
    main_stage,
    starts_trained,
    static_stage,
)
from codinet.relaxation import run_probability
from codinet.routers import OPEN, OnceRouters, Routers, pool

if TYPE_CHECKING:
    from codinet.config import RunConfig

BOUND = 0.8  # largest probability with which a decision is sampled
CERTAIN = 20.0  # a margin from which on a block always runs
WEIGHT = 0.1  # of the policy gradient, by default
SIDE = 32  # pixels; larger images are shrunk for the policy network
_WIDTHS = (16, 32, 64)


class PolicyRouters(OnceRouters):
    """A ResNet-8: a convolution, three residual blocks, pooling, and two scores for each block of the network.

    Args:
        number: Number of blocks.
        image_channels: Channels of an image.
    """

    held_N2: torch.Tensor

    def __init__(self, number: int, image_channels: int) -> None:
        super().__init__(number)
        first, second, last = _WIDTHS
        self.conv = nn.Conv2d(image_channels, first, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(first)
        self.body = nn.Sequential(
            BasicBlock(first, first, 1, "3x3"), BasicBlock(first, second, 2, "3x3"), BasicBlock(second, last, 2, "3x3")
        )
        self.out = nn.Linear(last, 2 * number)
        with torch.no_grad():
            self.out.bias.copy_(torch.tensor([0.0, OPEN]).repeat(number))
        # Added to the scores of blocks that the curriculum has not reached. Every epoch sets it, so it is not saved.
        self.register_buffer("held_N2", torch.zeros(number, 2), persistent=False)

    def scores(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        stride = max(1, min(images_BCHW.shape[2:]) // SIDE)
        x_BCHW = F.avg_pool2d(images_BCHW, stride) if stride > 1 else images_BCHW
        x_BCHW = self.body(F.relu(self.norm(self.conv(x_BCHW))))
        return self.out(pool(x_BCHW)).unflatten(1, (self.number, 2)) + self.held_N2

    def free_last(self, number: int) -> None:
        """Decide about the last blocks only; the others always run."""
        self.held_N2.zero_()
        self.held_N2[: self.number - number, 1] = 2 * CERTAIN


def bounded(scores: torch.Tensor) -> torch.Tensor:
    """The probability with which a block runs in training: b·s + (1 − b)·(1 − s), so that both decisions are tried.

    Args:
        scores: Router scores of any leading shape; the last dimension is (skip, run).

    Returns:
        Probabilities of the leading shape. They are 1 where the margin exceeds `CERTAIN`.
    """
    probability = run_probability(scores)
    certain = scores[..., 1] - scores[..., 0] > CERTAIN
    return torch.where(certain, 1.0, BOUND * probability + (1 - BOUND) * (1 - probability))


def sample_bounded(scores_B2: torch.Tensor) -> torch.Tensor:
    """Sample decisions with the probabilities of `bounded`; no gradient."""
    return torch.bernoulli(bounded(scores_B2.detach()))


def reward(correct_B: torch.Tensor, path_BN: torch.Tensor, *, penalty: float) -> torch.Tensor:
    """1 − (blocks run / K)² for a correct answer, −γ for a wrong one.

    Args:
        correct_B: Whether the answers are correct.
        path_BN: Paths of 0 and 1.
        penalty: γ of BlockDrop.

    Returns:
        Rewards, B.
    """
    require_tensor("path", path_BN, ("B", "N"))
    return torch.where(correct_B, 1 - path_BN.mean(dim=1).square(), -penalty)


def free_decay(scores_BN2: torch.Tensor) -> torch.Tensor:
    """The decay of the margins, without the blocks that are held.

    The gradients of all other terms vanish where a probability is near 0 or 1, so a policy that went too far would stay
    there, whatever the reward.
    """
    held_BN1 = scores_BN2[..., 1:] - scores_BN2[..., :1] > CERTAIN
    return score_decay(torch.where(held_BN1, 0.0, scores_BN2))


class BlockDropMethod(Method):
    """The network alone, the policy alone with a curriculum from the last blocks backwards, then both."""

    name = "blockdrop"
    title = "BlockDrop"
    routers = ("policy",)
    settings = ROUTING | {"gamma", "penalty", "policy_weight", "score_decay"}

    def stages(self, config: "RunConfig") -> list[Stage]:
        schedule = config.schedule
        alone = 0 if starts_trained(config) else schedule.epochs // 2
        policy = (schedule.epochs - alone) // 2
        both = schedule.epochs - alone - policy
        learns: dict[str, Any] = {"decide": sample_bounded, "train_routers": True, "path_losses": True, "greedy": True}
        learns["lr"] = schedule.finetune_lr  # the policy saturates with larger steps
        # A frozen network that never learnt to skip blocks is wrong about most images at a low cost, whatever their
        # path, and then rewards say nothing. So the budget applies from the joint stage on.
        frozen: dict[str, Any] = {"train_backbone": False, "meets_budget": False}
        return [
            *static_stage(schedule, alone),
            *main_stage("curriculum", schedule, policy, **frozen, **learns),
            *main_stage("joint", schedule, both, **learns),
            *finetune_stage(schedule),
        ]

    def begin_epoch(self, stage: Stage, epoch: int, routers: Routers) -> None:
        assert isinstance(routers, PolicyRouters)
        free = {"static": 0, "curriculum": math.ceil(routers.number * (epoch + 1) / stage.epochs)}
        routers.free_last(free.get(stage.name, routers.number))

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """L_cls + γ · cost − w · (reward of the sample − reward of hard decisions) · log π(sample) + decay.

        Sample and hard decisions are of the network in the same mode, so that their rewards can be compared.
        """
        output, greedy, losses, zero = batch.output, batch.greedy, batch.losses, torch.zeros_like(batch.gamma)
        assert greedy is not None
        gained_B, expected_B = (
            reward(each.logits_BK.argmax(dim=1) == batch.labels_B, each.path_BN, penalty=losses.penalty)
            for each in (output, greedy)
        )
        run_BN, path_BN = bounded(output.scores_BN2), output.path_BN
        likelihood_B = torch.where(path_BN > 0.5, run_BN, 1 - run_BN).log().sum(dim=1)
        policy = -((gained_B - expected_B).detach() * likelihood_B).mean()
        cost = expected_cost(run_probability(output.scores_BN2), batch.weights_N)
        weight = WEIGHT if losses.policy_weight is None else losses.policy_weight
        decay = free_decay(output.scores_BN2)
        loss = classification + batch.gamma * cost + weight * policy
        return PathLoss(loss + losses.score_decay * batch.decay_scale * decay, zero, zero, cost, decay)


METHOD = BlockDropMethod()
