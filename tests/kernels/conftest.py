"""Triton's interpreter with all programs of a launch at once, each in a process of its own over shared memory.

By itself it runs them one after the other, and programs that wait for each other would wait for ever.
"""

import os
import signal
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

PATIENCE = 60  # seconds after which programs are taken to wait for ever


@pytest.fixture
def programs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they are at once anyway."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    usual = interpreter.GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        for tensor in _tensors([*args, *kwargs.values()]):
            tensor.share_memory_()
        (number,) = executor.grid
        children = [_fork(lambda place=place: _run(usual, executor, place, args, kwargs)) for place in range(number)]
        _wait(children)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def _run(usual: Any, executor: Any, place: int, args: Any, kwargs: Any) -> None:
    """The one program at this place of the grid."""
    from triton.runtime import interpreter

    builder, (number,) = interpreter.interpreter_builder, executor.grid
    set_size, set_place = builder.set_grid_dim, builder.set_grid_idx
    builder.set_grid_dim = lambda *_: set_size(number, 1, 1)
    builder.set_grid_idx = lambda *_: set_place(place, 0, 0)
    executor.grid = (1,)
    executor._restore_args_dev = lambda *_: None  # would write over what others have written meanwhile
    usual(executor, *args, **kwargs)


def _fork(work: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _wait(children: list[int]) -> None:
    end, left = time.monotonic() + PATIENCE, set(children)
    failed = False
    while left and not failed and time.monotonic() < end:
        for child in list(left):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                left.discard(child)
                failed |= status != 0
        time.sleep(0.005)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not failed, "a program failed"
    assert not left, "programs wait for each other for ever"
