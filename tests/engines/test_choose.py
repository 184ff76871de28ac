"""`compile_engine` chooses the fastest engine, which reproduces the network's output."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.create import create_model
from codinet.engines import choose as choosing
from codinet.engines import compile_engine
from codinet.engines.graph import GraphEngine
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.runs import RunFolder

# Where the graph engine's kernels run: on a GPU, or in Triton's interpreter.
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.mark.parametrize("batch", [1, 8])
def test_the_chosen_engine_equals_the_network(
    batch: int, network: Callable[..., RoutedNetwork], images: torch.Tensor, assert_same: Callable[..., None]
) -> None:
    model = network()
    engine = compile_engine(model, batch=batch, images=images)
    with torch.no_grad():
        assert_same(engine(images), model(images))


def test_the_fastest_is_chosen(network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"gather": 2.0, "branch": 1.0, "masked": 3.0, "onnx": 4.0}
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: speeds[engine.name])
    assert compile_engine(network(), batch=4).name == "branch"
    speeds["gather"] = 0.5
    assert compile_engine(network(), batch=4).name == "gather"


def test_onnx_runtime_is_chosen_where_it_is_the_fastest(
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


def test_without_measuring_the_engine_depends_on_the_batch_size(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(choosing, "_fastest_of")
    assert compile_engine(network(), measure=False).name == "branch"
    engine = compile_engine(network(), batch=4, threshold=0.25, measure=False)
    assert (engine.name, engine.threshold) == ("gather", 0.25)
    assert compile_engine(create_model("resnet20", routed=False), batch=4, measure=False).name == "static"


def test_a_trained_network_is_timed_on_images_of_its_own_size(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, images: len(engine(images).logits_BK) - 1)
    engine = compile_engine(RunFolder.open(finished_run).load_model(), batch=1)
    assert engine(torch.randn(1, 1, 8, 8)).logits_BK.shape == (1, 10)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"batch": 0}, "batch must be a whole number from 1 to 2147483647, got 0"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"threshold": 7}, "threshold must be a finite number from 0 to 1, got 7"),
        ({"threshold": float("nan")}, "threshold must be a finite number from 0 to 1, got nan"),
        ({"threshold": None}, "threshold must be"),
        ({"device": "abacus"}, "abacus"),
        ({"device": 0}, "device must be a name such as 'cpu' or 'cuda', or a torch.device, got 0"),
        ({"image_shape": (3, 32)}, r"image_shape must be .channels, height, width., got \(3, 32\)"),
        ({"image_shape": (1, 32, 32)}, "takes images with 3 channels"),
        ({"images": torch.zeros(3, 32, 32)}, "images must be a tensor of floats, B×C×H×W"),
        ({"images": torch.zeros(1, 3, 8, 8), "batch": 2}, "at least one batch of 2 images"),
        ({"images": torch.zeros(1, 1, 8, 8)}, "takes images with 3 channels"),
        ({"images": torch.full((1, 3, 8, 8), float("nan"))}, "images must hold finite numbers, got NaN or infinity"),
        ({"images": torch.zeros(1, 3, 8, 8), "image_shape": (3, 8, 8)}, "Pass images or image_shape, not both"),
        ({"dtype": "float16"}, "dtype must be a floating-point torch.dtype .* got 'float16'"),
        ({"dtype": torch.int8}, "dtype must be a floating-point torch.dtype"),
    ],
)
def test_invalid_arguments_are_rejected(
    words: dict[str, Any], sentence: str, network: Callable[..., RoutedNetwork]
) -> None:
    with pytest.raises(UserError, match=sentence):
        compile_engine(network(), **words)


@pytest.mark.parametrize("model", [None, "resnet20", torch.nn.Linear(2, 2)])
def test_an_engine_needs_a_network(model: Any) -> None:
    with pytest.raises(UserError, match="model must be a network from create_model or make_dynamic, got"):
        compile_engine(model)


def test_a_network_on_the_meta_device_is_rejected() -> None:
    with torch.device("meta"):
        model = create_model("resnet20")
    with pytest.raises(UserError, match="on the meta device and has no values"):
        compile_engine(model)


def test_the_default_device_is_the_networks_own(
    network: Callable[..., RoutedNetwork], images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: 0.0 if engine.name == "branch" else 1.0)
    model = copy.deepcopy(network()).to(DEVICE)
    for device, there in ((None, DEVICE), ("cpu", torch.device("cpu"))):
        engine = compile_engine(model, device=device, image_shape=(3, 8, 8))
        assert engine.spec.device == there
        assert engine(images[:1].to(there)).logits_BK.device == there
    assert next(model.parameters()).device == DEVICE


def _offer_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph engine as if `DEVICE` were a GPU, and as if it were the fastest."""
    pytest.importorskip("triton")
    monkeypatch.setattr(choosing, "has_onnx", lambda *_args: False)
    monkeypatch.setattr(choosing, "has_graph", lambda *_args: True)
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: 0.0 if "graph" in engine.name else 1.0)


def test_correct_kernels_are_chosen(network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    _offer_graph(monkeypatch)
    routed, static = copy.deepcopy(network()).to(DEVICE), create_model("resnet20", routed=False).to(DEVICE)
    assert compile_engine(routed, batch=2, image_shape=(3, 8, 8)).name == "graph"
    assert compile_engine(static, image_shape=(3, 8, 8)).name == "static-graph"


@pytest.mark.parametrize("part", ["logits_BK", "scores_BN2"])
def test_wrong_kernels_are_not_used(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    _offer_graph(monkeypatch)
    right = GraphEngine.classify

    def wrong(engine: Any, *args: Any) -> RoutedOutput:
        output = right(engine, *args)
        return output._replace(**{part: getattr(output, part) + torch.nan})

    monkeypatch.setattr(GraphEngine, "classify", wrong)
    model = copy.deepcopy(network()).to(DEVICE)
    with pytest.warns(UserWarning, match="The graph engine is not used: it does not reproduce the network"):
        assert compile_engine(model, batch=2, image_shape=(3, 8, 8)).name == "gather"


def test_kernels_that_do_not_fit_the_device_are_not_used(
    network: Callable[..., RoutedNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer_graph(monkeypatch)

    def too_large(*_args: Any) -> RoutedOutput:
        raise UserError("The graph engine cannot run here: it needs more shared memory.")

    monkeypatch.setattr(GraphEngine, "classify", too_large)
    model = copy.deepcopy(network()).to(DEVICE)
    with pytest.warns(UserWarning, match="The graph engine is not used: The graph engine cannot run here"):
        assert compile_engine(model, batch=2, image_shape=(3, 8, 8)).name == "gather"
