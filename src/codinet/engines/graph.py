"""The whole network in one kernel launch, replayed as a CUDA graph: the GPU never waits for the host.

Each image has its own programs, which evaluate the routers and skip blocks (`kernels.network`), so a batch is not
gathered and no decision goes to the host. Features are in the engine's dtype; sums, routers and the head in float32. A
graph is captured for each batch shape and replayed at any threshold and with any forced path. Supports networks of
basic blocks with the default router or none. On the CPU the kernels run in Triton's interpreter, for tests.
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
from codinet.cuda_graphs import CapturedCall
from codinet.engines.contract import Engine, InputSpec, fixed_path, require_finite, unpack
from codinet.engines.folded_network import fold_blocks
from codinet.engines.folding import FoldedBasic, FoldedBlock, fold_pair
from codinet.errors import UserError
from codinet.kernels.network.network_tuning import WIDTHS, Tuning, tunings_for
from codinet.kernels.network.network_weights import BlockWeights, GroupWeights, NetworkWeights, RouterWeights
from codinet.model import CoDiNet, RoutedNetwork, require_network
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, fc_routers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_SHAPES = 8  # batch shapes whose graphs are kept, with their memory
_ROUTER = 2  # in the place of a forced decision: evaluate the router


def why_not(model: RoutedNetwork, device: torch.device, *, routers: bool = True) -> str | None:
    """Why the graph engine does not support a network on a device.

    Args:
        model: The network; it is neither copied nor changed.
        device: Where the engine would run.
        routers: False for `StaticGraphEngine`, which does not evaluate routers.

    Returns:
        A sentence, or None if the engine supports the network.
    """
    if not kernels.available(device):
        return "The graph engine needs a CUDA device and Triton; use another engine."
    if not isinstance(model, CoDiNet):
        return "The graph engine supports networks from create_model only; use another engine for an adopted one."
    blocks = [block for block in model.blocks if type(block) is BasicBlock]
    if len(blocks) != len(model.blocks):
        return f"The graph engine supports basic blocks only, got {model.config.arch}; use another engine."
    if routers and model.routers is not None and fc_routers(model.routers) is None:
        return f"The graph engine supports fc routers only, got {model.config.router}; use another engine."
    if any(block.conv1.out_channels != block.conv2.out_channels for block in blocks):
        return "The graph engine does not support pruned networks; use another engine."
    if not {block.conv1.out_channels for block in blocks} <= set(WIDTHS):
        return "The graph engine supports widths of 16, 32 and 64; use another engine."
    return None


class GraphEngine(Engine):
    """One launch for the network, one CUDA graph per batch shape.

    Args:
        model: The network; the engine keeps a folded copy.
        threshold: The run probability from which a block runs.
        dtype: What features are computed in: float32, bfloat16 or float16.
        device: Where the engine runs. Default: the network's own device.
        tuning: Replaces the table of `codinet.kernels.network.network_tuning`.
    """

    name: ClassVar[str] = "graph"
    _evaluates_routers: ClassVar[bool] = True

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
        reason = why_not(model, self.device, routers=self._evaluates_routers) or self._why_not_dtype()
        if reason is not None:
            raise UserError(reason)
        assert isinstance(model, CoDiNet)
        if tuning is not None:
            require_kind("tuning", tuning, Tuning, "a Tuning")
        spec = InputSpec.of(model)._replace(dtype=None, device=None)  # images are converted
        super().__init__(spec, threshold=threshold)
        require_finite(model)
        model = copy.deepcopy(model).eval().float()  # folded in float32, whatever the engine computes in
        blocks = fold_blocks(model)
        stem, head = fold_pair(model.conv1, model.bn1), model.fc
        self.weights = NetworkWeights(
            stem.weight,
            stem.bias,
            split_groups(blocks, fc_routers(model.routers) if self._evaluates_routers else None),
            head.weight.detach(),
            head.bias.detach(),
        )
        if tuning is not None and len(tuning.cuts) != len(self.weights.groups):
            raise UserError(f"A tuning needs {len(self.weights.groups)} cuts, one per group of blocks, got {tuning}.")
        self.blocks, self.classes = len(blocks), len(head.bias)
        self.decided_N = torch.full((self.blocks,), _ROUTER, dtype=torch.int8)
        self.ready: dict[tuple[int, ...], _Ready] = {}
        self.packed: dict[Tuning, Any] = {}
        self.lock = threading.Lock()  # calls use the same buffers

    def _why_not_dtype(self) -> str | None:
        if self.dtype not in DTYPES:
            return f"The graph engine computes in float32, bfloat16 or float16, got {self.dtype}."
        if self.device.type == "cpu" and self.dtype == torch.bfloat16:
            return "On the CPU the graph engine computes in float32 or float16, got torch.bfloat16."
        return None

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        with self.lock, self._on_device():
            key = tuple(images_BCHW.shape)
            if key not in self.ready:
                while len(self.ready) >= _MAX_SHAPES:
                    del self.ready[next(iter(self.ready))]
                self.ready[key] = _Ready(self, images_BCHW)
            return self.ready[key](images_BCHW, margin_limit(threshold), force)

    def _on_device(self) -> AbstractContextManager[None]:
        """Make the engine's device the current one, where kernels are launched."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def launch_for(self, images_BCHW: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function from images of this shape to logits: one launch that can be part of a captured CUDA graph.

        The next call overwrites the logits.
        """
        batch = len(images_BCHW)
        outputs = self.new_outputs(batch)
        buffers, logits_BK = self.launch_buffers(batch, outputs), unpack(outputs, batch, self.blocks).logits_BK
        buffers.limit.fill_(margin_limit(self.threshold))
        with self._on_device():
            launcher = self.fitting_launcher(self.to_input(images_BCHW), buffers)

        def launch(images_BCHW: torch.Tensor) -> torch.Tensor:
            with self._on_device():
                launcher(self.to_input(images_BCHW), buffers)
            return logits_BK

        return launch

    def to_input(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Images in the device, dtype and layout that the kernel reads."""
        return images_BCHW.to(self.device, self.dtype).contiguous()

    def fitting_launcher(self, images_BCHW: torch.Tensor, buffers: Any) -> Any:
        """The fastest launcher for these images whose kernel fits the device; `UserError` if there is none.

        On a GPU, compiling a kernel shows how much shared memory it needs. The interpreter has no limit.
        """
        reason = ""
        for launcher in self.launchers(len(images_BCHW)):
            if self.device.type != "cuda":
                return launcher
            try:
                launcher.require_fit(images_BCHW, buffers)
            except kernels.TooLargeError as error:
                reason = reason or str(error)
            else:
                return launcher
        raise UserError(f"The graph engine cannot run here: {reason}; use another tuning or engine.")

    def launchers(self, batch: int) -> Iterator[Any]:
        """The network packed for each tuning that suits this batch size, the fastest first."""
        from codinet.kernels.network.network_launch import Launcher  # needs Triton

        on_gpu = self.device.type == "cuda"
        # Programs of one image wait for each other, which the interpreter cannot do.
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else 0
        known = tunings_for(batch, processors, exact=self.dtype == torch.float32)
        tunings = known if self.tuning is None else [self.tuning]
        for tuning in tunings:
            if tuning not in self.packed:
                self.packed[tuning] = Launcher(self.weights, tuning, self.dtype, self.device)
            yield self.packed[tuning]

    def launch_buffers(self, batch: int, outputs: torch.Tensor) -> Any:
        """The buffers of a launch, which writes into the parts of `outputs`."""
        from codinet.kernels.network.network_launch import LaunchBuffers  # needs Triton

        limit = torch.zeros(1, device=self.device)
        counters_B2 = torch.zeros(batch, 2, dtype=torch.int32, device=self.device)
        force_BN = self.decided_N.to(self.device).repeat(batch, 1)
        return LaunchBuffers(limit, force_BN, *unpack(outputs, batch, self.blocks), counters_B2)

    def new_outputs(self, batch: int) -> torch.Tensor:
        """A vector for all outputs; see `unpack`."""
        return torch.zeros(batch * (self.classes + 3 * self.blocks), device=self.device)


