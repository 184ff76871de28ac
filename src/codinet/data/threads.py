"""Threads that read and decode images: inside this process, bounded waits, nothing left behind.

Image decoders and large copies release Python's lock, so threads use all cores. A thread cannot be killed on its own,
so a run never waits for a helper that is gone. Threads are daemons: one that hangs in a read from a dead disk does not
keep the process from ending.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from codinet.errors import UserError

MOST = 8  # threads that decode; each may hold one whole image
STALL_SECONDS = 600.0  # a result that takes longer than this is an error
_LEAVE_SECONDS = 5.0  # how long `close` waits for calls that have begun

Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]  # None ends one thread

_Item = TypeVar("_Item")
_T = TypeVar("_T")


class ThreadCrew:
    """A fixed number of threads that run calls in the order of their submission."""

    def __init__(self, threads: int) -> None:
        """Start up to `threads` threads; fewer if the system refuses more, `UserError` if it refuses all."""
        self._calls: Calls = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(max(1, threads)):
            thread = threading.Thread(target=run_calls, args=(self._calls,), name=f"codinet-data-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise UserError(
                        f"No thread can be started to read images ({error}); end other programs."
                    ) from error
                break
            self._threads.append(thread)

    def __enter__(self) -> "ThreadCrew":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def submit(self, call: Callable[[], _T]) -> "Future[_T]":
        """Queue a call."""
        future: Future[_T] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Drop calls that have not begun, wait briefly for those that have, and end the threads."""
        while not self._calls.empty():
            queued = self._calls.get()
            if queued is not None:
                queued[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(_LEAVE_SECONDS)


def run_calls(calls: Calls) -> None:
    """The work of a thread: run queued calls until there is None, and give each result to its future."""
    while (queued := calls.get()) is not None:
        future, call = queued
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del queued, future, call  # or the last result would stay in memory until the next call


def wait_for(futures: Iterable["Future[_T]"], doing: str) -> list[_T]:
    """The results, in order. `doing` names the work in the error about a result that does not come."""
    try:
        return [future.result(STALL_SECONDS) for future in futures]
    except FutureTimeoutError as error:
        raise UserError(
            f"{doing} made no progress for {STALL_SECONDS:g} seconds; check the disk or network share that holds the "
            "images, then repeat the command (a training continues with --resume)."
        ) from error


def map_in_threads(function: Callable[[_Item], _T], items: Sequence[_Item], doing: str) -> list[_T]:
    """`function` of every item, in order, computed by one thread per core, at most `MOST`."""
    threads = min(MOST, count_cores())
    chunks = list(_chunks(items, max(1, len(items) // (threads * 16))))
    with ThreadCrew(min(threads, len(chunks))) as crew:
        parts = wait_for([crew.submit(partial(_map, function, chunk)) for chunk in chunks], doing)
    return [result for part in parts for result in part]


def _map(function: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    return [function(item) for item in items]


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def count_cores() -> int:
    """The cores that this process may use: those it is allowed on, divided among torchrun's processes."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
