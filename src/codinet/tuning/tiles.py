"""Which tile sizes are fastest here: `python -m codinet.tuning.tiles [--channels 16 32 64] [--images 1024]`.

Times each fused kernel, in bfloat16, against the time its bytes take and against the framework's convolutions, for a
list of tile sizes. What it finds goes into `tiles.choose` by hand.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch.nn import functional as F

from codinet.kernels.block import Launch
from codinet.kernels.pack import pack
from codinet.kernels.tiles import Tiles, choose

SETS = 4  # of buffers, taken in turn: one would stay in the cache between calls
CALLS = 12


def microseconds(call: Callable[[int], object]) -> float:
    """Of one call, in a graph of several, so that launching them costs nothing."""
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


CONVOLUTIONS = {  # pair, lines of a product, rows, warps
    16: [(2, 64, 8, 4), (2, 64, 16, 4), (2, 64, 16, 8), (2, 64, 32, 4), (2, 32, 16, 2)],
    32: [(1, 64, 8, 4), (1, 64, 16, 4), (2, 64, 16, 8), (2, 32, 16, 4)],
    64: [(1, 32, 8, 4), (1, 32, 8, 8), (1, 16, 8, 2), (1, 16, 8, 4)],
}
WEIGHTS = {  # pair, lines, warps
    16: [(2, 64, 4), (2, 64, 8), (2, 32, 4)],
    32: [(2, 64, 8), (2, 32, 8), (1, 32, 4)],
    64: [(1, 64, 8), (1, 32, 8)],
}


def candidates(channels: int, height: int, width: int) -> Iterator[Tiles]:
    """Sizes for the convolutions; the weight gradient's stay as chosen."""
    base = choose(channels, height, width)
    for pair, lines, rows, warps in CONVOLUTIONS[channels]:
        yield replace(base, pair=pair, images=lines * pair // width, rows=rows, warps=warps)


def weight_candidates(channels: int, height: int, width: int) -> Iterator[Tiles]:
    base = choose(channels, height, width)
    for pair, lines, warps in WEIGHTS[channels]:
        yield replace(base, weight_pair=pair, weight_images=lines * pair // width, weight_warps=warps)


class Bench:
    """Tensors of one shape, and the kernels over them."""

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
        made = torch.randn(self.shape, device="cuda", dtype=torch.bfloat16)
        return made.contiguous(memory_format=torch.channels_last)

    def kernels(self, tiles: Tiles) -> dict[str, tuple[int, Callable[[int], object]]]:
        """Name, maps moved, call."""

        def at(i: int) -> Launch:
            return Launch(self.maps[i][0], tiles)

        m, c, run, pool = self.maps, self.coefficients, self.run, self.pool
        w = pack(self.weight, self.weight, tiles.pair, torch.bfloat16)[0, 0]
        return {
            "conv": (2, lambda i: at(i).conv(m[i][0], w, read=0, write=0)),
            "conv, activated": (2, lambda i: at(i).conv(m[i][0], w, read=1, write=0, source_coefficients=c)),
            "back, masked": (
                4,
                lambda i: at(i).conv(
                    m[i][0], w, read=2, write=1, source_y=m[i][1], source_coefficients=c, y=m[i][2], coefficients=c
                ),
            ),
            "back, residual": (
                5,
                lambda i: at(i).conv(
                    *(m[i][0], w),
                    read=2,
                    write=2,
                    source_y=m[i][1],
                    source_coefficients=c,
                    dz=m[i][2],
                    dout=m[i][3],
                    dpool=pool,
                    run=run,
                ),
            ),
        }

    def weights(self, tiles: Tiles) -> dict[str, tuple[int, Callable[[int], object]]]:
        def at(i: int) -> Launch:
            return Launch(self.maps[i][0], tiles)

        m, c = self.maps, self.coefficients
        return {
            "weight": (3, lambda i: at(i).weight_gradient(m[i][0], c, m[i][1], m[i][2], c, self.weight)),
            "weight, plain": (3, lambda i: at(i).weight_gradient(m[i][0], None, m[i][1], m[i][2], c, self.weight)),
        }

    def others(self) -> dict[str, tuple[int, Callable[[int], object]]]:
        m, c, run, pool = self.maps, self.coefficients, self.run, self.pool
        tiles = choose(*self.shape[1:])
        sums = torch.rand(1024, 2, self.shape[1], device="cuda")
        weight = self.weight.bfloat16().contiguous(memory_format=torch.channels_last)

        def framework(i: int, which: list[bool]) -> object:
            return torch.ops.aten.convolution_backward(
                m[i][0], m[i][1], weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, which
            )

        return {
            "mix": (3, lambda i: Launch(m[i][0], tiles).mix(m[i][1], c, run)),
            "mix, back": (4, lambda i: Launch(m[i][0], tiles).mix_gradient(m[i][2], pool, m[i][1], c, run)),
            "pack": (0, lambda i: pack(self.weight, self.weight, tiles.pair, torch.bfloat16)),
            "norm, back": (0, lambda i: Launch(m[i][0], tiles).norm_gradient(sums, self.gamma, c)),
            "framework conv": (2, lambda i: F.conv2d(m[i][0], weight, padding=1)),
            "framework data gradient": (2, lambda i: framework(i, [True, False, False])),
            "framework weight gradient": (2, lambda i: framework(i, [False, True, False])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--images", type=int, default=1024)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tile sizes are timed on a CUDA device, and there is none")
    torch.backends.cudnn.benchmark = True
    for channels in args.channels:
        size = 512 // channels
        bench = Bench(args.images, channels, size)
        print(f"{channels} channels, {size}×{size}, {args.images} images: one map takes {bench.floor:.1f} µs")
        for name, (maps, call) in bench.others().items():
            print(f"  {name:26s} {microseconds(call):7.1f} µs   floor {maps * bench.floor:6.1f}", flush=True)
        for tiles in candidates(channels, size, size):
            _try(tiles, bench.kernels(tiles))
        for tiles in weight_candidates(channels, size, size):
            _try(tiles, bench.weights(tiles))


def _try(tiles: Tiles, kernels: dict[str, tuple[int, Callable[[int], object]]]) -> None:
    cells = []
    for name, (_, call) in kernels.items():
        try:
            cells.append(f"{name} {microseconds(call):6.1f}")
        except Exception as error:  # too large for the chip: said, and the next one tried
            cells.append(f"{name} {type(error).__name__}")
            torch.cuda.synchronize()
    print(f"  {tuple(vars(tiles).values())}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
