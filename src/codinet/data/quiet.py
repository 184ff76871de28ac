"""Silence from libraries that warn about damaged files, in any number of threads.

The list of warning filters belongs to the whole process, so threads that overlap must share one swap: the
first in makes it, the last out undoes it. Newer interpreters can keep a list per thread; there each swaps
its own.
"""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_swap = warnings.catch_warnings()


@contextmanager
def no_warnings() -> Iterator[None]:
    global _inside, _swap
    if getattr(sys.flags, "context_aware_warnings", False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        return
    with _lock:
        if _inside == 0:
            _swap = warnings.catch_warnings()
            _swap.__enter__()
            warnings.simplefilter("ignore")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _swap.__exit__(None, None, None)
