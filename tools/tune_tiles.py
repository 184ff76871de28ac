"""Measures tile sizes of the training kernels on a GPU: `python -m tools.tune_tiles --channels 16 32 64 --images 1024`.

Each kernel is timed in bfloat16 for a list of tile sizes, next to the time that moving its bytes takes and to PyTorch's
own convolutions. Copy the best sizes into `tile_sizes.choose`. Needs CUDA and Triton.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch.nn import functional as F

from codinet.kernels.block.conv_kernels import pack
from codinet.kernels.block.fused_block import ACTIVATED, FEATURES, GRADIENT, MASKED, PLAIN, RESIDUAL, BlockKernels
from codinet.kernels.block.tile_sizes import Tiles, choose

SETS = 4  # sets of buffers, used in turn so that they do not stay in the cache between calls
CALLS = 12

CONVOLUTIONS = {  # by channels: pair, lines of a product, rows, warps
    16: [(2, 64, 8, 4), (2, 64, 16, 4), (2, 64, 16, 8), (2, 64, 32, 4), (2, 32, 16, 2)],
    32: [(1, 64, 8, 4), (1, 64, 16, 4), (2, 64, 16, 8), (2, 32, 16, 4)],
    64: [(1, 32, 8, 4), (1, 32, 8, 8), (1, 16, 8, 2), (1, 16, 8, 4)],
}
WEIGHTS = {  # by channels: pair, lines of a product, warps
    16: [(2, 64, 4), (2, 64, 8), (2, 32, 4)],
    32: [(2, 64, 8), (2, 32, 8), (1, 32, 4)],
    64: [(1, 64, 8), (1, 32, 8)],
}

Calls = dict[str, tuple[int, Callable[[int], object]]]
"""By name: the feature maps that a kernel moves, and a function that launches it on a set of buffers."""


def candidates(channels: int, height: int, width: int) -> Iterator[Tiles]:
    """Returns sizes to try for the convolutions. The sizes of the weight gradient stay as chosen."""
    base = choose(channels, height, width)
    for pair, lines, rows, warps in CONVOLUTIONS[channels]:
        yield replace(base, pair=pair, images=lines * pair // width, rows=rows, warps=warps)


def weight_candidates(channels: int, height: int, width: int) -> Iterator[Tiles]:
    """Returns sizes to try for the weight gradient."""
    base = choose(channels, height, width)
    for pair, lines, warps in WEIGHTS[channels]:
        yield replace(base, weight_pair=pair, weight_images=lines * pair // width, weight_warps=warps)


class Bench:
    """Tensors of one shape, and the kernels that process them."""

    def __init__(self, number: int, channels: int, size: int) -> None:
        self.shape = (number, channels, size, size)
        self.maps = [[self._map() for _ in range(5)] for _ in range(SETS)]
        self.weight = torch.randn(channels, channels, 3, 3, device="cuda") * 0.1
        self.coefficients = torch.randn(4, channels, device="cuda")
        self.gamma = torch.ones(channels, device="cuda")
        self.run = torch.rand(number, device="cuda")
        self.pool = torch.randn(number, channels, device="cuda")
        self.floor = number * channels * size * size * 2 / 4.8e6  # microseconds to move one map

    def _map(self) -> torch.Tensor:
        features = torch.randn(self.shape, device="cuda", dtype=torch.bfloat16)
        return features.contiguous(memory_format=torch.channels_last)

    def convolutions(self, tiles: Tiles) -> Calls:
        def at(i: int) -> BlockKernels:
            return BlockKernels(self.maps[i][0], tiles)

        m, c, run, pool = self.maps, self.coefficients, self.run, self.pool
        w = pack(self.weight, self.weight, tiles.pair, torch.bfloat16)[0, 0]
        return {
            "conv": (2, lambda i: at(i).conv(m[i][0], w, read=PLAIN, write=FEATURES)),
            "conv, activated": (
                2,
                lambda i: at(i).conv(m[i][0], w, read=ACTIVATED, write=FEATURES, source_coefficients=c),
            ),
            "back, masked": (
                4,
                lambda i: at(i).conv(
                    *(m[i][0], w),
                    read=GRADIENT,
                    write=MASKED,
                    source_y=m[i][1],
                    source_coefficients=c,
                    y=m[i][2],
                    coefficients=c,
                ),
            ),
            "back, residual": (
                5,
                lambda i: at(i).conv(
                    *(m[i][0], w),
                    read=GRADIENT,
                    write=RESIDUAL,
                    source_y=m[i][1],
                    source_coefficients=c,
                    dz=m[i][2],
                    dout=m[i][3],
                    dpool=pool,
                    run=run,
                ),
            ),
        }

    def weight_gradients(self, tiles: Tiles) -> Calls:
        def at(i: int) -> BlockKernels:
            return BlockKernels(self.maps[i][0], tiles)

        m, c = self.maps, self.coefficients
        return {
            "weight": (3, lambda i: at(i).weight_gradient(m[i][0], c, m[i][1], m[i][2], c, self.weight)),
            "weight, plain": (3, lambda i: at(i).weight_gradient(m[i][0], None, m[i][1], m[i][2], c, self.weight)),
        }

    def others(self) -> Calls:
        """Kernels without tile sizes, and PyTorch's convolutions."""
        m, c, run, pool = self.maps, self.coefficients, self.run, self.pool
        tiles = choose(*self.shape[1:])
        sums = torch.rand(1024, 2, self.shape[1], device="cuda")
        weight = self.weight.bfloat16().contiguous(memory_format=torch.channels_last)

        def pytorch(i: int, outputs: list[bool]) -> object:
            return torch.ops.aten.convolution_backward(
                m[i][0], m[i][1], weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, outputs
            )

        return {
            "mix": (3, lambda i: BlockKernels(m[i][0], tiles).mix(m[i][1], c, run)),
            "mix, back": (
                4,
                lambda i: BlockKernels(m[i][0], tiles).mix_gradient(m[i][2], pool, m[i][1], c, run, m[i][3]),
            ),
            "pack": (0, lambda i: pack(self.weight, self.weight, tiles.pair, torch.bfloat16)),
            "norm, back": (0, lambda i: BlockKernels(m[i][0], tiles).norm_gradient(sums, self.gamma, c)),
            "PyTorch conv": (2, lambda i: F.conv2d(m[i][0], weight, padding=1)),
            "PyTorch data gradient": (2, lambda i: pytorch(i, [True, False, False])),
            "PyTorch weight gradient": (2, lambda i: pytorch(i, [False, True, False])),
        }


