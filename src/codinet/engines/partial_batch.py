"""A network's stem, routers and blocks as the switch engine runs them: blocks for some of the images of a batch.

A part launches kernels when it is called. The engine decides whether that runs or records them.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F

from codinet import kernels
from codinet.cuda_switch import Body, Decisions, Result
from codinet.engines.folding import Conv, FoldedBlock, FoldedBottleneck
from codinet.kernels.rows import Listed
from codinet.routers import FCRouter, Routers, State, pool

if TYPE_CHECKING:
    from codinet.kernels.rows.router_rows import Listing

Pooled = torch.Tensor | None
"""Features of all images pooled for the routers, B×C; None where the routers need none, or they are not at hand."""


class Recorder(Protocol):
    """Runs or records the parts of a network; `SwitchGraph` or `HostSwitch`."""

    def record(self, function: Callable[[], Result]) -> Result: ...
    def switch(self, block: int, parts_PB2: torch.Tensor, decisions: Decisions, body: Body) -> None: ...


def _own(x_BCHW: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """x in channels_last and in other memory than the source."""
    x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
    same = x_BCHW.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return x_BCHW.clone() if same else x_BCHW


# Stems


class Stem(Protocol):
    """The part before the blocks, with a buffer for the images."""

    def fill(self, images_BCHW: torch.Tensor) -> None:
        """Copy images into the buffer."""

    def images(self, batch: int) -> torch.Tensor:
        """The images in the buffer, for routers that read them."""

    def __call__(self) -> tuple[torch.Tensor, Pooled]:
        """The input of the first block, and its pooled features if they are at hand."""


class PlainStem:
    """Any stem."""

    def __init__(self, stem: Callable[[torch.Tensor], torch.Tensor], images_BCHW: torch.Tensor, number: int) -> None:
        self.stem = stem
        self.buffer = images_BCHW.new_zeros(number, *images_BCHW.shape[1:]).to(memory_format=torch.channels_last)

    def fill(self, images_BCHW: torch.Tensor) -> None:
        self.buffer[: len(images_BCHW)].copy_(images_BCHW)

    def images(self, batch: int) -> torch.Tensor:
        return self.buffer[:batch]

    def __call__(self) -> tuple[torch.Tensor, Pooled]:
        return _own(self.stem(self.buffer), self.buffer), None


class BlockedStem:
    """The 7×7 convolution with stride 2 of a ResNet as a 4×4 convolution of 2×2 pixels, and its pooling.

    Tensor cores need channels in multiples of 8, and an image has 3. Four neighbouring pixels have 12, which zeros fill
    up to 16. A border of 2×2 pixels replaces the padding: 2 before the image and 1 after it.
    """

    def __init__(self, conv: Conv, pool: nn.Module, images_BCHW: torch.Tensor, number: int) -> None:
        batch, channels, height, width = images_BCHW.shape
        self.pool, self.bias = pool, conv.bias
        self.pools_3x3 = kernels.available(images_BCHW.device) and str(pool) == str(nn.MaxPool2d(3, 2, 1))
        taps = F.pad(conv.weight, (1, 0, 1, 0)).unflatten(3, (4, 2)).unflatten(2, (4, 2))  # O×C×4×2×4×2
        weight = taps.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        self.weight = F.pad(weight, (0, 0, 0, 0, 0, 16 - weight.shape[1])).contiguous(memory_format=torch.channels_last)
        shape = number, 16, height // 2 + 3, width // 2 + 3
        self.buffer = images_BCHW.new_zeros(shape).to(memory_format=torch.channels_last)
        inside = self.buffer[:batch, : 4 * channels, 2 : 2 + height // 2, 2 : 2 + width // 2]
        self.pixels = inside.unflatten(1, (channels, 2, 2))  # B×C×2×2×(H/2)×(W/2)

    @staticmethod
    def supports(conv: Conv, images_BCHW: torch.Tensor) -> bool:
        """Whether the stem is the one of a ResNet, in half precision, and the images have even sides."""
        if images_BCHW.is_cuda and images_BCHW.dtype == torch.float32:
            return False
        geometry = tuple(conv.weight.shape[2:]), conv.stride, conv.padding
        sides_even = all(side % 2 == 0 for side in images_BCHW.shape[2:])
        return geometry == ((7, 7), (2, 2), (3, 3)) and conv.weight.shape[1] <= 4 and sides_even

    def fill(self, images_BCHW: torch.Tensor) -> None:
        image, channel, down, right = images_BCHW.stride()
        strides = image, channel, down, right, 2 * down, 2 * right
        self.pixels.copy_(images_BCHW.as_strided(self.pixels.shape, strides, images_BCHW.storage_offset()))

    def images(self, batch: int) -> torch.Tensor:
        return self.pixels[:batch].permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)

    def __call__(self) -> tuple[torch.Tensor, Pooled]:
        x_BCHW = _conv_relu(self.buffer, self.weight, self.bias, (1, 1), (0, 0))
        if not self.pools_3x3:
            return self.pool(x_BCHW), None
        from codinet.kernels.rows.stem_rows import max_pool  # needs Triton

        return max_pool(x_BCHW)


def _conv_relu(
    x_BCHW: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: tuple[int, ...], padding: tuple[int, ...]
) -> torch.Tensor:
    """relu(conv(x)); on CUDA in one kernel of cuDNN."""
    if x_BCHW.is_cuda:
        return torch.cudnn_convolution_relu(x_BCHW, weight, bias, stride, padding, (1, 1), 1)
    return torch.conv2d(x_BCHW, weight, bias, stride, padding).relu_()


# Heads


class Head(Protocol):
    """The part after the blocks."""

    def __call__(self, x_BCHW: torch.Tensor, pooled_BC: Pooled, batch: int) -> torch.Tensor:
        """The logits of the first images, as many as the batch has."""


class PlainHead:
    """Any head."""

    def __init__(self, head: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.head = head

    def __call__(self, x_BCHW: torch.Tensor, pooled_BC: Pooled, batch: int) -> torch.Tensor:
        return self.head(x_BCHW[:batch])


class PooledHead:
    """A linear layer on features that the blocks have pooled, for small batches."""

    def __init__(self, layer: nn.Linear, counters: torch.Tensor) -> None:
        from codinet.kernels.rows.conv_rows import Weights  # needs Triton

        self.weights, self.outputs, self.counters = Weights.of_linear(layer), layer.out_features, counters

    def __call__(self, x_BCHW: torch.Tensor, pooled_BC: Pooled, batch: int) -> torch.Tensor:
        from codinet.kernels.rows.conv_rows import conv_rows

        assert pooled_BC is not None
        pooled_BC11 = pooled_BC[:batch, :, None, None]
        return conv_rows(pooled_BC11, self.weights, relu=False, arrived=self.counters)[:, : self.outputs, 0, 0]


# Routers


class FCScores:
    """Scores of the default routers. Only images that ran a block are pooled again."""

    def __init__(self, routers: list[FCRouter], listing: "Listing | None") -> None:
        self.routers, self.listing = routers, listing
        self.pooled_BC: Pooled = None

    def features_changed(self, recorder: Recorder, x_BCHW: torch.Tensor, pooled_BC: Pooled) -> None:
        self.pooled_BC = recorder.record(partial(pool, x_BCHW)) if pooled_BC is None else pooled_BC

    def parts(self, recorder: Recorder, k: int, _x_BCHW: torch.Tensor, batch: int) -> torch.Tensor:
        assert self.pooled_BC is not None
        return recorder.record(partial(_fc_parts, self.routers[k], self.pooled_BC, batch, self.listing, k))


def _fc_parts(
    router: FCRouter, pooled_BC: torch.Tensor, batch: int, listing: "Listing | None", block: int
) -> torch.Tensor:
    if not kernels.available(pooled_BC.device):
        return router.scores(pooled_BC[:batch]).float()[None]
    from codinet.kernels.rows.router_rows import score_parts  # needs Triton

    hidden, out = router.hidden, router.out
    return score_parts(pooled_BC, (hidden.weight, hidden.bias), (out.weight, out.bias), batch, listing, block)


class ModuleScores:
    """Scores of routers of any kind."""

    pooled_BC: None = None

    def __init__(self, routers: Routers, images_BCHW: torch.Tensor, recorder: Recorder) -> None:
        self.routers = routers
        self.state: State = recorder.record(lambda: routers.start(images_BCHW))

    def features_changed(self, recorder: Recorder, x_BCHW: torch.Tensor, pooled_BC: Pooled) -> None:
        pass

    def parts(self, recorder: Recorder, k: int, x_BCHW: torch.Tensor, batch: int) -> torch.Tensor:
        router, state = self.routers.router(k), self.state

        def score() -> tuple[torch.Tensor, State]:
            scores_B2, after = router(x_BCHW[:batch], state)
            return scores_B2.float()[None].contiguous(), after

        parts_PB2, self.state = recorder.record(score)
        return parts_PB2


# Blocks


class BlockRows(Protocol):
    """A block that runs on some of the images of a batch."""

    keeps: bool  # whether the shortcut is known to be x itself

    def skip(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, Pooled]:
        """The shortcut of all images, and its pooled features if they are at hand."""

    def run(self, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor, pooled_BC: Pooled, listed: Listed) -> None:
        """Replace the shortcuts in y by the block's outputs for the listed images, and pool these."""


