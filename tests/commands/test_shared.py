import json

import pytest

from codinet.commands.shared import figures, flag_value, print_json
from codinet.errors import UserError

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (["--preset", "quick"], "quick"),
        (["--preset=quick"], "quick"),
        (["--preset", "paper", "x", "--preset", "quick"], "quick"),
        (["--preset", "paper", "--preset=quick"], "quick"),
        (["--preset=paper", "--preset", "quick", "--preset"], "quick"),
    ],
)
def test_of_a_flag_that_is_given_again_the_last_value_counts(words: list[str], value: str | None) -> None:
    assert flag_value("--preset", words) == value


def test_json_keeps_every_digit(capsys: Said) -> None:
    print_json({"share": 0.1 + 0.2})
    assert json.loads(capsys.readouterr().out)["share"] == 0.1 + 0.2


def test_json_has_finite_numbers_only(capsys: Said) -> None:
    with pytest.raises(UserError, match=r"predictions\.1\.confidence is nan, and JSON has finite numbers only"):
        print_json({"predictions": [{"confidence": 0.5}, {"confidence": float("nan")}]})
    assert capsys.readouterr().out == ""


def test_names_that_are_not_unicode_are_escaped_in_json(capsys: Said) -> None:
    print_json({"file": "caf\udce9", "\udcff": ("é🦆",)})
    said = capsys.readouterr().out
    assert said.isascii()
    assert json.loads(said) == {"file": r"caf\udce9", r"\udcff": ["é🦆"]}


def test_figures_name_their_units() -> None:
    summary = {
        **{"accuracy": 97.25, "cost_share": 0.6, "macs": 1_500_000.0, "paper_gmaccs": 0.003, "mean_blocks": 5.0},
        **{"distinct_paths": 12, "path_entropy": 2.5, "always_on": 1, "always_off": 2, "n": 500},
    }
    rows = dict(figures(summary))
    assert rows["accuracy"] == "97.25 %"
    assert rows["cost, M MACs an image (one per multiply-add)"] == "1.500"
    assert rows["blocks always on / always off"] == "1 / 2"
