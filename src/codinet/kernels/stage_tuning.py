"""How `stage` cuts its work: the only numbers to change when a device is faster with others.

A width has one tuning for each number of programs that share an image. More than one pays where images are few;
programs that wait for each other must all be on the device, so a tuning serves only batches that fit.
Knows nothing of Triton.
"""

from dataclasses import dataclass
from typing import Literal

Form = Literal["taps", "rows", "pairs"]


@dataclass(frozen=True)
class Tuning:
    """One way to run a stage."""

    form: Form  # of its convolutions, see `stage`
    pixels: int  # rows of a product: pixels, or pairs of them
    stages: int  # loads in flight: 1 through the L1 cache, more ahead of time and past it
    warps: int
    channels: int | None = None  # columns of a product in the form taps; None: all
    split: int = 1  # programs to an image
    registers: int | None = None  # at most, for a thread; None: as many as the compiler likes

    def __str__(self) -> str:
        channels = "" if self.channels is None else f"/{self.channels}"
        cap = "" if self.registers is None else f" ≤{self.registers} registers"
        return f"{self.form} {self.pixels}{channels} stages {self.stages} warps {self.warps} split {self.split}{cap}"


TUNINGS: dict[
    int, tuple[Tuning, ...]
] = {  # of 16-bit features: channels → tunings, the most programs to an image first
    16: (
        Tuning("pairs", 64, stages=1, warps=4, split=8),
        Tuning("pairs", 64, stages=1, warps=4, split=2),
        Tuning("pairs", 64, stages=1, warps=4, registers=168),
    ),
    32: (
        Tuning("rows", 64, stages=1, warps=4, split=4),
        Tuning("rows", 64, stages=1, warps=4, split=2),
        Tuning("rows", 64, stages=1, warps=4, registers=168),
    ),
    64: (
        Tuning("taps", 64, stages=3, warps=4, channels=16, split=4),
        Tuning("taps", 64, stages=3, warps=4, channels=32, split=2),
        Tuning("taps", 64, stages=3, warps=4),
    ),
}


_UNTUNED = (Tuning("taps", 64, stages=2, warps=4, channels=16),)


def exact_tunings(channels: int) -> tuple[Tuning, ...]:
    """For float32, which tensor cores would round: products are sums in registers, so they have to be small."""
    return tuple(Tuning("taps", 64, 1, 8, channels=min(channels, 32), split=split) for split in (4, 2, 1))


def tuning_for(channels: int, batch: int, processors: int, *, exact: bool = False) -> Tuning:
    """The tuning for a stage of this width, on a device with this many multiprocessors."""
    known = exact_tunings(channels) if exact else TUNINGS.get(channels, _UNTUNED)
    return next(tuning for tuning in known if tuning.split == 1 or tuning.split * batch <= processors)
