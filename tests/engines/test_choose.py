"""Picking an engine gives one that answers as the network does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.engines import choose as choosing
from codinet.engines import compile_engine
from codinet.engines.graph import GraphEngine
from codinet.errors import UserError
from codinet.model import RoutedNetwork, create_model
from codinet.records import RoutedOutput
from codinet.runs import RunFolder


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


def test_onnx_runtime_is_taken_where_it_is_the_fastest(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: 0.0 if engine.name == "onnx" else 1.0)
    engine = compile_engine(network(), batch=4, threshold=0.25)
    assert (engine.name, engine.threshold) == ("onnx", 0.25)


def test_without_onnx_runtime(network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    assert compile_engine(network()).name == "branch"


def test_a_static_network_gets_a_static_engine(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    assert compile_engine(create_model("resnet20", routed=False), images=images).name == "static"


def test_a_trained_network_is_tried_on_images_of_its_own_size(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, images: len(engine(images).logits_BK) - 1)
    engine = compile_engine(RunFolder.open(finished_run).load_model(), batch=1)
    assert engine(torch.randn(1, 1, 8, 8)).logits_BK.shape == (1, 10)


def test_what_cannot_be_is_said(network: Callable[..., RoutedNetwork]) -> None:
    for wrong, said in (
        ({"batch": 0}, "one image or more"),
        ({"threshold": 7}, "A threshold of 7 is no probability"),
        ({"device": "abacus"}, "There is no device 'abacus' here"),
    ):
        with pytest.raises(UserError, match=said):
            compile_engine(network(), **wrong)


def _offer_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph engine as if there were a GPU, and as if it were the fastest."""
    pytest.importorskip("triton")
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    monkeypatch.setattr(choosing, "has_graph", lambda *_args: True)
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: 0.0 if "graph" in engine.name else 1.0)


def test_kernels_that_are_right_are_chosen(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer_graph(monkeypatch)
    assert compile_engine(network(), batch=2, image_shape=(3, 8, 8)).name == "graph"
    assert compile_engine(create_model("resnet20", routed=False), image_shape=(3, 8, 8)).name == "static-graph"


@pytest.mark.parametrize("part", ["logits_BK", "scores_BN2"])
def test_kernels_that_are_wrong_are_told_and_left_out(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    _offer_graph(monkeypatch)
    right = GraphEngine.classify

    def wrong(engine: Any, *args: Any) -> RoutedOutput:
        output = right(engine, *args)
        return output._replace(**{part: getattr(output, part) + torch.nan})

    monkeypatch.setattr(GraphEngine, "classify", wrong)
    with pytest.warns(UserWarning, match="other answers than the network"):
        assert compile_engine(network(), batch=2, image_shape=(3, 8, 8)).name == "gather"
