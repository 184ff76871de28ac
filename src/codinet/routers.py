"""Routers: small networks that score, before each block, whether to run it for an input (Eq. 3, 4 and the appendix).

One module holds the routers of a whole network. So a policy can read the images once (`start`) or carry a state along
the depth, as the LSTM does. `router(k)` returns the router of block k; routers are called in order. They depend on the
channel widths only. `relaxation` turns scores into decisions.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from codinet.checks import is_autocast, require_number, require_same_place, require_whole, shown
from codinet.errors import UserError

State = tuple[torch.Tensor, ...]
Router = Callable[[torch.Tensor, State], tuple[torch.Tensor, State]]
"""Maps a block's input and the current state to scores_B2 and the state for the next block.

A module with `per_position` returns scores_BHW2 instead, for a block that keeps the size of its input. Positions at
which the block is skipped keep their features. `of_image` has the scores of the image.

A router with `reads_means` needs only the means of the features over positions. It may be given those, B×C×1×1.
"""

OPEN = 1.0  # initial bias of the run score, so that an untrained network runs its blocks
SEARCH_STEPS = 14
WIDEST = 16_384  # most channels of a router's input; its weights then take a gigabyte


class Routers(nn.Module):
    """Base class for the routers of a network. Layers that compute the scores must be named `out`; see `shift`.

    Attributes:
        always: Blocks that run for every image at every threshold below 1.
        search_steps: Thresholds that a search for a budget tries. More find smaller differences between images.
    """

    always: tuple[int, ...] = ()
    search_steps: int = SEARCH_STEPS

    def start(self, images_BCHW: torch.Tensor) -> State:
        """Returns the state for the first router of a forward pass."""
        return ()

    def router(self, k: int) -> Router:
        """Returns the router of block k, counted from 0."""
        raise NotImplementedError

    def shift(self, amount: float) -> None:
        """Adds a finite number to the bias of every run score, which changes the cost of the whole network."""
        require_number("amount", amount)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("out.bias"):
                    parameter.view(-1, 2)[:, 1] += amount  # one pair of scores, or one for each block


def pool(features_BCHW: torch.Tensor) -> torch.Tensor:
    """Eq. 3: the mean of each channel over pixels.

    The gradient has the memory format of the features. PyTorch's own gradient of a mean is channels-first, gradients
    added to it inherit that format, and mixed formats make the rest of the backward pass several times slower.

    Args:
        features_BCHW: Features.

    Returns:
        The means, B×C.
    """
    if features_BCHW.is_contiguous(memory_format=torch.channels_last):
        return features_BCHW.permute(0, 2, 3, 1).mean(dim=(1, 2))
    return features_BCHW.mean(dim=(2, 3))


def of_image(scores_BHW2: torch.Tensor) -> torch.Tensor:
    """The scores of images from those of their positions: a block runs for an image iff it runs at any position.

    Args:
        scores_BHW2: Scores (skip, run) of positions.

    Returns:
        scores_B2. Their margin is the largest of the positions, and the skip score is the mean.
    """
    skip_B = scores_BHW2[..., 0].mean(dim=(1, 2))
    margin_B = (scores_BHW2[..., 1] - scores_BHW2[..., 0]).amax(dim=(1, 2))
    return torch.stack([skip_B, skip_B + margin_B], dim=-1)


def explain_failure(features_BCHW: Any, width: int, weight: torch.Tensor) -> None:
    """Raises a `UserError` if a router failed because of its features."""
    shape = features_BCHW.shape if isinstance(features_BCHW, torch.Tensor) else ()
    if len(shape) != 4 or shape[1] != width or 0 in shape[2:]:
        raise UserError(f"This router requires features of B×{width}×H×W, got {shown(features_BCHW)}.")
    if not is_autocast(features_BCHW):
        require_same_place("features", features_BCHW, "the router", weight)


def require_width(width: Any) -> None:
    """Requires the number of channels of a router's input."""
    require_whole("The width of a router", width, 1, WIDEST)


