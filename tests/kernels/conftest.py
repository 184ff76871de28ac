"""Runs all programs of a launch at once in Triton's interpreter, each in its own process over shared memory.

The interpreter itself runs programs one after the other, so programs that wait for each other would never finish.
"""

import os
import signal
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

TIMEOUT = 60  # seconds until programs are considered deadlocked


@pytest.fixture
def concurrent_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs programs concurrently in the interpreter. A GPU does so anyway."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    run_all = interpreter.GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        for tensor in _tensors([*args, *kwargs.values()]):
            tensor.share_memory_()
        (number,) = executor.grid
        children = [_fork(lambda index=index: _run(run_all, executor, index, args, kwargs)) for index in range(number)]
        _wait(children)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def _run(run_all: Any, executor: Any, index: int, args: Any, kwargs: Any) -> None:
    """Runs the program with this index in the grid."""
    from triton.runtime import interpreter

    builder, (number,) = interpreter.interpreter_builder, executor.grid
    set_size, set_index = builder.set_grid_dim, builder.set_grid_idx
    builder.set_grid_dim = lambda *_: set_size(number, 1, 1)
    builder.set_grid_idx = lambda *_: set_index(index, 0, 0)
    executor.grid = (1,)
    atomic = builder.create_atomic_rmw

    def yielding_atomic(*operands: Any) -> Any:
        time.sleep(0.001)  # programs that poll a counter leave the cores to those that compute
        return atomic(*operands)

    builder.create_atomic_rmw = yielding_atomic
    executor._restore_args_dev = lambda *_: None  # would overwrite what the other programs have written
    run_all(executor, *args, **kwargs)


def _fork(function: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _wait(children: list[int]) -> None:
    end, running = time.monotonic() + TIMEOUT, set(children)
    failed = False
    while running and not failed and time.monotonic() < end:
        for child in list(running):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                running.discard(child)
                failed |= status != 0
        time.sleep(0.005)
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not failed, "a program failed"
    assert not running, "the programs are deadlocked"
