"""CUDA graphs that branch on the device: a switch runs one of several recorded bodies, chosen by a kernel before it.

A whole network becomes one graph, and the device never waits for the host. Everything is recorded on one stream into
one memory pool. Bodies return nothing, so all of them use the same memory. Requires a driver for CUDA 12.8 and
cuda-bindings, which torch for CUDA 13 installs.
"""

import functools
import gc
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from codinet.kernels.rows import Listed

Result = TypeVar("Result")
Body = Callable[[Listed], None]
"""Runs a block for listed images."""

SIZES = 32  # bodies of a switch: numbers of images for which a block is recorded
ROUTER = 2  # in the place of a forced decision: the router decides

_THREADS = 1024
_LEAST_DRIVER = 12080
_DECIDE = b"""
typedef unsigned long long Handle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(Handle handle, unsigned int value);

// One block of threads: the decisions of a batch, the list of images that run, and the body for that many images.
extern "C" __global__ void decide(
    Handle handle, const float *parts, int number, const signed char *forced, const float *limit, int batch, int blocks,
    int block, int step, int bodies, float *scores, float *path, long long *index
) {
    __shared__ int counts[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, total = 0;
    for (int start = 0; start < batch; start += blockDim.x) {
        int image = start + threadIdx.x;
        bool runs = false;
        if (image < batch) {
            float skip = 0, run = 0;
            for (int part = 0; part < number; part++) {
                skip += parts[2 * (part * batch + image)];
                run += parts[2 * (part * batch + image) + 1];
            }
            long long cell = (long long)image * blocks + block;
            int choice = forced[cell];
            runs = choice == 2 ? run - skip >= limit[0] : choice == 1;
            scores[2 * cell] = skip;
            scores[2 * cell + 1] = run;
            path[cell] = runs ? 1.0f : 0.0f;
        }
        unsigned int ballot = __ballot_sync(0xffffffffu, runs);
        if (lane == 0) counts[warp] = __popc(ballot);
        __syncthreads();
        int place = total + __popc(ballot & ((1u << lane) - 1));
        for (int i = 0; i < warps; i++) {
            if (i < warp) place += counts[i];
            total += counts[i];
        }
        if (runs) index[place] = image;
        __syncthreads();
    }
    for (int i = total + threadIdx.x; i < bodies * step; i += blockDim.x) index[i] = batch;
    if (threadIdx.x == 0) cudaGraphSetConditional(handle, total == 0 ? bodies : (total - 1) / step);
}
"""