class CompiledRows:
    """Any block, as one compiled function of the list of images, whose length may vary.

    Pooling has a kernel of its own: the compiler divides the sums over positions among too few programs.
    """

    def __init__(self, block: FoldedBlock, compiled: Callable[..., Any]) -> None:
        self.block, self.keeps = block, block.keeps
        self.shortcut, self.run_rows = compiled(block.skip), compiled(_run_rows)

    def skip(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, Pooled]:
        return self.shortcut(x_BCHW), None

    def run(self, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor, pooled_BC: Pooled, listed: Listed) -> None:
        assert listed.number is None
        index_R = listed.index_R
        if index_R.is_cuda and len(index_R) > 1:  # torch compiles length 1 separately
            torch._dynamo.mark_dynamic(index_R, 0)
        self.run_rows(self.block, x_BCHW, y_BCHW, index_R)
        if pooled_BC is None:
            return
        if not kernels.available(y_BCHW.device):
            pooled_BC.index_copy_(0, index_R, pool(y_BCHW.index_select(0, index_R)))
            return
        from codinet.kernels.rows.router_rows import pool_rows_  # needs Triton

        pool_rows_(pooled_BC, y_BCHW, listed)


def _run_rows(block: FoldedBlock, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor, index_R: torch.Tensor) -> None:
    x_RCHW = x_BCHW.index_select(0, index_R)
    y_RCHW = block.run(x_RCHW, x_RCHW if y_BCHW is x_BCHW else y_BCHW.index_select(0, index_R)).to(y_BCHW.dtype)
    # The compiler does this in place, in the kernel of the last operation. For `index_copy_` it would copy all of y.
    y_BCHW.index_put_((index_R,), y_RCHW)


