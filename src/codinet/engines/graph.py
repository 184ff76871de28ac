"""The whole network in one launch, replayed as a CUDA graph: nothing waits for the host in between.

Each image has its own programs, which evaluate the routers and skip by themselves (`codinet.kernels.stage`), so a
batch needs no gathering and no decision goes to the host. Features are in the engine's dtype; sums, routers and
the head in float32. A graph is captured for each shape of batch and then replayed, at any threshold and with any
forced path. Takes networks of basic blocks with the default router, or with none. On the CPU the kernels run in
Triton's interpreter, for tests.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from codinet import kernels
from codinet.backbones import BasicBlock
from codinet.checks import require_kind, shown
from codinet.engines.contract import Engine, Takes, fixed_path, require_finite
from codinet.engines.folding import FoldedBasic, FoldedBlock, fold_blocks, fold_pair
from codinet.engines.graph_capture import Captured
from codinet.errors import UserError
from codinet.kernels.stage_tuning import Tuning, tunings_for
from codinet.kernels.stage_weights import BlockWeights, NetworkWeights, RouterWeights, StageWeights
from codinet.model import CoDiNet, RoutedNetwork, require_network
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, fc_routers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SHAPES = 8  # the graphs of this many batch shapes are kept, with the memory they hold
_ASK = 2  # instead of a forced decision


def why_not(model: RoutedNetwork, device: torch.device, *, routers: bool = True) -> str | None:
    """The sentence that says why the engine cannot take a network there; None if it can.

    Without `routers` it is about the static engine, which does not evaluate them.
    """
    if not kernels.available(device):
        return "The graph engine needs a CUDA device and Triton; use another engine."
    if not isinstance(model, CoDiNet):
        return "The graph engine takes networks of the registry only; use another engine for an adopted one."
    blocks = [block for block in model.blocks if type(block) is BasicBlock]
    if len(blocks) != len(model.blocks):
        return f"The graph engine takes basic blocks only, not those of {model.config.arch}; use another engine."
    if routers and model.routers is not None and fc_routers(model.routers) is None:
        return f"The graph engine takes FC routers only, not {model.config.router} ones; use another engine."
    widths = {conv.out_channels for block in blocks for conv in (block.conv1, block.conv2)}
    if any(width < 16 or width & (width - 1) for width in widths):
        return "The graph engine needs widths that are powers of two from 16 on; use another engine."
    return None


class GraphEngine(Engine):
    """One launch, one graph per batch shape. A `tuning` replaces those of the table."""

    name: ClassVar[str] = "graph"
    _asks: ClassVar[bool] = True  # whether routers are evaluated, where there are any

    def __init__(
        self,
        model: RoutedNetwork,
        *,
        threshold: float = 0.5,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        require_network(model)
        self.device = _device(model, device)
        self.dtype, self.tuning = dtype, tuning
        reason = why_not(model, self.device, routers=self._asks) or self._why_not_dtype()
        if reason is not None:
            raise UserError(reason)
        assert isinstance(model, CoDiNet)
        if tuning is not None:
            require_kind("tuning", tuning, Tuning, "a Tuning")
        super().__init__(Takes.of(model)._replace(dtype=None, device=None), threshold=threshold)  # images are converted
        require_finite(model)
        model = copy.deepcopy(model).eval().float()  # folded in float32, whatever the engine computes in
        blocks = fold_blocks(model)
        stem, head = fold_pair(model.conv1, model.bn1), model.fc
        self.weights = NetworkWeights(
            stem.weight,
            stem.bias,
            split_stages(blocks, fc_routers(model.routers) if self._asks else None),
            head.weight.detach(),
            head.bias.detach(),
        )
        if tuning is not None and len(tuning.cuts) != len(self.weights.stages):
            raise UserError(f"A tuning has a cut for each of the {len(self.weights.stages)} stages, got {tuning}.")
        self.blocks, self.classes = len(blocks), len(head.bias)
        self.decided_N = torch.full((self.blocks,), _ASK, dtype=torch.int8)
        self.ready: dict[tuple[int, ...], _Ready] = {}
        self.packed: dict[Tuning, Any] = {}
        self.turn = threading.Lock()  # all callers share the engine's buffers, so they take turns

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

    def within(self, images_BCHW: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Images of this shape to logits in one launch, as part of a captured step; the next call overwrites them."""
        batch = len(images_BCHW)
        answer = self.answer(batch)
        traffic, logits_BK = self.traffic(batch, answer), self.parts(batch, answer)[0]
        traffic.limit.fill_(margin_limit(self.threshold))
        with self._here():
            launcher = self.fitting_launcher(self.taken(images_BCHW), traffic)

        def ask(images_BCHW: torch.Tensor) -> torch.Tensor:
            with self._here():
                launcher(self.taken(images_BCHW), traffic)
            return logits_BK

        return ask

    def taken(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Images as the kernel reads them."""
        return images_BCHW.to(self.device, self.dtype).contiguous()

    def fitting_launcher(self, images_BCHW: torch.Tensor, traffic: Any) -> Any:
        """The first launcher for these images whose kernel fits the device; `UserError` if there is none.

        On a GPU a kernel is compiled to learn how much shared memory it needs. The interpreter has no limit.
        """
        reason = ""
        for launcher in self.launchers(len(images_BCHW)):
            if self.device.type != "cuda":
                return launcher
            try:
                launcher.require_fit(images_BCHW, traffic)
            except kernels.TooLargeError as error:
                reason = reason or str(error)
            else:
                return launcher
        raise UserError(f"The graph engine cannot run here: {reason}; use another tuning or engine.")

    def launchers(self, batch: int) -> Iterator[Any]:
        """The network packed for each tuning that a batch of this size may use, the fastest first."""
        from codinet.kernels.stage_launch import Launcher  # needs Triton

        on_gpu = self.device.type == "cuda"
        # Programs of one image wait for each other, which is impossible in the interpreter.
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else 0
        widths = [stage.channels for stage in self.weights.stages]
        known = tunings_for(widths, batch, processors, exact=self.dtype == torch.float32)
        tunings = known if self.tuning is None else [self.tuning]
        for tuning in tunings:
            if tuning not in self.packed:
                self.packed[tuning] = Launcher(self.weights, tuning, self.dtype, self.device)
            yield self.packed[tuning]

    def traffic(self, batch: int, answer: torch.Tensor) -> Any:
        """The buffers of a launch; its answers are parts of `answer`, see `parts`."""
        from codinet.kernels.stage_launch import Traffic  # needs Triton

        limit = torch.zeros(1, device=self.device)
        tickets_B2 = torch.zeros(batch, 2, dtype=torch.int32, device=self.device)
        force_BN = self.decided_N.to(self.device).repeat(batch, 1)
        logits_BK, scores_BN2, path_BN = self.parts(batch, answer)
        return Traffic(limit, force_BN, logits_BK, scores_BN2, path_BN, tickets_B2)

    def parts(self, batch: int, answer: torch.Tensor) -> list[torch.Tensor]:
        """logits_BK, scores_BN2 and path_BN, one after the other in `answer`."""
        shapes = (batch, self.classes), (batch, self.blocks, 2), (batch, self.blocks)
        parts = answer.split([torch.Size(shape).numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def answer(self, batch: int) -> torch.Tensor:
        """A vector for all answers, so that one copy takes them out of a graph's memory."""
        return torch.zeros(batch * (self.classes + 3 * self.blocks), device=self.device)


class StaticGraphEngine(GraphEngine):
    """The same kernels without routers: every block, or those of one fixed path. The baseline of `graph`.

    Routers of the network may be of any kind: they are not evaluated.
    """

    name: ClassVar[str] = "static-graph"
    _asks: ClassVar[bool] = False

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
        self.decided_N = torch.tensor(fixed_path(path, self.blocks), dtype=torch.int8)


class _Ready:
    """An engine with buffers for batches of one shape; on CUDA with a graph over them."""

    def __init__(self, engine: GraphEngine, images_BCHW: torch.Tensor) -> None:
        self.engine, self.batch = engine, len(images_BCHW)
        self.answer = engine.answer(self.batch)
        self.traffic = engine.traffic(self.batch, self.answer)
        inputs = engine.taken(images_BCHW)
        self.launcher = engine.fitting_launcher(inputs, self.traffic)
        self.limit, self.forced = 0.0, False
        self.run: Callable[[torch.Tensor], None] = Captured(self._forward, inputs) if inputs.is_cuda else self._forward

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
        self.run(images_BCHW if isinstance(self.run, Captured) else self.engine.taken(images_BCHW))
        return RoutedOutput(*self.engine.parts(self.batch, self.answer.clone()))


def _device(model: RoutedNetwork, device: Any) -> torch.device:
    """The device asked for, or the network's."""
    try:
        return torch.device(next(model.parameters()).device if device is None else device)
    except (RuntimeError, TypeError, StopIteration) as error:
        raise UserError(f"There is no device {shown(device)}; use cuda, or leave it out.") from error


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
