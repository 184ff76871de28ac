"""Silences decoders: Python's warnings in one thread, and libtiff's messages."""

import ctypes
import sys
import threading
import warnings
from typing import Any

from PIL import _imaging

# Python's warning filters and libtiff's error handler are global. If threads replaced and restored them in any order,
# other code could stay silenced. So both are changed in ways that may overlap:
# - One filter is added to the front of the list. It ignores warnings only in threads that are inside `Quiet`.
# - libtiff prints errors through a function pointer. The first thread in clears it, the last one out restores it.
_FILTERS_PER_THREAD = bool(getattr(sys.flags, "context_aware_warnings", False))  # in newer interpreters
_quiet_lock = threading.Lock()
_quiet_threads = 0
_libtiff_handler: int | None = None  # libtiff's own handler, while any thread is inside `Quiet`
_this_thread = threading.local()


class _InsideQuiet:
    """The pattern of a warning filter: matches every text in threads that are inside `Quiet`, and none elsewhere."""

    pattern = "(?!)"  # scikit-learn copies filters into its threads by their text; this one matches nothing

    def match(self, _text: str) -> bool:
        return getattr(_this_thread, "quiet", False)


_FILTER: Any = ("ignore", _InsideQuiet(), Warning, None, 0)


def _find_libtiff_setter() -> Any:
    """Return the function that sets the error handler of Pillow's libtiff, or None if it cannot be found."""
    try:
        function = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (OSError, AttributeError):
        return None  # linked statically or absent
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function


_set_libtiff_handler = _find_libtiff_setter()


class Quiet:
    """Ignore Python's warnings in this thread and libtiff's messages in all threads."""

    def __enter__(self) -> None:
        global _quiet_threads, _libtiff_handler
        with _quiet_lock:
            if _quiet_threads == 0 and _set_libtiff_handler is not None:
                _libtiff_handler = _set_libtiff_handler(None)
            _quiet_threads += 1
        if _FILTERS_PER_THREAD:
            self._caught = warnings.catch_warnings()
            self._caught.__enter__()
            warnings.simplefilter("ignore")
            return
        self._before = getattr(_this_thread, "quiet", False)
        _this_thread.quiet = True
        filters: Any = warnings.filters
        # Other code may have added filters in front of ours, or replaced the list.
        if not filters or filters[0] is not _FILTER:
            with _quiet_lock:
                filters[:] = [_FILTER, *(other for other in filters if other is not _FILTER)]

    def __exit__(self, *error: object) -> None:
        global _quiet_threads
        if _FILTERS_PER_THREAD:
            self._caught.__exit__(None, None, None)
        else:
            _this_thread.quiet = self._before
        with _quiet_lock:
            _quiet_threads -= 1
            if _quiet_threads == 0 and _set_libtiff_handler is not None:
                _set_libtiff_handler(_libtiff_handler)