class BottleneckRows:
    """A folded bottleneck in three kernels. The first reads images by index, the last adds to them in place.

    The 3×3 convolution is cuDNN's, but with a listing our own, because cuDNN cannot read a count.
    """

    def __init__(self, block: FoldedBottleneck, listing: "Listing | None" = None) -> None:
        from codinet.kernels.rows.conv_rows import Weights  # needs Triton

        self.keeps, self.middle = block.keeps, block.convs[1]
        self.convs = [Weights.of(conv.weight, conv.bias, conv.stride[0]) for conv in block.convs]
        self.projection = None
        if block.project is not None:
            self.projection = Weights.of(block.project.weight, block.project.bias, block.project.stride[0])
        self.counters = None if listing is None else listing.arrived

    @staticmethod
    def supports(block: FoldedBottleneck, images_BCHW: torch.Tensor) -> bool:
        """Whether the kernels can run this block. In float32, cuDNN is faster."""
        if not kernels.available(images_BCHW.device) or (images_BCHW.is_cuda and images_BCHW.dtype == torch.float32):
            return False
        ends = [block.convs[0], block.convs[2], *([block.project] if block.project else [])]
        widths = [width for conv in ends for width in conv.weight.shape[:2]]
        return all(width % 128 == 0 or width in (16, 32, 64) for width in widths)

    def skip(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, Pooled]:
        from codinet.kernels.rows.conv_rows import conv_rows

        assert self.projection is not None
        pooled_BC = x_BCHW.new_empty(len(x_BCHW), len(self.projection.bias_N))
        y_BCHW = conv_rows(x_BCHW, self.projection, relu=False, pooled_BC=pooled_BC, arrived=self.counters)
        return y_BCHW, pooled_BC

    def run(self, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor, pooled_BC: Pooled, listed: Listed) -> None:
        from codinet.kernels.rows.conv_rows import add_conv_rows_, conv_rows

        (first, middle, last), counters = self.convs, self.counters
        h_RCHW = conv_rows(x_BCHW, first, listed=listed, gather=True, arrived=counters)
        if listed.number is None:
            h_RCHW = _conv_relu(h_RCHW, *self.middle)
        else:
            h_RCHW = conv_rows(h_RCHW, middle, listed=listed, arrived=counters)
        add_conv_rows_(y_BCHW, listed, h_RCHW, last, pooled_BC=pooled_BC, arrived=counters)


def shortcut(rows: BlockRows, x_BCHW: torch.Tensor, pooled_BC: Pooled) -> tuple[torch.Tensor, Pooled]:
    """What skipping a block gives: x itself, or a tensor in other memory; and what is known of its pooled features."""
    y_BCHW, y_pooled_BC = rows.skip(x_BCHW)
    same = y_BCHW.data_ptr() == x_BCHW.data_ptr() and y_BCHW.shape == x_BCHW.shape
    if same and y_BCHW.stride() == x_BCHW.stride():
        return x_BCHW, pooled_BC
    return _own(y_BCHW, x_BCHW), None if pooled_BC is None else y_pooled_BC
