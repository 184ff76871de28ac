"""How the network kernel divides its work: the only numbers to change for another device.

There is one tuning for each number of programs per image. More than one program per image is faster for small batches.
Programs that wait for each other must all be on the device at once, so a tuning with more than one serves only batches
that fit. `python -m tools.tune_network` measures tunings. This module does not import Triton.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["taps", "rows", "pairs"]
WIDTHS = 16, 32, 64  # channels of the groups of the networks that the kernel runs


@dataclass(frozen=True)
class Cut:
    """How to run the convolutions and routers of one group of blocks."""

    form: Form  # see `conv_forms`
    pixels: int  # rows of a product: pixels, or pairs of pixels
    pipeline_depth: int  # loads in flight (Triton's num_stages): 1 loads through the L1 cache, more prefetch past it
    channels: int | None = None  # columns of a product in the form taps; None: all
    lookahead: int = 4  # routers evaluated at once, a power of two

    def __str__(self) -> str:
        channels = "" if self.channels is None else f"/{self.channels}"
        return f"{self.form} {self.pixels}{channels}×{self.pipeline_depth}, lookahead {self.lookahead}"


@dataclass(frozen=True)
class Tuning:
    """How to run a network: one cut per group, and what all groups have in common."""

    cuts: tuple[Cut, ...]
    warps: int = 4
    split: int = 1  # programs per image
    registers: int | None = None  # most registers per thread; None: the compiler decides

    def __str__(self) -> str:
        cap = "" if self.registers is None else f", ≤{self.registers} registers"
        return f"{'; '.join(map(str, self.cuts))}; warps {self.warps}, split {self.split}{cap}"


# For 16-bit features on an H200, ordered by programs per image. Beyond 8, synchronisation costs more than it gains.
TUNINGS: tuple[Tuning, ...] = (
    Tuning((Cut("pairs", 64, 1), Cut("taps", 64, 3, channels=16), Cut("taps", 32, 4, channels=16)), split=8),
    Tuning((Cut("pairs", 64, 1), Cut("taps", 64, 3), Cut("taps", 64, 3, channels=16)), split=4),
    Tuning((Cut("pairs", 64, 1), Cut("rows", 64, 1), Cut("taps", 64, 3, channels=32)), split=2),
    Tuning((Cut("rows", 64, 2), Cut("taps", 128, 3), Cut("taps", 64, 3)), registers=128),
)

# For devices with little shared memory: the smallest products and no prefetching.
SMALL = Cut("taps", 16, 1, channels=16, lookahead=1)


def uniform(cut: Cut, groups: int, *, split: int = 1) -> Tuning:
    """Returns a tuning with the same cut for every group."""
    return Tuning((cut,) * groups, split=split)


def tunings_for(batch: int, processors: int, *, exact: bool = False) -> list[Tuning]:
    """Returns tunings for a network, the fastest first.

    Args:
        batch: Images per launch.
        processors: Multiprocessors of the device.
        exact: Compute in float32. Tensor cores would round, so products are sums in registers and have to be small.

    Returns:
        The tuning to try first, and one that needs the least shared memory.
    """
    known: Sequence[Tuning] = TUNINGS
    if exact:
        cuts = tuple(Cut("taps", 64, 1, channels=min(width, 32)) for width in WIDTHS)
        known = [Tuning(cuts, warps=8, split=split) for split in (4, 2, 1)]
    fastest = next(tuning for tuning in known if tuning.split == 1 or tuning.split * batch <= processors)
    return [fastest, uniform(SMALL, len(WIDTHS))]
