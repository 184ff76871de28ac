"""Launches kernels and reports those that do not fit the device.

Triton knows how much shared memory a kernel needs once it has compiled the kernel, and compares that with the device
before the first launch. Kernels that do not fit raise a `TooLargeError` with one line that names both numbers.
"""

from typing import Any

from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from codinet.kernels import TooLargeError


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Runs `kernel[grid](*args, **options)`; raises `TooLargeError` if the device cannot run it."""
    try:
        kernel[grid](*args, **options)
    except OutOfResources as error:
        raise _too_large(kernel, error.name, error.required, error.limit) from error


def require_fit(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Compiles a kernel without launching it; raises `TooLargeError` if it needs too much shared memory."""
    compiled = kernel.warmup(*args, grid=grid, **options)
    limit = driver.active.utils.get_device_properties(driver.active.get_current_device())["max_shared_mem"]
    if compiled.metadata.shared > limit:
        raise _too_large(kernel, "shared memory", compiled.metadata.shared, limit)


def _too_large(kernel: Any, resource: str, required: int, limit: int) -> TooLargeError:
    unit = " bytes" if resource == "shared memory" else ""
    return TooLargeError(
        f"{kernel.__name__} needs {required:,}{unit} of {resource} per program, and the device has {limit:,}"
    )