class StaticGraphEngine(GraphEngine):
    """The same kernels without routers, for one fixed path: the baseline of `GraphEngine`.

    Args:
        model: The network. Its routers may be of any kind, because they are not evaluated.
        path: The blocks to run (N, 0 or 1). Default: all.
        dtype: See `GraphEngine`.
        device: See `GraphEngine`.
        tuning: See `GraphEngine`.
    """

    name: ClassVar[str] = "static-graph"
    _evaluates_routers: ClassVar[bool] = False

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
        self.spec = self.spec._replace(blocks=None)
        self.decided_N = torch.tensor(fixed_path(path, self.blocks), dtype=torch.int8)


class _Ready:
    """An engine with buffers for batches of one shape; on CUDA also with a graph."""

    def __init__(self, engine: GraphEngine, images_BCHW: torch.Tensor) -> None:
        self.engine, self.batch = engine, len(images_BCHW)
        self.outputs = engine.new_outputs(self.batch)
        self.buffers = engine.launch_buffers(self.batch, self.outputs)
        inputs = engine.to_input(images_BCHW)
        self.launcher = engine.fitting_launcher(inputs, self.buffers)
        self.limit, self.forced = 0.0, False
        self.run: Callable[[torch.Tensor], None] = (
            CapturedCall(self._forward, inputs) if inputs.is_cuda else self._forward
        )

    def _forward(self, images_BCHW: torch.Tensor) -> None:
        self.launcher(images_BCHW, self.buffers)

    def __call__(self, images_BCHW: torch.Tensor, limit: float, forced_BN: torch.Tensor | None) -> RoutedOutput:
        if limit != self.limit:
            self.buffers.limit.fill_(limit)
            self.limit = limit
        if forced_BN is not None:
            self.buffers.force_BN.copy_(forced_BN > 0.5)
        elif self.forced:
            self.buffers.force_BN.copy_(self.engine.decided_N)
        self.forced = forced_BN is not None
        self.run(images_BCHW if isinstance(self.run, CapturedCall) else self.engine.to_input(images_BCHW))
        return unpack(self.outputs.clone(), self.batch, self.engine.blocks)


def _device(model: RoutedNetwork, device: Any) -> torch.device:
    """The given device, or the network's own."""
    try:
        return torch.device(next(model.parameters()).device if device is None else device)
    except (RuntimeError, TypeError, StopIteration) as error:
        raise UserError(f"Unknown device {shown(device)}; use cuda, or leave it out.") from error


def split_groups(blocks: Sequence[FoldedBlock], routers: Sequence[FCRouter] | None) -> list[GroupWeights]:
    """The blocks in groups, split before each block that changes the shape."""
    groups: list[tuple[int, list[BlockWeights]]] = []
    for k, block in enumerate(blocks):
        assert isinstance(block, FoldedBasic)
        if not groups or not block.keeps:
            groups.append((block.stride, []))
        first, second = block.convs
        router = None if routers is None else _router(routers[k])
        groups[-1][1].append(BlockWeights(first.weight, first.bias, second.weight, second.bias, router))
    return [GroupWeights(weights, stride) for stride, weights in groups]


def _router(router: FCRouter) -> RouterWeights:
    layers = router.hidden.weight, router.hidden.bias, router.out.weight, router.out.bias
    return RouterWeights(*(parameter.detach() for parameter in layers))
