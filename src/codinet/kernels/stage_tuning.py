"""How `stage` cuts its work: the only numbers to change for a device that is faster with others.

There is one tuning for each number of programs that share an image. More than one pays where images are few. Programs
that wait for each other must all be on the device at once, so a tuning serves only batches that fit. Knows nothing of
Triton.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["taps", "rows", "pairs"]
WIDTHS = 16, 32, 64  # of the networks in the table


@dataclass(frozen=True)
class Cut:
    """One way to run the convolutions of a width."""

    form: Form  # see `stage_convs`
    pixels: int  # rows of a product: pixels, or pairs of them
    stages: int  # loads in flight: 1 through the L1 cache, more ahead of time and past it
    channels: int | None = None  # columns of a product in the form taps; None: all
    group: int = 4  # routers evaluated at once, a power of two

    def __str__(self) -> str:
        channels = "" if self.channels is None else f"/{self.channels}"
        return f"{self.form} {self.pixels}{channels}×{self.stages}, ask {self.group}"


@dataclass(frozen=True)
class Tuning:
    """One way to run a network: a cut for each stage, and what they share."""

    cuts: tuple[Cut, ...]
    warps: int = 4
    split: int = 1  # programs to an image
    registers: int | None = None  # at most per thread; None: the compiler decides

    def __str__(self) -> str:
        cap = "" if self.registers is None else f", ≤{self.registers} registers"
        return f"{'; '.join(map(str, self.cuts))}; warps {self.warps}, split {self.split}{cap}"


# For 16-bit features, the most programs per image first. More than 8 lose more by synchronising than they gain.
TUNINGS: tuple[Tuning, ...] = (
    Tuning((Cut("pairs", 64, 1), Cut("taps", 64, 3, channels=16), Cut("taps", 32, 4, channels=16)), split=8),
    Tuning((Cut("pairs", 64, 1), Cut("taps", 64, 3), Cut("taps", 64, 3, channels=16)), split=4),
    Tuning((Cut("pairs", 64, 1), Cut("rows", 64, 1), Cut("taps", 64, 3, channels=32)), split=2),
    Tuning((Cut("rows", 64, 2), Cut("taps", 128, 3), Cut("taps", 64, 3)), registers=128),
)


def uniform(cut: Cut, stages: int, *, split: int = 1) -> Tuning:
    """One cut for every stage."""
    return Tuning((cut,) * stages, split=split)


# For devices with little shared memory: the smallest products, no loads ahead of time.
SMALL = Cut("taps", 16, 1, channels=16, group=1)


def tunings_for(widths: Sequence[int], batch: int, processors: int, *, exact: bool = False) -> list[Tuning]:
    """Tunings for a network of such stages on a device with this many multiprocessors, the fastest first.

    The last one needs the least shared memory. `exact` is float32, which tensor cores would round: products are then
    sums in registers, so they have to be small.
    """
    if exact:
        cuts = tuple(Cut("taps", 64, 1, channels=min(width, 32)) for width in widths)
        known: Sequence[Tuning] = [Tuning(cuts, warps=8, split=split) for split in (4, 2, 1)]
    elif tuple(widths) == WIDTHS:
        known = TUNINGS
    else:
        known = [uniform(Cut("taps", 64, 2, channels=16, group=1), len(widths))]
    usual = next(tuning for tuning in known if tuning.split == 1 or tuning.split * batch <= processors)
    return [usual, uniform(SMALL, len(widths))]


def tuning_for(widths: Sequence[int], batch: int, processors: int, *, exact: bool = False) -> Tuning:
    """The first of `tunings_for`."""
    return tunings_for(widths, batch, processors, exact=exact)[0]
