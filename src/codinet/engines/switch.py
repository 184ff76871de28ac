"""Any routed network as one CUDA graph, in which a block runs only for the images that its router lists.

A block reads these images by their index and writes them back in place. There are two kinds of blocks:

- `BottleneckRows`: a folded bottleneck in half precision, with kernels that read and write rows by index.
- `CompiledRows`: any other block, through torch.compile.

And two ways to compute as much as the list requires:

- A switch (`cuda_switch`): the block is recorded for several numbers of images, and a kernel picks one. The list is
  filled up to the next size with a spare row, so at most 1/32 of the batch is computed in vain.
- A count, for small batches of networks that consist of bottlenecks: the block is recorded once, and programs for
  images that are not listed end at once. A switch takes longer than that.

A graph is recorded for each batch shape. It serves every threshold and forced path. On the CPU the host decides, for
tests.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch
from torch import nn
from torch.nn import functional as F

from codinet import cuda_graphs, kernels
from codinet.cuda_switch import ROUTER, Body, Decisions, Result, SwitchGraph, why_no_switch
from codinet.engines.contract import Engine, InputSpec
from codinet.engines.folding import Conv, FoldedBlock, FoldedBottleneck, fold
from codinet.engines.gather import copy_rows
from codinet.errors import UserError
from codinet.kernels.rows import Listed
from codinet.model import RoutedNetwork, require_network
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, Routers, State, fc_routers, pool

if TYPE_CHECKING:
    from codinet.kernels.rows.router_rows import Listing

Pooled = torch.Tensor | None
"""Features of all images pooled for the routers, B×C; None where the routers need none, or they are not at hand."""

_CPU = torch.device("cpu")
_MAX_SHAPES = 4  # batch shapes whose graphs are kept, with their memory
_MOST_COUNTED = 16  # images of a batch up to which a count is faster than a switch
_RECOMPILES = 10_000  # one function is compiled for every block; torch's limit is meant for another case


def why_not(model: RoutedNetwork, device: torch.device) -> str | None:
    """Why the switch engine does not support a network on a device: a sentence, or None if it does."""
    if model.routers is None:
        return "The switch engine needs a network with routers; use a static engine."
    if any(getattr(router, "per_position", False) for router in model.routers.modules()):
        return "The switch engine decides about whole images, and these routers about positions; use another engine."
    return why_no_switch(device)


class SwitchEngine(Engine):
    """One CUDA graph per batch shape, with a switch per block.

    Args:
        model: The network on a CUDA device; the engine keeps a folded copy.
        threshold: The run probability from which a block runs.
    """

    name: ClassVar[str] = "switch"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        require_network(model)
        spec = InputSpec.of(model)
        assert spec.device is not None
        self.device = spec.device
        reason = why_not(model, self.device)
        if reason is not None and reason != why_no_switch(_CPU):  # on the CPU the host decides
            raise UserError(reason)
        super().__init__(spec, threshold=threshold)
        self.net = fold(model)
        self.fc = fc_routers(self.net.routers)
        self.ready: dict[tuple[int, ...], _Plan] = {}
        self.lock = threading.Lock()  # calls use the same buffers
        self.done = torch.cuda.Event() if self.device.type == "cuda" else None

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        with self.lock, self._on_device():
            if self.done is not None:  # the previous call may be on another stream
                self.done.wait()
            key = tuple(images_BCHW.shape)
            if key not in self.ready:
                while len(self.ready) >= _MAX_SHAPES:
                    del self.ready[next(iter(self.ready))]
                self.ready[key] = _Plan(self, images_BCHW)
            output = self.ready[key](images_BCHW, margin_limit(threshold), force)
            if self.done is not None:
                self.done.record()
            return output

    def _on_device(self) -> AbstractContextManager[None]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()


class Recorder(Protocol):
    """Runs or records the parts of a network; `SwitchGraph` or `HostSwitch`."""

    def record(self, function: Callable[[], Result]) -> Result: ...
    def switch(self, block: int, parts_PB2: torch.Tensor, decisions: Decisions, body: Body) -> None: ...


class HostSwitch:
    """Runs each part at once; the host decides."""

    def record(self, function: Callable[[], Result]) -> Result:
        return function()

    def switch(self, block: int, parts_PB2: torch.Tensor, decisions: Decisions, body: Body) -> None:
        scores_B2, forced_B = parts_PB2.sum(dim=0), decisions.forced_BN[:, block]
        asked_B = scores_B2[:, 1] - scores_B2[:, 0] >= decisions.limit
        runs_B = torch.where(forced_B == ROUTER, asked_B, forced_B == 1)
        decisions.scores_BN2[:, block], decisions.path_BN[:, block] = scores_B2, runs_B.float()
        images_R = runs_B.nonzero()[:, 0]
        decisions.index.fill_(decisions.batch)
        decisions.index[: len(images_R)] = images_R
        if len(images_R):
            body(Listed(decisions.index[: -(-len(images_R) // decisions.step) * decisions.step]))


class Counted:
    """Runs each part at once, with lists that have a count. The kernel of the scores has decided already."""

    def __init__(self, listed: Listed) -> None:
        self.listed = listed

    def record(self, function: Callable[[], Result]) -> Result:
        return function()

    def switch(self, _block: int, _parts_PB2: torch.Tensor, _decisions: Decisions, body: Body) -> None:
        body(self.listed)


class _Plan:
    """An engine with buffers for batches of one shape; on CUDA also with a graph."""

    def __init__(self, engine: SwitchEngine, images_BCHW: torch.Tensor) -> None:
        net = engine.net
        assert net.routers is not None
        self.routers, self.fc, self.batch = net.routers, engine.fc, len(images_BCHW)
        self.decisions = Decisions(self.batch, len(net.blocks), images_BCHW.device)
        self.limit, self.forced = 0.0, False
        on_gpu = images_BCHW.is_cuda
        self.compiled = partial(torch.compile, dynamic=False) if on_gpu else lambda function: function
        number, first = self.batch + self.decisions.spare, net.first
        if first is not None and BlockedStem.supports(first[0], images_BCHW):
            self.stem: Stem = BlockedStem(*first, images_BCHW, number)
        else:
            self.stem = PlainStem(self.compiled(net.stem), images_BCHW, number)
        self.head = self.compiled(net.head)
        self.listing = _listing(net.blocks, engine.fc, self.decisions, images_BCHW)
        self.rows = [self._rows_of(block, images_BCHW) for block in net.blocks]
        self.launch = self._record(images_BCHW.device) if on_gpu else None

    def _record(self, device: torch.device) -> Callable[[], None]:
        """Record the network; returns what launches it."""
        if self.listing is not None:
            self.graph, self.logits_BK = cuda_graphs.capture(
                partial(self._forward, Counted(self.listing.listed)), device, benchmark=True
            )
            return self.graph.replay
        graph = SwitchGraph(device)
        limits: dict[str, Any] = {"recompile_limit": _RECOMPILES, "accumulated_recompile_limit": _RECOMPILES}
        with torch._dynamo.config.patch(**limits), graph.building():
            self.logits_BK = self._forward(graph)
        return graph.launch

    def _rows_of(self, block: FoldedBlock, images_BCHW: torch.Tensor) -> "BlockRows":
        if type(block) is FoldedBottleneck and BottleneckRows.supports(block, images_BCHW):
            return BottleneckRows(block, self.listing)
        return CompiledRows(block, self.compiled)

    def __call__(self, images_BCHW: torch.Tensor, limit: float, forced_BN: torch.Tensor | None) -> RoutedOutput:
        decisions = self.decisions
        self.stem.fill(images_BCHW)
        if limit != self.limit:
            decisions.limit.fill_(limit)
            self.limit = limit
        if forced_BN is not None:
            decisions.forced_BN.copy_(forced_BN > 0.5)
        elif self.forced:
            decisions.forced_BN.fill_(ROUTER)
        self.forced = forced_BN is not None
        if self.launch is not None:
            self.launch()
        else:
            self.logits_BK = self._forward(HostSwitch() if self.listing is None else Counted(self.listing.listed))
        return RoutedOutput(self.logits_BK.clone(), decisions.scores_BN2.clone(), decisions.path_BN.clone())

    def _forward(self, recorder: Recorder) -> torch.Tensor:
        """Logits of the images in the buffer; records the network or runs it."""
        x_BCHW, pooled_BC = recorder.record(self.stem)
        score: _FCScores | _ModuleScores = (
            _FCScores(self.fc, self.listing)
            if self.fc
            else _ModuleScores(self.routers, self.stem.images(self.batch), recorder)
        )
        score.features_changed(recorder, x_BCHW, pooled_BC)
        for k, rows in enumerate(self.rows):
            parts_PB2 = score.parts(recorder, k, x_BCHW, self.batch)
            y_BCHW, pooled_BC = x_BCHW, score.pooled_BC
            if not rows.keeps:
                y_BCHW, pooled_BC = recorder.record(partial(_shortcut, rows, x_BCHW, pooled_BC))
            recorder.switch(k, parts_PB2, self.decisions, partial(rows.run, x_BCHW, y_BCHW, pooled_BC))
            if y_BCHW is not x_BCHW and k + 1 < len(self.rows):
                score.features_changed(recorder, y_BCHW, pooled_BC)
            x_BCHW = y_BCHW
        return recorder.record(lambda: self.head(x_BCHW[: self.batch]).float())


def _listing(
    blocks: Sequence[FoldedBlock], fc: list[FCRouter] | None, decisions: Decisions, images_BCHW: torch.Tensor
) -> "Listing | None":
    """Where decisions and lists with a count are kept; None if a switch is faster, or required."""
    if not (_counts(images_BCHW) and fc and all(type(block) is FoldedBottleneck for block in blocks)):
        return None
    if not all(BottleneckRows.supports(block, images_BCHW) for block in cast(list[FoldedBottleneck], blocks)):
        return None
    from codinet.kernels.rows.conv_rows import split_counters
    from codinet.kernels.rows.router_rows import Listing

    count = torch.zeros(1, dtype=torch.int32, device=images_BCHW.device)
    d, counters = decisions, split_counters(images_BCHW)
    return Listing(d.forced_BN, d.limit, d.scores_BN2, d.path_BN, Listed(d.index, count), counters)


def _counts(images_BCHW: torch.Tensor) -> bool:
    """Whether lists with a count are faster than a switch for this batch."""
    return images_BCHW.is_cuda and len(images_BCHW) <= _MOST_COUNTED


def _own(x_BCHW: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """x in channels_last and in other memory than the source."""
    x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
    same = x_BCHW.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return x_BCHW.clone() if same else x_BCHW


def _shortcut(rows: "BlockRows", x_BCHW: torch.Tensor, pooled_BC: Pooled) -> tuple[torch.Tensor, Pooled]:
    """What skipping a block gives: x itself, or a tensor in other memory; and what is known of its pooled features."""
    y_BCHW, y_pooled_BC = rows.skip(x_BCHW)
    same = y_BCHW.data_ptr() == x_BCHW.data_ptr() and y_BCHW.shape == x_BCHW.shape
    if same and y_BCHW.stride() == x_BCHW.stride():
        return x_BCHW, pooled_BC
    return _own(y_BCHW, x_BCHW), None if pooled_BC is None else y_pooled_BC


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
        _, self.channels, height, width = images_BCHW.shape
        self.sides, self.pool, self.bias = (height // 2, width // 2), pool, conv.bias
        self.pools_3x3 = kernels.available(images_BCHW.device) and str(pool) == str(nn.MaxPool2d(3, 2, 1))
        taps = F.pad(conv.weight, (1, 0, 1, 0)).unflatten(3, (4, 2)).unflatten(2, (4, 2))  # O×C×4×2×4×2
        weight = taps.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        self.weight = F.pad(weight, (0, 0, 0, 0, 0, 16 - weight.shape[1])).contiguous(memory_format=torch.channels_last)
        shape = number, 16, self.sides[0] + 3, self.sides[1] + 3
        self.buffer = images_BCHW.new_zeros(shape).to(memory_format=torch.channels_last)

    @staticmethod
    def supports(conv: Conv, images_BCHW: torch.Tensor) -> bool:
        """Whether the stem is the one of a ResNet, in half precision, and the images have even sides."""
        if images_BCHW.is_cuda and images_BCHW.dtype == torch.float32:
            return False
        geometry = tuple(conv.weight.shape[2:]), conv.stride, conv.padding
        sides_even = all(side % 2 == 0 for side in images_BCHW.shape[2:])
        return geometry == ((7, 7), (2, 2), (3, 3)) and conv.weight.shape[1] <= 4 and sides_even

    def _inside(self, batch: int) -> torch.Tensor:
        """The images in the buffer as B×C×2×2×(H/2)×(W/2)."""
        height, width = self.sides
        inside = self.buffer[:batch, : 4 * self.channels, 2 : 2 + height, 2 : 2 + width]
        return inside.unflatten(1, (self.channels, 2, 2))

    def fill(self, images_BCHW: torch.Tensor) -> None:
        height, width = self.sides
        pixels = images_BCHW.unflatten(3, (width, 2)).unflatten(2, (height, 2))  # B×C×(H/2)×2×(W/2)×2
        self._inside(len(images_BCHW)).copy_(pixels.permute(0, 1, 3, 5, 2, 4))

    def images(self, batch: int) -> torch.Tensor:
        return self._inside(batch).permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)

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


# Routers


class _FCScores:
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


class _ModuleScores:
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
    """Any block, as one compiled function of the list of images, whose length may vary."""

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
        # Compiled code would copy all of y to change some images.
        copy_rows(y_BCHW, index_R, self.run_rows(self.block, x_BCHW, y_BCHW, pooled_BC, index_R))


def _run_rows(
    block: FoldedBlock, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor, pooled_BC: Pooled, index_R: torch.Tensor
) -> torch.Tensor:
    x_RCHW = x_BCHW.index_select(0, index_R)
    y_RCHW = block.run(x_RCHW, x_RCHW if y_BCHW is x_BCHW else y_BCHW.index_select(0, index_R)).to(y_BCHW.dtype)
    if pooled_BC is not None:
        pooled_BC.index_copy_(0, index_R, pool(y_RCHW))
    return y_RCHW


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
