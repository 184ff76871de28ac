import pickle

import pytest

from codinet.errors import UserError, first_line, one_line, shown, suggestion, unknown
from codinet.files import DamagedError


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("There is no file a b; check the path.", "There is no file a b; check the path."),
        ("a\nb", r"a\nb"),
        ("x\x1b[31m", r"x\x1b[31m"),
        ("caf\udce9", r"caf\udce9"),
        ("é × –", "é × –"),
        ("  indented", "  indented"),
    ],
)
def test_a_line_is_one_line_and_printable(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(text).isprintable()


@pytest.mark.parametrize("kind", [UserError, DamagedError])
def test_an_error_is_one_line_whatever_names_it_holds(kind: type[UserError]) -> None:
    error = kind("There is no file a\nb;\tcheck the path.\n")
    assert str(error) == r"There is no file a\nb;\tcheck the path."
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))


def test_the_first_line_of_an_error_of_others() -> None:
    assert first_line(RuntimeError("\n one\n two")) == "one"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_long_values_are_cut() -> None:
    assert shown("a") == "'a'"
    assert shown("a" * 1000) == "'" + "a" * 78 + "…"


def test_an_unknown_name_comes_with_the_known_ones() -> None:
    assert str(unknown("router", "fcc", ["fc", "rnn"])) == (
        "Unknown router 'fcc' (perhaps you meant fc); choose from fc, rnn."
    )
    assert suggestion("zzz", ["fc", "rnn"]) == ""


def test_a_value_that_cannot_be_printed_is_named_by_its_type() -> None:
    assert shown(10**5000) == "a value of type int"
