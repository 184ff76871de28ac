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
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from codinet import cuda_graphs
from codinet.cuda_switch import ROUTER, Body, Decisions, Result, SwitchGraph, why_no_switch
from codinet.engines.contract import Engine, InputSpec, unpack
from codinet.engines.folded_network import fold
from codinet.engines.folding import FoldedBlock, FoldedBottleneck
from codinet.engines.partial_batch import (
    BlockedStem,
    BlockRows,
    BottleneckRows,
    CompiledRows,
    FCScores,
    Head,
    ModuleScores,
    PlainHead,
    PlainStem,
    PooledHead,
    Recorder,
    Stem,
    shortcut,
)
from codinet.errors import UserError
from codinet.kernels.rows import Listed
from codinet.model import RoutedNetwork, require_network
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, fc_routers

if TYPE_CHECKING:
    from codinet.kernels.rows.router_rows import Listing

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
        current = self.device.type != "cuda" or torch.cuda.current_device() == self.device.index
        return nullcontext() if current else torch.cuda.device(self.device)


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
        self.listing = _listing(net.blocks, engine.fc, self.decisions, images_BCHW)
        self.head: Head = PlainHead(self.compiled(net.head))
        if self.listing is not None and net.last is not None:
            self.head = PooledHead(net.last, self.listing.arrived)
        self.rows = [self._rows_of(block, images_BCHW) for block in net.blocks]
        self.launch = self._record(images_BCHW.device) if on_gpu else None

    def _record(self, device: torch.device) -> Callable[[], None]:
        """Record the network; returns what launches it."""
        if self.listing is not None:
            self.graph, self.outputs = cuda_graphs.capture(
                partial(self._forward, Counted(self.listing.listed)), device, benchmark=True
            )
            return self.graph.replay
        graph = SwitchGraph(device)
        limits: dict[str, Any] = {"recompile_limit": _RECOMPILES, "accumulated_recompile_limit": _RECOMPILES}
        with torch._dynamo.config.patch(**limits), graph.building():
            self.outputs = self._forward(graph)
        return graph.launch

    def _rows_of(self, block: FoldedBlock, images_BCHW: torch.Tensor) -> BlockRows:
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
            self.outputs = self._forward(HostSwitch() if self.listing is None else Counted(self.listing.listed))
        return unpack(self.outputs.clone(), self.batch, len(self.rows))

    def _forward(self, recorder: Recorder) -> torch.Tensor:
        """All outputs for the images in the buffer, see `unpack`; records the network or runs it."""
        x_BCHW, pooled_BC = recorder.record(self.stem)
        score: FCScores | ModuleScores = (
            FCScores(self.fc, self.listing)
            if self.fc
            else ModuleScores(self.routers, self.stem.images(self.batch), recorder)
        )
        score.features_changed(recorder, x_BCHW, pooled_BC)
        for k, rows in enumerate(self.rows):
            parts_PB2 = score.parts(recorder, k, x_BCHW, self.batch)
            y_BCHW, pooled_BC = x_BCHW, score.pooled_BC
            if not rows.keeps:
                y_BCHW, pooled_BC = recorder.record(partial(shortcut, rows, x_BCHW, pooled_BC))
            recorder.switch(k, parts_PB2, self.decisions, partial(rows.run, x_BCHW, y_BCHW, pooled_BC))
            if y_BCHW is not x_BCHW and k + 1 < len(self.rows):
                score.features_changed(recorder, y_BCHW, pooled_BC)
            x_BCHW = y_BCHW
        return recorder.record(lambda: self._outputs(x_BCHW, pooled_BC))

    def _outputs(self, x_BCHW: torch.Tensor, pooled_BC: torch.Tensor | None) -> torch.Tensor:
        logits_BK = self.head(x_BCHW, pooled_BC, self.batch).float()
        return torch.cat([each.flatten() for each in (logits_BK, self.decisions.scores_BN2, self.decisions.path_BN)])


def _listing(
    blocks: Sequence[FoldedBlock], fc: list[FCRouter] | None, decisions: Decisions, images_BCHW: torch.Tensor
) -> "Listing | None":
    """Where decisions and lists with a count are kept; None if a switch is faster, or required."""
    if not (_counts(images_BCHW) and fc and all(type(block) is FoldedBottleneck for block in blocks)):
        return None
    if not all(BottleneckRows.supports(block, images_BCHW) for block in cast(list[FoldedBottleneck], blocks)):
        return None
    from codinet.kernels.rows.conv_rows import zero_counters
    from codinet.kernels.rows.router_rows import Listing

    count = torch.zeros(1, dtype=torch.int32, device=images_BCHW.device)
    d, counters = decisions, zero_counters(images_BCHW)
    return Listing(d.forced_BN, d.limit, d.scores_BN2, d.path_BN, Listed(d.index, count), counters)


def _counts(images_BCHW: torch.Tensor) -> bool:
    """Whether lists with a count are faster than a switch for this batch."""
    return images_BCHW.is_cuda and len(images_BCHW) <= _MOST_COUNTED
