"""Bounded concurrency: what computes runs in a few threads, what waits is counted, the rest is turned away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BusyError(Exception):
    """More is waiting than the bound allows."""


class Workers:
    """A few threads beside the event loop, so that computing never keeps the page from being served."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="codinet-explore")
        self._bound, self._pending = threads + waiting, 0

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The function's result, from a worker thread; `BusyError` where too many wait already."""
        if self._pending >= self._bound:
            raise BusyError
        self._pending += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))
        finally:
            self._pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Gate:
    """At most `inside` at a time and `waiting` before the door."""

    def __init__(self, inside: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(inside)
        self._bound, self._present = inside + waiting, 0

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        if self._present >= self._bound:
            raise BusyError
        self._present += 1
        try:
            async with self._free:
                yield
        finally:
            self._present -= 1
