"""Picking an engine gives one that answers as the network does."""

from collections.abc import Callable

import pytest
import torch

from codinet.engines import choose as choosing
from codinet.engines import compile_engine
from codinet.errors import UserError
from codinet.model import RoutedNetwork, create_model


@pytest.mark.parametrize("batch", [1, 8])
def test_the_chosen_engine_answers_as_the_network(
    batch: int, network: Callable[..., RoutedNetwork], images: torch.Tensor, assert_same: Callable[..., None]
) -> None:
    model = network()
    engine = compile_engine(model, batch=batch, images=images)
    with torch.no_grad():
        assert_same(engine(images), model(images))


def test_the_fastest_is_taken(network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"gather": 2.0, "branch": 1.0, "masked": 3.0, "onnx": 4.0}
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: speeds[engine.name])
    assert compile_engine(network(), batch=4).name == "branch"
    speeds["gather"] = 0.5
    assert compile_engine(network(), batch=4).name == "gather"
    speeds["onnx"] = 0.1
    assert compile_engine(network(), batch=4, threshold=0.25).threshold == 0.25


def test_without_onnx_runtime(network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    assert compile_engine(network()).name == "branch"


def test_a_static_network_gets_a_static_engine(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    assert compile_engine(create_model("resnet20", routed=False), images=images).name == "static"


def test_no_batch_of_nothing(network: Callable[..., RoutedNetwork]) -> None:
    with pytest.raises(UserError, match="one image or more"):
        compile_engine(network(), batch=0)
