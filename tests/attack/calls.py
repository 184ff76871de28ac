"""Calls of public functions: valid arguments, how an attempt changes them, and what an answer must be like.

A `Call` is a function with valid arguments. An attempt changes one argument, or a few, and calls it. The function must
raise `UserError` or give an answer that `check` accepts. Arguments are made anew for every attempt; networks and
engines, which calls leave unchanged, are made once per process.
"""

import contextlib
import copy
import dataclasses
import decimal
import fractions
import math
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from codinet import (
    CostTable,
    RoutedOutput,
)
from codinet.config import RunConfig, from_dict, to_dict
from codinet.engines import Engine
from codinet.errors import UserError
from codinet.evaluate import Evaluation
from codinet.train.stages import stages_of

CPU = torch.device("cpu")
NAN, INFINITY = math.nan, math.inf
SHAPE = 1, 8, 8  # of the images
CLASSES, BLOCKS = 3, 6


class Call(NamedTuple):
    """A function of the product, valid arguments for it, and what its answer must be like."""

    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    check: Callable[[Any], None]


# --- bad arguments


def odd_values(rng: random.Random) -> Any:
    """A value that is wrong for most arguments."""
    return rng.choice(
        [
            *(None, True, False, "", "x", "0.5", b"1", [], (), {}, {"a": 1}, [1, "a"], object(), int, len),
            *(0, 1, -1, 2, 7, 65_537, -(2**40), 2**63, 10**30, 10**400, -(10**400), 10**5000),
            *(0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 1e-300, 1e300, -1e300, NAN, INFINITY, -INFINITY),
            *(
                np.float32(0.5),
                np.float64(NAN),
                np.int64(3),
                np.float16(INFINITY),
                np.array([1.0, 2.0]),
                np.bool_(True),
            ),
            *(1 + 2j, decimal.Decimal("NaN"), fractions.Fraction(1, 3), range(3), slice(None), "line\nbreak", "\ud800"),
            *(torch.tensor(0.5), torch.tensor(NAN), torch.zeros(0), torch.zeros(2, 2), torch.zeros(3, device="meta")),
            *(
                torch.float16,
                torch.int64,
                torch.device("meta"),
                torch.Generator(),
                nn.Linear(2, 2),
                "cpu",
                "meta",
                "cuda:99",
            ),
        ]
    )


def bent(rng: random.Random, tensor: torch.Tensor) -> Any:
    """A tensor of another shape, dtype or device, or with other values; or no tensor."""
    with torch.no_grad():
        return rng.choice(_BENDS)(rng, tensor.detach().clone())


def _spoilt(value: float) -> Callable[[random.Random, torch.Tensor], Any]:
    def spoil(rng: random.Random, tensor: torch.Tensor) -> Any:
        if tensor.numel():
            with contextlib.suppress(RuntimeError):  # a value that the dtype cannot hold
                tensor.view(-1)[rng.randrange(tensor.numel())] = value
        return tensor

    return spoil


def _resized(rng: random.Random, tensor: torch.Tensor) -> Any:
    if tensor.ndim == 0:
        return tensor.expand(rng.randint(1, 3))
    axis = rng.randrange(tensor.ndim)
    size = rng.choice([0, 1, 2, tensor.shape[axis] + 1, tensor.shape[axis] * 2])
    return tensor.index_select(axis, torch.arange(size) % max(tensor.shape[axis], 1))


_DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.complex64,
]
_BENDS: list[Callable[[random.Random, torch.Tensor], Any]] = [
    *(_spoilt(value) for value in (NAN, INFINITY, -INFINITY, 0.0, -1.0, 2.0, 0.5, 1e30, -100, 2**40)),
    *(_resized,) * 6,
    *(lambda rng, t: t.to(rng.choice(_DTYPES)),) * 3,
    lambda rng, t: t.to("meta"),
    lambda rng, t: t[None],
    lambda rng, t: t[0] if t.ndim and len(t) else t,
    lambda rng, t: t.flatten(),
    lambda rng, t: t.mT if t.ndim > 1 else t[None],
    lambda rng, t: t.tolist(),
    lambda rng, t: t.numpy(),
    lambda rng, t: t.float().requires_grad_(),
    lambda rng, t: nn.Parameter(t.float()),
    lambda rng, t: torch.zeros(tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 5)))),
    lambda rng, t: odd_values(rng),
]


