"""How long the steps of an epoch wait for their images.

On CUDA the device is the clock. An event is recorded before a batch is fetched and another one after it. The device
passes the first when the earlier steps are done, and the second as soon as the batch has been copied. So the time
between them is the time in which the device had no step to compute: it was idle, or copied the batch. A host that waits
for the loader while the device still computes counts as nothing. Events do not make the host wait. They are read when
the device has passed them, the last ones at the end of the epoch.

Elsewhere a step is done when its call returns, and the time in which the loader was asked for a batch counts.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch

_T = TypeVar("_T")


class Mark(Protocol):
    """A moment, with the interface of `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether it has passed."""

    def synchronize(self) -> None:
        """Wait until it has passed."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """The milliseconds from here to a later moment; both have passed."""


class DataWait:
    """Measures which part of the time the steps of an epoch wait for data.

    Args:
        mark: Marks the current moment, in the order of the work of the device.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self.mark = mark
        self.first: Mark | None = None
        self.fetched: deque[tuple[Mark, Mark]] = deque()  # moments before and after batches, not added yet
        self.waited = 0.0  # milliseconds

    @classmethod
    def on(cls, device: torch.device) -> "DataWait":
        """By the clock of a device, or of the host where it computes at once."""
        return cls((lambda: _event(device)) if device.type == "cuda" else HostMark)

    def over(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Yield the batches, and measure how long each is waited for. The caller takes a step with each."""
        source = iter(batches)
        self.first = before = self.mark()
        for batch in source:
            self.fetched.append((before, self.mark()))
            yield batch
            self._add(lambda pair: pair[1].query())
            before = self.mark()

    def fraction(self) -> float:
        """The time waited for data divided by the time of the epoch's steps until now. Waits for the device."""
        if self.first is None:
            return 0.0
        last = self.mark()
        last.synchronize()
        self._add(lambda _pair: True)
        total = self.first.elapsed_time(last)
        return min(1.0, self.waited / total) if total > 0 else 0.0

    def _add(self, passed: Callable[[tuple[Mark, Mark]], bool]) -> None:
        while self.fetched and passed(self.fetched[0]):
            before, after = self.fetched.popleft()
            self.waited += before.elapsed_time(after)


class HostMark:
    """A moment of the host's clock."""

    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: "HostMark", /) -> float:
        return 1e3 * (end_event.seconds - self.seconds)


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
