"""Silence from libraries that complain about damaged files, in any number of threads.

Python's warning filters and libtiff's error handler belong to the whole process. If threads replaced them and put them
back in any order, other code could stay silenced for good. So both are changed in ways that may overlap:

- One filter is added to the front of the list. It matches only in threads that are inside `Quiet`, and ignores there.
- libtiff prints errors through a pointer to a function. The first thread in clears it, the last one out restores it.
  Nothing but libtiff is silenced. Redirecting file descriptor 2 instead would lose the output of all other threads.
"""

import ctypes
import sys
import threading
import warnings
from typing import Any

from PIL import _imaging

_PER_THREAD = bool(getattr(sys.flags, "context_aware_warnings", False))  # newer interpreters: filters of each thread
_lock = threading.Lock()
_inside = 0  # threads
_handler: int | None = None  # libtiff's own, while any thread is inside
_this_thread = threading.local()


class _InsideQuiet:
    """The pattern of a warning filter: matches every text in threads that are inside `Quiet`, and none elsewhere."""

    def match(self, _text: str) -> bool:
        return getattr(_this_thread, "quiet", False)


_FILTER: Any = ("ignore", _InsideQuiet(), Warning, None, 0)


def _find_set_error_handler() -> Any:
    """The function of Pillow's libtiff that sets its error handler; None where it cannot be found."""
    try:
        function = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (OSError, AttributeError):
        return None  # linked statically or absent; if it prints messages, they stay
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function


_set_error_handler = _find_set_error_handler()


class Quiet:
    """Ignore Python's warnings in this thread and libtiff's messages in all threads."""

    def __enter__(self) -> None:
        global _inside, _handler
        with _lock:
            if _inside == 0 and _set_error_handler is not None:
                _handler = _set_error_handler(None)
            _inside += 1
        if _PER_THREAD:
            self._caught = warnings.catch_warnings()
            self._caught.__enter__()
            warnings.simplefilter("ignore")
            return
        self._before = getattr(_this_thread, "quiet", False)
        _this_thread.quiet = True
        filters: Any = warnings.filters
        # Other code may have added filters in front of ours, or replaced the list.
        if not filters or filters[0] is not _FILTER:
            with _lock:
                filters[:] = [_FILTER, *(other for other in filters if other is not _FILTER)]

    def __exit__(self, *error: object) -> None:
        global _inside
        if _PER_THREAD:
            self._caught.__exit__(None, None, None)
        else:
            _this_thread.quiet = self._before
        with _lock:
            _inside -= 1
            if _inside == 0 and _set_error_handler is not None:
                _set_error_handler(_handler)