def changed(rng: random.Random, value: Any) -> Any:
    """Another value in the place of a valid one."""
    if isinstance(value, torch.Tensor) and rng.random() < 0.9:
        return bent(rng, value)
    if isinstance(value, RoutedOutput) and rng.random() < 0.8:
        field = rng.choice(RoutedOutput._fields)
        return value._replace(**{field: changed(rng, getattr(value, field))})
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and rng.random() < 0.8:
        field = rng.choice([entry.name for entry in dataclasses.fields(value)])
        return dataclasses.replace(value, **{field: changed(rng, getattr(value, field))})
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        rest = {name: entry for name, entry in value.items() if name != key}
        return rng.choice([rest, {**value, rng.choice(["new", 7, None]): 1}, {**value, key: changed(rng, value[key])}])
    if type(value) in (list, tuple) and value and rng.random() < 0.8:
        items: list[Any] = list(value)
        place = rng.randrange(len(items))
        items[place] = changed(rng, items[place])
        return rng.choice([type(value)(items), type(value)(items[:place]), type(value)([*items, items[0]]), items])
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice([-1, 1, -value, -2 * value, 10**9])
    if isinstance(value, float) and rng.random() < 0.4:
        return value * rng.choice([-1.0, 0.0, 2.0, 1e-9, 1e9])
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice([value.upper(), value[:-1], value + "x", f"{value}\n", "fc", "1x1", "zz", "resnet14"])
    return odd_values(rng)


def tried(calls: Sequence[Call]) -> Callable[[random.Random, Path], None]:
    """An attempt: one of the calls, with one argument changed, or now and then several or none."""

    def attempt(rng: random.Random, _folder: Path) -> None:
        torch.manual_seed(rng.getrandbits(32))
        call = rng.choice(calls)
        arguments = call.arguments()
        if rng.random() < 0.02:
            try:
                return call.check(call.function(**arguments))
            except UserError as error:
                raise AssertionError(f"valid arguments are refused: {error}") from error
        for name in rng.sample(sorted(arguments), min(len(arguments), rng.choice([1, 1, 1, 2, 3]))):
            arguments[name] = changed(rng, arguments[name])
        return call.check(call.function(**arguments))

    return attempt


# --- right answers


def anything(_answer: Any) -> None:
    """Nothing is computed that could be wrong."""


def decisions(answer: torch.Tensor) -> None:
    """0 to 1; NaN where the scores were."""
    assert isinstance(answer, torch.Tensor)
    assert answer.is_meta or bool((((answer >= 0) & (answer <= 1)) | answer.isnan()).all())


def hard_decisions(answer: torch.Tensor) -> None:
    assert isinstance(answer, torch.Tensor)
    assert answer.is_meta or bool(((answer == 0) | (answer == 1)).all())


def one_number(answer: torch.Tensor) -> None:
    """A scalar tensor; NaN or infinite only where the input was, which losses do not read."""
    assert isinstance(answer, torch.Tensor)
    assert answer.shape == ()


def routed(answer: RoutedOutput) -> None:
    """A whole answer for every image, with a path of decisions."""
    assert isinstance(answer, RoutedOutput)
    number = len(answer.logits_BK)
    assert answer.logits_BK.shape == (number, CLASSES)
    assert answer.scores_BN2.shape == (number, BLOCKS, 2)
    assert answer.path_BN.shape == (number, BLOCKS)
    decisions(answer.path_BN)


def finite(answer: Any) -> None:
    assert math.isfinite(answer)


def threshold_found(answer: float) -> None:
    assert 0 < answer < 1


def network(answer: Any) -> None:
    assert isinstance(answer, nn.Module)


def table_made(answer: CostTable) -> None:
    assert answer.static_macs > 0
    assert all(run >= skip >= 0 for run, skip in zip(answer.run_N, answer.skip_N, strict=True))


def costs(answer: torch.Tensor) -> None:
    assert answer.dtype == torch.float64
    assert answer.ndim == 1


def config_resolved(answer: RunConfig) -> None:
    """What is resolved can be written, read and turned into stages."""
    assert from_dict(to_dict(answer)) == answer
    for stage in stages_of(answer):
        assert stage.lr_at(0) >= 0
        assert math.isfinite(stage.lr_at(stage.epochs))


def engine_made(answer: Engine) -> None:
    """It answers, and cannot be copied."""
    device = answer.spec.device or CPU
    routed(answer(torch.zeros(1, *SHAPE, dtype=answer.spec.dtype or torch.float32, device=device)))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        try:
            duplicate(answer)
        except UserError:
            continue
        raise AssertionError("an engine was copied")


def evaluated(answer: Evaluation) -> None:
    assert 0 <= answer.accuracy <= 100
    assert answer.n >= 1
    assert math.isfinite(answer.macs)
