"""Daemon threads that read and decode images.

Image decoders and large copies release Python's global lock, so threads use all cores. Unlike a worker process, a
thread cannot be killed on its own. Waits are bounded, and a daemon thread that hangs in a read from a dead disk
does not keep the process from exiting.

In each of these threads torch uses one thread. Otherwise every one of them would start a team of as many threads as
there are cores.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import torch

from codinet.environment import processes_here
from codinet.errors import UserError

MAX_THREADS = 16  # that decode; each may keep one whole image in memory
STALL_SECONDS = 600.0  # a result that takes longer than this is an error
_START_SECONDS = 5.0  # how long a new pool waits for each thread
_CLOSE_SECONDS = 5.0  # how long `close` waits for each running call

Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]  # None ends one thread

_Item = TypeVar("_Item")
_T = TypeVar("_T")


class DaemonThreadPool:
    """A fixed number of daemon threads that start calls in the order of their submission."""

    def __init__(self, threads: int) -> None:
        """Start up to `threads` threads: fewer if the system refuses more; raise a `UserError` if it refuses all."""
        self._calls: Calls = SimpleQueue()
        self._threads: list[threading.Thread] = []
        started, own = threading.Semaphore(0), torch.get_num_threads()
        for number in range(max(1, threads)):
            thread = threading.Thread(
                target=_run_alone, args=(self._calls, started), name=f"codinet-data-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise UserError(f"Cannot start a thread to read images ({error}); close other programs.") from error
                break
            self._threads.append(thread)
        for _ in self._threads:
            started.acquire(timeout=_START_SECONDS)
        # Threads that others start later begin with the number that was set last.
        torch.set_num_threads(own)

    def __enter__(self) -> "DaemonThreadPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def submit(self, call: Callable[[], _T]) -> "Future[_T]":
        """Queue a call and return the future of its result."""
        future: Future[_T] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Cancel queued calls, wait briefly for running ones, and stop the threads."""
        with suppress(Empty):
            while True:
                queued = self._calls.get_nowait()
                if queued is not None:
                    queued[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)


def _run_alone(calls: Calls, started: threading.Semaphore) -> None:
    """Run calls in this thread, with one thread of torch's."""
    torch.get_num_threads()  # the first call in a thread sets the number, so it must precede ours
    torch.set_num_threads(1)
    started.release()
    run_calls(calls)


def run_calls(calls: Calls) -> None:
    """Run queued calls in this thread until None, and store each result in its future."""
    while (queued := calls.get()) is not None:
        future, call = queued
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del queued, future, call  # or the last result would stay in memory until the next call


def wait_for(futures: Iterable["Future[_T]"], doing: str) -> list[_T]:
    """Return the results in order.

    Args:
        futures: What to wait for.
        doing: The subject of the error message if a result takes longer than `STALL_SECONDS`.
    """
    try:
        return [future.result(STALL_SECONDS) for future in futures]
    except FutureTimeoutError as error:
        raise UserError(
            f"{doing} made no progress for {STALL_SECONDS:g} seconds; check the disk or network share that holds the "
            "images, then repeat the command (resume a training with --resume)."
        ) from error


def map_in_threads(function: Callable[[_Item], _T], items: Sequence[_Item], doing: str) -> list[_T]:
    """Apply `function` to every item in up to `MAX_THREADS` threads, one per core; return the results in order."""
    threads = min(MAX_THREADS, count_cores())
    size = max(1, len(items) // (threads * 16))
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with DaemonThreadPool(min(threads, len(chunks))) as pool:
        results = wait_for([pool.submit(partial(_map, function, chunk)) for chunk in chunks], doing)
    return [result for chunk in results for result in chunk]


def _map(function: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    return [function(item) for item in items]


def count_cores() -> int:
    """Return the cores that this process may use: those of its CPU affinity, divided among torchrun's processes."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // processes_here())
