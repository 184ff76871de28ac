"""The whole network in one launch, replayed as a CUDA graph: nothing on the way waits for the host.

Each image has programs of its own, which ask the routers and skip by themselves (`codinet.kernels.stage`), so a
batch needs no gathering and a decision no trip to the host. Features are in the engine's dtype; sums, routers and
the head in float32. A graph is captured for each shape of batch and then replayed, at any threshold and with any
forced path. Holds networks of basic blocks with the default router, or with none. On the CPU the kernels run in
Triton's interpreter, which serves tests.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from codinet import kernels
from codinet.engines.contract import Engine, Takes
from codinet.engines.folding import FoldedBasic, FoldedBlock, fold, fold_pair
from codinet.engines.graph_capture import Captured
from codinet.errors import UserError
from codinet.kernels.stage_tuning import Tuning, tuning_for
from codinet.kernels.stage_weights import BlockWeights, NetworkWeights, RouterWeights, StageWeights
from codinet.model import CoDiNet, RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, fc_routers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SHAPES = 8  # batches of so many shapes keep their graphs, and the memory that these hold
_ASK = 2  # in place of a forced decision


def why_not(model: RoutedNetwork, device: torch.device) -> str | None:
    """The sentence that says why the engine cannot hold a network there; None where it can."""
    if not kernels.available(device):
        return "The graph engine needs a CUDA device and Triton; use another engine."
    if not isinstance(model, CoDiNet):
        return "The graph engine holds networks of the registry only; use another engine for an adopted one."
    blocks = fold(model).blocks
    if not all(isinstance(block, FoldedBasic) for block in blocks):
        return f"The graph engine holds basic blocks only, not those of {model.config.arch}; use another engine."
    if model.routers is not None and fc_routers(model.routers) is None:
        return f"The graph engine holds FC routers only, not {model.config.router} ones; use another engine."
    widths = {len(conv.bias) for block in blocks for conv in block.convs}
    if any(width < 16 or width & (width - 1) for width in widths):
        return "The graph engine needs widths that are powers of two from 16 on; use another engine."
    return None


class GraphEngine(Engine):
    """One launch, one graph a batch shape. A `tuning` stands in for the table's."""

    name: ClassVar[str] = "graph"

    def __init__(
        self,
        model: RoutedNetwork,
        *,
        threshold: float = 0.5,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.device = torch.device(next(model.parameters()).device if device is None else device)
        self.dtype, self.tuning = dtype, tuning
        reason = why_not(model, self.device) or self._why_not_dtype()
        if reason is not None:
            raise UserError(reason)
        assert isinstance(model, CoDiNet)
        super().__init__(Takes.of(model)._replace(dtype=None), threshold=threshold)  # images are converted
        model = copy.deepcopy(model).eval().float()  # folded in float32, whatever the engine computes in
        net = fold(model)
        stem, head = fold_pair(model.conv1, model.bn1), model.fc
        self.weights = NetworkWeights(
            stem.weight,
            stem.bias,
            split_stages(net.blocks, fc_routers(net.routers) if self._asks else None),
            head.weight.detach(),
            head.bias.detach(),
        )
        self.blocks, self.classes = len(net.blocks), len(head.bias)
        self.decided_N = torch.full((self.blocks,), _ASK, dtype=torch.int8)
        self.ready: dict[tuple[int, ...], _Ready] = {}
        self.packed: dict[Tuning, Any] = {}
        self.turn = threading.Lock()  # buffers are the engine's, so callers take turns

    _asks = True  # whether routers are asked, where there are any

    def _why_not_dtype(self) -> str | None:
        if self.dtype not in DTYPES:
            return f"The graph engine computes in float32, bfloat16 or float16, not in {self.dtype}."
        if self.device.type == "cpu" and self.dtype == torch.bfloat16:
            return "On the CPU the graph engine computes in float32 or float16 only."
        return None

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        with self.turn, self._here():
            key = tuple(images_BCHW.shape)
            if key not in self.ready:
                while len(self.ready) >= _SHAPES:
                    del self.ready[next(iter(self.ready))]
                self.ready[key] = _Ready(self, images_BCHW)
            return self.ready[key](images_BCHW, margin_limit(threshold), force)

    def _here(self) -> AbstractContextManager[None]:
        """Kernels are launched on the current device, which may not be the engine's."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def within(self, batch: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Images to logits in one launch, for a step that is captured as a whole; the next call writes over them."""
        answer = self.answer(batch)
        traffic, launcher, logits_BK = self.traffic(batch, answer), self.launcher(batch), self.parts(batch, answer)[0]
        traffic.limit.fill_(margin_limit(self.threshold))

        def ask(images_BCHW: torch.Tensor) -> torch.Tensor:
            with self._here():
                launcher(images_BCHW.to(self.device, self.dtype).contiguous(), traffic)
            return logits_BK

        return ask

    def launcher(self, batch: int) -> Any:
        """The network as a batch of this size runs it, packed once for a tuning."""
        from codinet.kernels.stage_launch import Launcher  # needs Triton

        on_gpu = self.device.type == "cuda"
        # Programs of an image wait for each other, which those of the interpreter cannot.
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else 0
        widths = [stage.channels for stage in self.weights.stages]
        tuning = self.tuning or tuning_for(widths, batch, processors, exact=self.dtype == torch.float32)
        if tuning not in self.packed:
            self.packed[tuning] = Launcher(self.weights, tuning, self.dtype, self.device)
        return self.packed[tuning]

    def traffic(self, batch: int, answer: torch.Tensor) -> Any:
        """What a launch reads and writes; its answers are parts of `answer`, which `parts` finds again."""
        from codinet.kernels.stage_launch import Traffic  # needs Triton

        limit = torch.zeros(1, device=self.device)
        tickets_B2 = torch.zeros(batch, 2, dtype=torch.int32, device=self.device)
        force_BN = self.decided_N.to(self.device).repeat(batch, 1)
        logits_BK, scores_BN2, path_BN = self.parts(batch, answer)
        return Traffic(limit, force_BN, logits_BK, scores_BN2, path_BN, tickets_B2)

    def parts(self, batch: int, answer: torch.Tensor) -> list[torch.Tensor]:
        """logits_BK, scores_BN2 and path_BN, which lie one after the other."""
        shapes = (batch, self.classes), (batch, self.blocks, 2), (batch, self.blocks)
        parts = answer.split([torch.Size(shape).numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def answer(self, batch: int) -> torch.Tensor:
        """Room for all answers in one vector, so that one copy takes them out of a graph's memory."""
        return torch.zeros(batch * (self.classes + 3 * self.blocks), device=self.device)


class StaticGraphEngine(GraphEngine):
    """The same kernels without routers: every block, or those of one fixed path. What `graph` is measured against."""

    name: ClassVar[str] = "static-graph"
    _asks = False

    def __init__(
        self,
        model: RoutedNetwork,
        *,
        path: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(model, dtype=dtype, device=device, tuning=tuning)
        self.takes = self.takes._replace(blocks=None)
        self.decided_N = torch.ones(self.blocks, dtype=torch.int8) if path is None else path.to("cpu", torch.int8)


class _Ready:
    """An engine with buffers for batches of one shape; on CUDA with a graph over them."""

    def __init__(self, engine: GraphEngine, images_BCHW: torch.Tensor) -> None:
        self.engine, self.batch = engine, len(images_BCHW)
        self.answer = engine.answer(self.batch)
        self.traffic = engine.traffic(self.batch, self.answer)
        self.launcher = engine.launcher(self.batch)
        self.limit, self.forced = 0.0, False
        inputs = self._taken(images_BCHW)
        self.run: Callable[[torch.Tensor], None] = Captured(self._forward, inputs) if inputs.is_cuda else self._forward

    def _taken(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW.to(self.engine.device, self.engine.dtype).contiguous()

    def _forward(self, images_BCHW: torch.Tensor) -> None:
        self.launcher(images_BCHW, self.traffic)

    def __call__(self, images_BCHW: torch.Tensor, limit: float, forced_BN: torch.Tensor | None) -> RoutedOutput:
        if limit != self.limit:
            self.traffic.limit.fill_(limit)
            self.limit = limit
        if forced_BN is not None:
            self.traffic.force_BN.copy_(forced_BN > 0.5)
        elif self.forced:
            self.traffic.force_BN.copy_(self.engine.decided_N)
        self.forced = forced_BN is not None
        self.run(images_BCHW if isinstance(self.run, Captured) else self._taken(images_BCHW))
        return RoutedOutput(*self.engine.parts(self.batch, self.answer.clone()))


def split_stages(blocks: Sequence[FoldedBlock], routers: Sequence[FCRouter] | None) -> list[StageWeights]:
    """Blocks cut before each one that changes the shape."""
    stages: list[tuple[int, list[BlockWeights]]] = []
    for k, block in enumerate(blocks):
        assert isinstance(block, FoldedBasic)
        if not stages or not block.keeps:
            stages.append((block.stride, []))
        first, second = block.convs
        router = None if routers is None else _router(routers[k])
        stages[-1][1].append(BlockWeights(first.weight, first.bias, second.weight, second.bias, router))
    return [StageWeights(weights, stride) for stride, weights in stages]


def _router(router: FCRouter) -> RouterWeights:
    layers = router.hidden.weight, router.hidden.bias, router.out.weight, router.out.bias
    return RouterWeights(*(parameter.detach() for parameter in layers))
