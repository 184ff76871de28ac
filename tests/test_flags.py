from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import tyro

from codinet.cli import parse
from codinet.errors import UserError
from codinet.flags import given_only, require_probability


@dataclass(frozen=True)
class Recipe:
    """A recipe."""

    size: int = 1
    """Size of it."""
    name: str | None = None
    """Name of it."""
    parts: tuple[float, ...] = (0.5, 1.0)
    """Parts of it."""
    hot: bool = True
    """Whether it is hot."""


PRESETS = {"plain": Recipe(), "large": Recipe(size=3, name="a b"), "huge": Recipe(size=3)}


@dataclass(frozen=True)
class Args:
    recipe: Annotated[dict[str, Any], tyro.conf.arg(constructor=given_only(PRESETS))]
    other: float | None = None
    """Another flag."""


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("--size 1", {"size": 1}),  # given, although it is the default
        ("--size 1 --size=2", {"size": 2}),
        ("--name None --no-hot", {"name": None, "hot": False}),
        ("--hot --parts", {"hot": True, "parts": ()}),
        ("--parts 1 2", {"parts": (1.0, 2.0)}),
    ],
)
def test_only_the_flags_that_are_given_are_in_the_result(words: str, given: dict[str, Any]) -> None:
    assert parse(Args, words.split(), prog="cook").recipe == given


def test_help_shows_texts_and_the_defaults_of_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(Args, ["--help"], prog="cook") is None
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "A recipe." in text
    assert "--size INT Size of it. (default: 1; large, huge: 3)" in text
    assert "--name STR Name of it. (large: 'a b')" in text
    assert "Parts of it. (default: 0.5 1.0)" in text
    assert "--other FLOAT Another flag." in text
    assert "(default: None)" not in text


@pytest.mark.parametrize(("word", "value"), [("0.5", 0.5), ("None", None)])
def test_an_optional_flag_accepts_none(word: str, value: float | None) -> None:
    assert parse(Args, ["--other", word], prog="cook").other == value


def test_a_wrong_value_names_the_flag() -> None:
    with pytest.raises(UserError, match="--size must be a whole number, got 'x'; see cook --help"):
        parse(Args, ["--size", "x"], prog="cook")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_probability_is_between_0_and_1(value: float) -> None:
    require_probability("threshold", 1.0)
    with pytest.raises(UserError, match="--threshold must be a number from 0 to 1, got"):
        require_probability("threshold", value)
