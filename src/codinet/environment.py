"""The environment of a computation: versions, device, commit, which every run folder and result file records.

Also the two things that every measurement needs: a number of CPU threads, and the time of a call on a device.
"""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import codinet
from codinet.errors import UserError

GIT_SECONDS = 10.0  # `git describe` takes milliseconds, but can hang on a network drive


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use this many CPU threads, and as many as before on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes, including the work that it starts on the device."""
    _synchronise(device)
    start = time.perf_counter()
    call()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def processes_here() -> int:
    """The processes of this training on this machine: those that torchrun started, or one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def describe(device: torch.device) -> dict[str, Any]:
    """Versions, commit, device, threads and platform, as JSON."""
    return {
        "codinet": codinet.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def device_name(device: torch.device) -> str:
    """The model of a GPU, or the kind of any other device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def commit() -> str | None:
    """The commit of the source checkout.

    The environment variable CODINET_COMMIT overrides it, for copies of the sources without history.

    Returns:
        The commit, with a suffix if files differ from it. None for an installed package, or if git does not answer
        within `GIT_SECONDS`.
    """
    if "CODINET_COMMIT" in os.environ:
        return os.environ["CODINET_COMMIT"]
    root = Path(codinet.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    words = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    quiet = subprocess.DEVNULL
    try:
        # In its own session, because git starts child processes, which must be stopped with it.
        process = subprocess.Popen(
            words,
            stdin=quiet,
            stdout=subprocess.PIPE,
            stderr=quiet,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        return process.communicate(timeout=GIT_SECONDS)[0].strip() or None
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for an unresponsive disk cannot be killed
            process.communicate(timeout=1)
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. torch has an exception class for GPU memory, but only a message for CPU memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def pick_device(name: str | None) -> torch.device:
    """The named device, or the best one available; `UserError` if it cannot be used."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # fails on devices without memory, such as meta
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"Device {name!r} is not available; use --device cpu, or omit it.") from error
    return device
