import contextlib
import io
import json

import pytest

from codinet import list_models
from codinet.cli import main


@pytest.fixture(scope="module")
def document() -> dict[str, list[dict[str, object]]]:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["models", "--json"]) == 0
    return json.loads(said.getvalue())


def test_every_network_is_listed(document: dict[str, list[dict[str, object]]]) -> None:
    assert [model["name"] for model in document["models"]] == list_models()
    assert isinstance(document["zoo"], list)


def test_the_figures_are_the_papers(document: dict[str, list[dict[str, object]]]) -> None:
    (model,) = (model for model in document["models"] if model["name"] == "resnet110")
    assert model["blocks"] == 54
    assert model["parameters_static"] == 1_727_962
    assert model["parameters_routed"] == 1_826_902
    assert model["macs"] == 252_887_680
    assert model["paper_gmaccs"] == pytest.approx(0.51, abs=0.005)