def _microseconds(call: Callable[[int], object]) -> float:
    """Returns the device time of one call, measured in a CUDA graph of several."""
    for i in range(SETS):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            call(i % SETS)
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return min(times)


def _print_row(tiles: Tiles, calls: Calls) -> None:
    cells = []
    for name, (_, call) in calls.items():
        try:
            cells.append(f"{name} {_microseconds(call):6.1f}")
        except Exception as error:  # for example, too large for the device
            cells.append(f"{name} {type(error).__name__}")
            torch.cuda.synchronize()
    print(f"  {tuple(vars(tiles).values())}  " + "  ".join(cells), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure tile sizes of the training kernels on a GPU.")
    parser.add_argument("--channels", type=int, nargs="+", choices=list(CONVOLUTIONS), default=list(CONVOLUTIONS))
    parser.add_argument("--images", type=int, default=1024)
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("tuning requires a CUDA device")
    torch.backends.cudnn.benchmark = True
    for channels in args.channels:
        size = 512 // channels
        bench = Bench(args.images, channels, size)
        print(f"{channels} channels, {size}×{size}, {args.images} images: moving one map takes {bench.floor:.1f} µs")
        for name, (maps, call) in bench.others().items():
            print(f"  {name:26s} {_microseconds(call):7.1f} µs   floor {maps * bench.floor:6.1f}", flush=True)
        for tiles in candidates(channels, size, size):
            _print_row(tiles, bench.convolutions(tiles))
        for tiles in weight_candidates(channels, size, size):
            _print_row(tiles, bench.weight_gradients(tiles))


if __name__ == "__main__":
    main()