def require_widths(widths: Any) -> None:
    """Requires the widths of all blocks."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or len(widths) == 0:
        raise UserError(f"widths must be a list with the width of every block, got {shown(widths)}.")
    for width in widths:
        require_width(width)


def _require_index(k: Any, number: int) -> None:
    require_whole("The block index", k, 0, number - 1)


def _output_layer(width: int) -> nn.Linear:
    layer = nn.Linear(width, 2)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, OPEN]))
    return layer


class FCRouter(nn.Module):
    """Global average pooling, then W₂ σ(W₁ z) with as many hidden units as channels (Eq. 3, 4).

    Args:
        width: Channels of the block's input.
    """

    reads_means: ClassVar[bool] = True

    def __init__(self, width: int) -> None:
        super().__init__()
        require_width(width)
        self.hidden = nn.Linear(width, width)
        self.out = _output_layer(width)

    def forward(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        try:
            return self.scores(pool(features_BCHW)), state
        except Exception:  # PyTorch's own error is less clear
            explain_failure(features_BCHW, self.hidden.in_features, self.hidden.weight)
            raise

    def scores(self, z_BC: torch.Tensor) -> torch.Tensor:
        """The scores of pooled features."""
        return self.out(F.relu(self.hidden(z_BC)))


class CNNRouter(nn.Module):
    """A 3×3 convolution, global average pooling, one linear layer.

    The paper does not specify stride and width. With stride 2 a router costs an eighth of its block.

    Args:
        width: Channels of the block's input.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        require_width(width)
        self.conv = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.out = _output_layer(width)

    def forward(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        try:
            z_BC = pool(F.relu(self.conv(features_BCHW)))
            return self.out(z_BC), state
        except Exception:  # as above
            explain_failure(features_BCHW, self.conv.in_channels, self.conv.weight)
            raise


class SeparateRouters(Routers):
    """One independent router per block.

    Args:
        kind: The class of the routers.
        widths: Input channels of each block.
    """

    def __init__(self, kind: Callable[[int], nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        require_widths(widths)
        self.each = nn.ModuleList(kind(width) for width in widths)

    def router(self, k: int) -> Router:
        _require_index(k, len(self.each))
        return self.each[k]


def fc_routers(routers: Routers | None) -> list[FCRouter] | None:
    """Returns the routers of all blocks if each is an `FCRouter` (not a subclass), otherwise None.

    A router with a method `as_fc` is replaced by its result, which has the same scores in evaluation mode.
    """
    if not isinstance(routers, SeparateRouters):
        return None
    each: list[Any] = list(routers.each)
    found = [router.as_fc() if hasattr(router, "as_fc") else router for router in each]
    return found if all(type(router) is FCRouter for router in found) else None


class RNNRouters(Routers):
    """Global average pooling, a linear layer, an LSTM and an output layer, used by all blocks.

    Blocks of different width cannot use the same first linear layer, so there is one for each width.

    Args:
        widths: Input channels of each block.
    """

    HIDDEN = 10

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        require_widths(widths)
        self.widths = tuple(widths)
        self.embed = nn.ModuleDict({str(width): nn.Linear(width, self.HIDDEN) for width in sorted(set(widths))})
        self.lstm = nn.LSTMCell(self.HIDDEN, self.HIDDEN)
        self.out = _output_layer(self.HIDDEN)

    def start(self, images_BCHW: torch.Tensor) -> State:
        zeros_BH = images_BCHW.new_zeros(len(images_BCHW), self.HIDDEN)
        return zeros_BH, zeros_BH

    def router(self, k: int) -> Router:
        _require_index(k, len(self.widths))
        return _RNNRouter(self, str(self.widths[k]))


class _RNNRouter:
    """The router of a block of a given width."""

    reads_means: ClassVar[bool] = True

    def __init__(self, routers: RNNRouters, width: str) -> None:
        self.routers, self.width = routers, width

    def __call__(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        routers = self.routers
        try:
            embedded_BH = F.relu(routers.embed[self.width](pool(features_BCHW)))
            hidden_BH, cell_BH = routers.lstm(embedded_BH, state)
            return routers.out(hidden_BH), (hidden_BH, cell_BH)
        except Exception:  # as above
            explain_failure(features_BCHW, int(self.width), routers.lstm.weight_ih)
            raise


class OnceRouters(Routers):
    """Base class for routers that score all blocks from the images alone, before the first block.

    Args:
        number: Number of blocks.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def scores(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns the scores of all blocks, B×N×2."""
        raise NotImplementedError

    def start(self, images_BCHW: torch.Tensor) -> State:
        return (self.scores(images_BCHW),)

    def router(self, k: int) -> Router:
        _require_index(k, self.number)
        return _take_first


def _take_first(features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
    """The scores of the next block. They rotate, so that one compiled step serves all blocks."""
    (scores_BN2,) = state
    return scores_BN2[:, 0], (scores_BN2.roll(-1, dims=1),)


EPSILON = 0.01  # what may be left of an image's halting mass when it halts
SCALE = 8.0  # margin per unit of halting mass
HELD = 40.0  # added to the margin of a block that always runs
RARELY = -3.0  # initial bias of halting scores, so that an untrained network runs its blocks
GAIN = 1 / 3  # factor of the convolution in a gentle halting unit: a 3×3 window then counts as much as pooled features
BEND = 3.0  # beyond this, the logits of a gentle unit grow with their logarithm only


class HaltingRouter(nn.Module):
    """The halting unit of the previous block: a sigmoid of one linear layer on that block's pooled output.

    Halting scores h add up along a group of blocks. A block runs while their sum is below 1 − ε: the margin is
    s (1 − ε − Σ h). A shift changes the sum at which images halt. The skip score is minus the block's ponder cost,
    1 − h where the block runs: the block itself, and what it takes from the remainder 1 − Σ h.

    Args:
        width: Channels of the block's input.
    """

    per_position: ClassVar[bool] = False  # whether halting scores are B×H×W
    reads_means: ClassVar[bool] = True
    search_steps: ClassVar[int] = SEARCH_STEPS  # as of `Routers`
    raised: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        require_width(width)
        self.halt = nn.Linear(width, 1)
        nn.init.constant_(self.halt.bias, RARELY)
        self.register_buffer("raised", torch.zeros(()))

    def halting(self, features_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns halting scores between 0 and 1, B; a subclass may return B×H×W."""
        return self.halt(pool(features_BCHW)).squeeze(1).float().sigmoid()

    def forward(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        try:
            halting = self.halting(features_BCHW)
        except Exception:  # as above
            explain_failure(features_BCHW, self.halt.in_features, self.halt.weight)
            raise
        if self.per_position and state[0].shape[1:] not in ((1, 1), halting.shape[1:]):
            raise UserError("Halting at positions requires blocks that keep the size of the features within a group.")
        spent = state[0] + halting
        margin = SCALE * (1 - EPSILON - spent) + self.raised
        ponder = (1 - halting) * (margin >= 0)
        return torch.stack([-ponder, margin - ponder], dim=-1), (spent,)


class FirstRouter(nn.Module):
    """The router of the first block of a group, which always runs. The sum of halting scores starts anew.

    Args:
        per_position: Whether halting scores are B×H×W.
    """

    reads_means: ClassVar[bool] = True
    raised: torch.Tensor

    def __init__(self, *, per_position: bool) -> None:
        super().__init__()
        self.shape = (1, 1) if per_position else ()
        self.register_buffer("raised", torch.zeros(()))

    def forward(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        number = len(features_BCHW)
        run_B = (HELD + SCALE * (1 - EPSILON) - 2 + self.raised).float().expand(number)
        # The ponder cost of a group is N + R with R = 1 − Σ h, so its first block counts twice.
        return torch.stack([torch.full_like(run_B, -2), run_B], dim=-1), (run_B.new_zeros(number, *self.shape),)


class HaltingRouters(Routers):
    """Halting units within each group of blocks.

    Args:
        kind: The class of the halting units.
        widths: Input channels of each block.
        groups: Blocks of each group.
    """

    def __init__(self, kind: type[HaltingRouter], widths: Sequence[int], groups: Sequence[int]) -> None:
        super().__init__()
        require_widths(widths)
        self.widths, self.search_steps = tuple(widths), kind.search_steps
        starts = {sum(groups[:group]) for group in range(len(groups))}
        # A block that changes the width begins another part, whatever the groups are.
        starts.update(k for k, (width, after) in enumerate(pairwise(widths)) if width != after)
        self.always = tuple(sorted(starts))
        self.each = nn.ModuleList(
            FirstRouter(per_position=kind.per_position) if k in self.always else kind(width)
            for k, width in enumerate(widths)
        )

    def start(self, images_BCHW: torch.Tensor) -> State:
        return (images_BCHW.new_zeros(len(images_BCHW)),)  # not read: the first block is the first of its group

    def router(self, k: int) -> Router:
        _require_index(k, len(self.each))
        return self.each[k]

    def shift(self, amount: float) -> None:
        require_number("amount", amount)
        for router in self.each:
            router.get_buffer("raised").add_(amount)


class Biases(nn.Module):
    """Two scores for each block that do not depend on the image. A module of the name `out` can be shifted.

    Args:
        number: Number of blocks.
        run: The initial run score of every block.
    """

    def __init__(self, number: int, run: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.0, run]).repeat(number))

    def forward(self) -> torch.Tensor:
        return self.bias.view(1, -1, 2)


ROUTERS: dict[str, Callable[[Sequence[int]], Routers]] = {
    "fc": partial(SeparateRouters, FCRouter),
    "cnn": partial(SeparateRouters, CNNRouter),
    "rnn": RNNRouters,
}
"""The paper's routers. `codinet.methods.router_kinds` has those of all methods."""
