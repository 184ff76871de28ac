"""What a CUDA graph's own branches cost: `python -m codinet.tuning.conditional`.

A graph of blocks, each two kernels of about two microseconds, is timed without branches, and with each block in the
body of a conditional node that a kernel before it opens or not, as a router would. The difference with all bodies run
is what conditional nodes cost; with none run, what is left of a skipped block. No engine uses them: it is here to be
measured against `graph`, which branches inside of one kernel. Needs CUDA 12.4 or later and `cuda.bindings`.
"""

import importlib
import statistics
from collections.abc import Sequence
from typing import Any

import torch

BLOCKS = 54
GROUPS = 8  # of threads in a kernel, as `graph` has programs for one image
CLOCKS = 3500  # that a kernel waits: about two microseconds
REPLAYS = 30

SOURCE = b"""
typedef unsigned long long Handle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(Handle handle, unsigned int value);
extern "C" __global__ void decide(Handle handle, const int *path, int block) {
    cudaGraphSetConditional(handle, path[block]);
}
extern "C" __global__ void look(const int *path, int *seen, int block) { seen[block] = path[block]; }
extern "C" __global__ void work(int *runs, int clocks) {
    long long start = clock64();
    while (clock64() - start < clocks) {}
    if (threadIdx.x == 0 && blockIdx.x == 0) runs[0] += 1;
}
"""


class Trial:
    """One graph of BLOCKS blocks, with conditional nodes or without."""

    def __init__(self, cuda: Any, nvrtc: Any, path_N: torch.Tensor, *, conditional: bool) -> None:
        import numpy

        self.cuda, self.path_N = cuda, path_N
        self.runs = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.seen = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
        (program,) = _checked(nvrtc.nvrtcCreateProgram(SOURCE, b"trial.cu", 0, [], []))
        major, minor = torch.cuda.get_device_capability()
        _checked(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=compute_{major}{minor}".encode()]))
        (size,) = _checked(nvrtc.nvrtcGetPTXSize(program))
        ptx = b" " * size
        _checked(nvrtc.nvrtcGetPTX(program, ptx))
        image = numpy.frombuffer(ptx, dtype=numpy.uint8)
        self.kept: list[Any] = [image]  # arguments that the driver may still read
        (self.module,) = _checked(cuda.cuModuleLoadData(image.ctypes.data))
        (self.context,) = _checked(cuda.cuCtxGetCurrent())
        (self.graph,) = _checked(cuda.cuGraphCreate(0))
        last: list[Any] = []
        for block in range(BLOCKS):
            if conditional:
                (handle,) = _checked(cuda.cuGraphConditionalHandleCreate(self.graph, self.context, 0, 0))
                told = [(int(handle), "uint64"), (path_N.data_ptr(), "uint64"), (block, "int32")]
                last = [self._kernel(self.graph, last, b"decide", 1, 1, told)]
                params = cuda.CUgraphNodeParams()
                params.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
                params.conditional.handle = handle
                params.conditional.type = cuda.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
                params.conditional.size = 1
                params.conditional.ctx = self.context
                last = [self._node(self.graph, last, params)]
                self._block(params.conditional.phGraph_out[0], [])
                self.kept.append(params)
            else:  # a router that nobody listens to
                told = [(path_N.data_ptr(), "uint64"), (self.seen.data_ptr(), "uint64"), (block, "int32")]
                last = [self._kernel(self.graph, last, b"look", 1, 1, told)]
                last = self._block(self.graph, last)
        (self.ready,) = _checked(cuda.cuGraphInstantiate(self.graph, 0))

    def _block(self, graph: Any, last: list[Any]) -> list[Any]:
        told = [(self.runs.data_ptr(), "uint64"), (CLOCKS, "int32")]
        for _ in range(2):
            last = [self._kernel(graph, last, b"work", GROUPS, 128, told)]
        return last

    def _kernel(
        self, graph: Any, after: list[Any], name: bytes, groups: int, threads: int, values: Sequence[tuple[int, str]]
    ) -> Any:
        import numpy

        arrays = [numpy.array([value], dtype=kind) for value, kind in values]
        pointers = numpy.array([array.ctypes.data for array in arrays], dtype=numpy.uint64)
        self.kept += [*arrays, pointers]
        params = self.cuda.CUgraphNodeParams()
        params.type = self.cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        (params.kernel.func,) = _checked(self.cuda.cuModuleGetFunction(self.module, name))
        params.kernel.gridDimX, params.kernel.gridDimY, params.kernel.gridDimZ = groups, 1, 1
        params.kernel.blockDimX, params.kernel.blockDimY, params.kernel.blockDimZ = threads, 1, 1
        params.kernel.kernelParams = pointers.ctypes.data
        return self._node(graph, after, params)

    def _node(self, graph: Any, after: list[Any], params: Any) -> Any:
        try:
            answer = self.cuda.cuGraphAddNode(graph, after, None, len(after), params)
        except TypeError:  # before CUDA 13 there was no place for data of the edges
            answer = self.cuda.cuGraphAddNode(graph, after, len(after), params)
        return _checked(answer)[0]

    def microseconds(self) -> tuple[float, int]:
        """Of one pass, the median of some; and how many kernels it ran, counted on the device."""
        stream, times = torch.cuda.current_stream().cuda_stream, []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.runs.zero_()
            start.record()
            _checked(self.cuda.cuGraphLaunch(self.ready, stream))
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * start.elapsed_time(end))
        return statistics.median(times), int(self.runs.item())


def _checked(answer: Any) -> tuple[Any, ...]:
    """What a call of `cuda.bindings` gave beside its status."""
    status, *others = answer
    if int(status) != 0:
        raise RuntimeError(f"the driver answers {status!r}")
    return tuple(others)


def main() -> None:
    try:
        cuda, nvrtc = importlib.import_module("cuda.bindings.driver"), importlib.import_module("cuda.bindings.nvrtc")
        path_N = torch.ones(BLOCKS, dtype=torch.int32, device="cuda")
        plain = Trial(cuda, nvrtc, path_N, conditional=False)
        branching = Trial(cuda, nvrtc, path_N, conditional=True)
        rows = [("no conditional nodes", *plain.microseconds())]
        halves = torch.arange(BLOCKS, device="cuda") % 2
        for name, path in (("all bodies run", torch.ones_like(halves)), ("half run", halves), ("none run", halves * 0)):
            path_N.copy_(path)
            rows.append((name, *branching.microseconds()))
    except Exception as error:  # whatever is missing, from the package to the driver
        print(f"Conditional nodes cannot be tried here: {type(error).__name__}: {error}")
        return
    for name, time, kernels in rows:
        print(f"{name:22} {time:8.1f} µs  {kernels:4d} kernels of blocks ran")
    node, skipped = (rows[1][1] - rows[0][1]) / BLOCKS, rows[3][1] / BLOCKS
    print(f"a conditional node costs {node:.2f} µs, a skipped block {skipped:.2f} µs")


if __name__ == "__main__":
    main()