class Decisions:
    """The decisions of a batch, and what they depend on besides the scores.

    Args:
        batch: The number of images.
        blocks: The number of blocks.
        device: Where decisions are made.

    Attributes:
        step: The numbers of images for which blocks are recorded are its multiples.
        spare: Whether features need a row behind the last image. Index lists are filled up with it.
        index: The images that run the current block, filled up to a multiple of `step`.
        limit: The least margin of the scores with which a block runs.
        forced_BN: Decisions to take, or `ROUTER`.
        scores_BN2: The scores of all routers.
        path_BN: The decisions.
    """

    def __init__(self, batch: int, blocks: int, device: torch.device) -> None:
        self.batch, self.blocks = batch, blocks
        self.step = -(-batch // SIZES)
        self.sizes = [self.step * (i + 1) for i in range(-(-batch // self.step))]
        self.spare = self.step > 1
        self.index = torch.zeros(self.sizes[-1], dtype=torch.int64, device=device)
        self.limit = torch.zeros(1, device=device)
        self.forced_BN = torch.full((batch, blocks), ROUTER, dtype=torch.int8, device=device)
        self.scores_BN2 = torch.zeros(batch, blocks, 2, device=device)
        self.path_BN = torch.zeros(batch, blocks, device=device)


def why_no_switch(device: torch.device) -> str | None:
    """Why graphs with switches cannot be built on a device: a sentence, or None if they can."""
    if device.type != "cuda":
        return "Switches in CUDA graphs need a CUDA device."
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "Switches in CUDA graphs need cuda-bindings; install it with pip install cuda-bindings."
    status, version = _bindings()[0].cuDriverGetVersion()
    if int(status) != 0 or version < _LEAST_DRIVER:
        return "Switches in CUDA graphs need a driver for CUDA 12.8 or later."
    return None


def _bindings() -> tuple[Any, Any]:
    return importlib.import_module("cuda.bindings.driver"), importlib.import_module("cuda.bindings.nvrtc")


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call of the driver returned besides its status."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA reports {status.name}")
    return tuple(values)


@functools.cache
def _decide_kernel(device_index: int) -> Any:
    """The compiled kernel. Its module stays loaded as long as the process runs."""
    driver, nvrtc = _bindings()
    major, minor = torch.cuda.get_device_capability(device_index)
    (program,) = _checked(nvrtc.nvrtcCreateProgram(_DECIDE, b"decide.cu", 0, [], []))
    _checked(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=compute_{major}{minor}".encode()]))
    (size,) = _checked(nvrtc.nvrtcGetPTXSize(program))
    code = b" " * size
    _checked(nvrtc.nvrtcGetPTX(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    (module,) = _checked(driver.cuModuleLoadData(np.frombuffer(code, dtype=np.uint8).ctypes.data))
    (kernel,) = _checked(driver.cuModuleGetFunction(module, b"decide"))
    return kernel


class SwitchGraph:
    """A CUDA graph that is recorded part by part.

    Args:
        device: A CUDA device, which must be the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self.driver, _ = _bindings()
        self.device, self.stream, self.pool = device, torch.cuda.Stream(device), torch.cuda.MemPool()
        (self.context,) = _checked(self.driver.cuCtxGetCurrent())
        (self.graph,) = _checked(self.driver.cuGraphCreate(0))
        self.last: list[Any] = []  # the nodes that the next part follows
        self.ready: Any = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Record parts in this context; afterwards the graph can be launched."""
        gc.collect()
        torch.cuda.synchronize(self.device)
        collecting, tuning = gc.isenabled(), torch.backends.cudnn.benchmark
        gc.disable()  # it could free memory on the device in the middle of a recording, which is not allowed there
        torch.backends.cudnn.benchmark = True  # shapes are fixed, so the search pays
        try:
            with torch.cuda.use_mem_pool(self.pool, self.device), torch.cuda.stream(self.stream):
                yield
        finally:
            torch.backends.cudnn.benchmark = tuning
            if collecting:
                gc.enable()
        torch.cuda.synchronize(self.device)
        (self.ready,) = _checked(self.driver.cuGraphInstantiate(self.graph, 0))
        _checked(self.driver.cuGraphUpload(self.ready, self.stream.cuda_stream))
        torch.cuda.synchronize(self.device)

    def record(self, function: Callable[[], Result]) -> Result:
        """Add what a function launches. It is called once before, to compile and to tune."""
        function()
        result, self.last = self._record_into(self.graph, self.last, function)
        return result

    def switch(self, block: int, parts_PB2: torch.Tensor, decisions: Decisions, body: Body) -> None:
        """Add the decisions of a block, and the block for each number of images.

        Args:
            block: Which block, counted from 0.
            parts_PB2: The router's scores as a sum of parts, float32.
            decisions: What is read and written; the list of images too.
            body: Runs the block. It is called for a list of each size.
        """
        driver = self.driver
        for size in decisions.sizes:  # compiles and tunes
            body(Listed(decisions.index[:size]))
        (handle,) = _checked(driver.cuGraphConditionalHandleCreate(self.graph, self.context, 0, 0))
        _, self.last = self._record_into(
            self.graph, self.last, lambda: self._launch_decide(int(handle), block, parts_PB2, decisions)
        )
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_SWITCH
        params.conditional.size = len(decisions.sizes)
        params.conditional.ctx = self.context
        self.last = list(_checked(driver.cuGraphAddNode(self.graph, self.last, None, len(self.last), params)))
        for size, graph in zip(decisions.sizes, params.conditional.phGraph_out, strict=True):
            self._record_into(graph, [], functools.partial(body, Listed(decisions.index[:size])))

    def _launch_decide(self, handle: int, block: int, parts_PB2: torch.Tensor, decisions: Decisions) -> None:
        d = decisions
        pointers = (parts_PB2, d.forced_BN, d.limit, d.scores_BN2, d.path_BN, d.index)
        parts, forced, limit, scores, path, index = (np.array([t.data_ptr()], np.uint64) for t in pointers)
        number, *sizes = (
            np.array([n], np.int32) for n in (len(parts_PB2), d.batch, d.blocks, block, d.step, len(d.sizes))
        )
        handles = np.array([handle], np.uint64)
        values: list[Any] = [handles, parts, number, forced, limit, *sizes, scores, path, index]
        arguments = np.array([value.ctypes.data for value in values], np.uint64)
        threads = min(_THREADS, -(-d.batch // 32) * 32)
        kernel, stream = _decide_kernel(torch.cuda.current_device()), self.stream.cuda_stream
        _checked(self.driver.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, stream, arguments.ctypes.data, 0))

    def _record_into(self, graph: Any, after: list[Any], function: Callable[[], Result]) -> tuple[Result, list[Any]]:
        """Record a function into a graph; returns its result and the nodes that a next part has to follow."""
        driver, stream = self.driver, self.stream.cuda_stream
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _checked(driver.cuStreamBeginCaptureToGraph(stream, graph, after, None, len(after), mode))
        try:
            result = function()
            _, _, _, last, *_ = _checked(driver.cuStreamGetCaptureInfo(stream))
            last = list(last or [])
        finally:
            ended = driver.cuStreamEndCapture(stream)
        _checked(ended)
        return result, last

    def launch(self) -> None:
        """Run the graph on the current stream."""
        _checked(self.driver.cuGraphLaunch(self.ready, torch.cuda.current_stream(self.device).cuda_stream))

    def __del__(self) -> None:
        if getattr(self, "ready", None) is not None:
            self.driver.cuGraphExecDestroy(self.ready)
        if getattr(self, "graph", None) is not None:
            self.driver.cuGraphDestroy(self.graph)
