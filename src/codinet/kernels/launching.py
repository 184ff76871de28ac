"""Launches kernels, chains them, and reports those that do not fit the device.

Triton knows how much shared memory a kernel needs once it has compiled the kernel, and compares that with the device
before the first launch. Kernels that do not fit raise a `TooLargeError` with one line that names both numbers.

A kernel usually starts when the one before it has ended, which costs a microsecond or two. The programs of a chained
kernel are placed on the device earlier and wait there (programmatic dependent launch). This pays for kernels of a few
microseconds. Every kernel of a chain has to call `wait_for_chain` before it reads or writes memory that another one
writes. Until then it can `prefetch` its weights.
"""

from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from codinet.kernels import TooLargeError

_CHAINS = 90  # compute capability from which devices can chain kernels


@triton.jit
def wait_for_chain(CHAINED: tl.constexpr):
    """Lets the programs of the next kernel be placed, and waits until the kernel before this one has ended."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(pointers):
    """Fetches the 128 bytes around each pointer into the L2 cache of the device."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, chained: bool = False, **options: Any) -> None:
    """Runs `kernel[grid](*args, **options)`; raises `TooLargeError` if the device cannot run it.

    Args:
        kernel: The kernel.
        grid: The number of programs.
        args: Its arguments.
        chained: Chain it to the kernel before it, if the device can do so. Needs a parameter CHAINED, which is passed
            to `wait_for_chain`.
        options: Its constants, and options of the compiler.
    """
    if chained and _can_chain():
        options |= {"CHAINED": True, "launch_pdl": True}
    try:
        kernel[grid](*args, **options)
    except OutOfResources as error:
        raise _too_large(kernel, error.name, error.required, error.limit) from error


def _can_chain() -> bool:
    if knobs.runtime.interpret:
        return False
    target = driver.active.get_current_target()
    return bool(target.backend == "cuda" and target.arch >= _CHAINS)


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
