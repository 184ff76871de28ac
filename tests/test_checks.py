"""Checks of arguments: the rule and the value in one line, whatever the value is."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet import checks
from codinet.errors import UserError


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, "0.5"),
        ("a\nb", r"'a\nb'"),
        pytest.param(10**5000, "a value of type int", id="long"),
        (Unprintable(), "a value of type Unprintable"),
        (torch.zeros(2, 3), "a tensor of 2×3 (float32 on cpu)"),
        (torch.tensor(1), "a tensor of one number (int64 on cpu)"),
    ],
)
def test_any_value_is_shown_in_one_line(value: object, shown: str) -> None:
    assert checks.shown(value) == shown
    assert len(checks.shown("x" * 1000)) < 100


@pytest.mark.parametrize("value", [0, 0.25, 1, np.float32(0.5), np.int64(1)])
def test_numbers_within_their_range_are_taken(value: Any) -> None:
    checks.require_number("share", value, 0, 1)


@pytest.mark.parametrize(
    "value", [-1e-9, 1.1, math.nan, math.inf, np.float16(math.inf), True, "0.5", None, 1j, torch.tensor(0.5), 10**400]
)
def test_other_numbers_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="share must be a finite number from 0 to 1, got"):
        checks.require_number("share", value, 0, 1)


def test_the_ends_of_a_range_are_named() -> None:
    for words, rule in (
        ({"low": 0, "above": True}, "a finite number above 0, got"),
        ({"low": 0, "high": 1, "below": True}, "a finite number of at least 0 and below 1, got"),
        ({}, "a finite number, got"),
    ):
        with pytest.raises(UserError, match=rule):
            checks.require_number("x", math.nan, **words)  # type: ignore[arg-type]
    for value, words in ((0, {"low": 0, "above": True}), (1.0, {"high": 1, "below": True})):
        with pytest.raises(UserError):
            checks.require_number("x", value, **words)  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True, max_examples=200)
@given(value=st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none()))
def test_a_whole_number_is_an_integer_in_its_range(value: Any) -> None:
    if type(value) is int and 1 <= value <= 9:
        checks.require_whole("n", value, 1, 9)
    else:
        with pytest.raises(UserError, match="n must be a whole number from 1 to 9, got") as error:
            checks.require_whole("n", value, 1, 9)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("shape", [(3, 4), (0, 4, 2), (3, 4, 3), ()])
def test_tensors_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    checks.require_tensor("scores", torch.zeros(3, 4, 2), ("B", "N", 2))
    with pytest.raises(UserError, match="scores must be a tensor of floats, B×N×2 and not empty, got a tensor of"):
        checks.require_tensor("scores", torch.zeros(shape), ("B", "N", 2))


def test_checks_do_not_break_a_compiled_function() -> None:
    def double(x: torch.Tensor, factor: float) -> torch.Tensor:
        checks.require_tensor("x", x, ("B", 2))
        checks.require_number("factor", factor, 0, 10)
        return x * factor

    compiled = torch.compile(double, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3, 2), 2.0).sum() == 12
    with pytest.raises(UserError, match="factor must be"):
        double(torch.ones(3, 2), 11.0)
