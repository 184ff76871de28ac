"""What every engine refuses, in the same words; see `test_parity` for what they give."""

import copy
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from codinet.adopt import make_dynamic
from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine, Takes
from codinet.engines.folding import fold
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine
from codinet.errors import UserError
from codinet.kernels import available
from codinet.model import RoutedNetwork, create_model
from codinet.records import RoutedOutput

Make = Callable[..., RoutedNetwork]
NAN, INFINITY = float("nan"), float("inf")
FORCIBLE = ["masked", "branch", "gather", "graph"]
OTHERS = ["static", "static-graph", "onnx", "onnx-static"]


@pytest.fixture(scope="module")
def engine(network: Make) -> Callable[[str, RoutedNetwork | None], Engine]:
    """An engine by name, of a network or of the usual one; skips where it cannot be had."""

    def make(name: str, model: RoutedNetwork | None = None) -> Engine:
        model = network() if model is None else model
        if "graph" in name and (torch.cuda.is_available() or not available(torch.device("cpu"))):
            pytest.skip("needs Triton's interpreter")
        if "onnx" in name:
            if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
                pytest.skip("needs ONNX Runtime")
            from codinet.engines.onnx import OnnxEngine

            return OnnxEngine.of(model, (3, 32, 32), kind="static" if name == "onnx-static" else "routed")
        kinds: list[type[MaskedEngine | BranchEngine | GatherEngine | StaticEngine | GraphEngine]] = [
            *(MaskedEngine, BranchEngine, GatherEngine, StaticEngine, GraphEngine, StaticGraphEngine)
        ]
        return next(kind for kind in kinds if kind.name == name)(model)

    return make


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
def test_input_of_another_kind_is_refused(name: str, engine: Callable[..., Engine], images: torch.Tensor) -> None:
    asked = engine(name)
    for wrong, said in [
        (images[0], r"batch of images, B×C×H×W; this is \(3, 32, 32\)"),
        (images[:0], "batch of images"),
        ((images[:2] * 50 + 128).to(torch.uint8), r"normalised images, which are floats; these are torch\.uint8"),
        (images[:2] > 0, r"these are torch\.bool"),
        (images[:2, :1], "images of 3 channels; these have 1"),
    ]:
        with pytest.raises(UserError, match=said):
            asked(wrong)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("pixel", [NAN, INFINITY, -INFINITY])
def test_images_that_are_not_finite_are_refused(
    name: str, pixel: float, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    spoilt = images[:4].clone()
    spoilt[2, 0, 5, 5] = pixel
    asked = engine(name)
    for batch in (spoilt, spoilt.to(memory_format=torch.channels_last)):
        with pytest.raises(UserError, match="Image 2 of this batch holds NaN or infinity"):
            asked(batch)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
def test_only_tensors_on_the_engines_device_are_taken(
    name: str, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    asked = engine(name)
    for wrong in (None, 3, [[1.0]], images.numpy()):
        with pytest.raises(UserError, match="takes a batch of images, B×C×H×W, as a tensor"):
            asked(wrong)  # type: ignore[arg-type]
    if asked.takes.device is not None:
        with pytest.raises(UserError, match="takes images on cpu; these are on meta"):
            asked(images.to("meta"))


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("threshold", [NAN, INFINITY, -0.1, 1.5, "0.5", True, 10**400])
def test_a_threshold_is_a_probability(
    name: str, threshold: Any, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    """With NaN every block was skipped, whatever its router said."""
    asked = engine(name)
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got"):
        asked(images[:1], threshold=threshold)
    asked.threshold = threshold
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got"):
        asked(images[:1])


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine])
def test_an_engine_is_not_made_with_a_threshold_that_is_none(kind: Any, network: Make) -> None:
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got nan"):
        kind(network(), threshold=NAN)


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine, StaticEngine, GraphEngine, fold])
@pytest.mark.parametrize("model", [None, "resnet20", torch.nn.Linear(2, 2)])
def test_engines_are_made_of_networks_only(kind: Any, model: Any) -> None:
    with pytest.raises(UserError, match="model must be a network from create_model or make_dynamic, got"):
        kind(model)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_an_engine_is_refused_with_the_way_out(
    name: str, duplicate: Any, engine: Callable[..., Engine]
) -> None:
    with pytest.raises(UserError, match=r"engine cannot be copied or pickled: .* make an engine from it where"):
        duplicate(engine(name))


@pytest.mark.parametrize("name", FORCIBLE)
@pytest.mark.parametrize("value", [0.4, 2.0, -1.0, NAN])
def test_engines_run_a_block_or_skip_it(
    name: str, value: float, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    path = torch.ones(9)
    path[3] = value
    with pytest.raises(UserError, match=r"(forced decisions|decisions of a forced path) must be"):
        engine(name)(images[:1], force=path)


@pytest.mark.parametrize("path", [torch.ones(8), torch.full((9,), 0.5), [1] * 9, torch.ones(1, 9), torch.ones(9) * NAN])
def test_the_path_of_a_static_engine_is_0_or_1_for_each_block(path: Any, network: Make) -> None:
    with pytest.raises(UserError, match=r"path must be a tensor of numbers, 9|A path holds 0 or 1 for each block"):
        StaticEngine(network(), path=path)


def test_finite_images_of_any_size_are_no_reason_to_refuse() -> None:
    takes = Takes(3, None, None)
    takes.check(torch.full((1, 3, 8, 8), 3e38))  # whose sum is not finite
    takes.check(torch.full((1, 3, 64, 64), 60.0, dtype=torch.float16))


@pytest.mark.parametrize("name", ["masked", "branch", "gather", "static"])
def test_images_of_another_precision_are_refused(
    name: str, engine: Callable[..., Engine], network: Make, images: torch.Tensor
) -> None:
    with pytest.raises(UserError, match=r"in torch\.float32; these are in torch\.float64"):
        engine(name)(images.double())
    with pytest.raises(UserError, match=r"in torch\.float64; these are in torch\.float32"):
        engine(name, copy.deepcopy(network()).double())(images)


def test_onnx_takes_floats_of_any_precision(engine: Callable[..., Engine], images: torch.Tensor) -> None:
    asked = engine("onnx")
    assert torch.equal(asked(images[:1].double()).logits_BK, asked(images[:1]).logits_BK)


@pytest.mark.parametrize("name", FORCIBLE)
def test_a_path_of_another_length_is_refused(name: str, engine: Callable[..., Engine], images: torch.Tensor) -> None:
    asked = engine(name)
    for wrong in (torch.ones(8), torch.ones(10), torch.ones(1), torch.tensor(1.0), torch.ones(3, 9), torch.ones(2, 1)):
        with pytest.raises(UserError, match="A forced path holds 9 decisions here, or 2×9 with one row an image"):
            asked(images[:2], force=wrong)


@pytest.mark.parametrize("name", OTHERS)
def test_a_path_that_cannot_be_forced_is_refused(
    name: str, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    with pytest.raises(UserError, match=r"cannot be forced on the .* engine; make a static one of that path"):
        engine(name)(images[:2], force=torch.ones(9))


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("value", [NAN, INFINITY])
@pytest.mark.parametrize("part", ["layer2.0.conv1.weight", "layer1.0.bn2.running_var", "routers.each.3.out.bias"])
def test_weights_that_are_not_finite_are_named(
    name: str, value: float, part: str, engine: Callable[..., Engine], network: Make
) -> None:
    model = copy.deepcopy(network())
    model.state_dict()[part].view(-1)[0] = value
    with pytest.raises(UserError, match=f"{part} of this network holds NaN or infinity"):
        engine(name, model)


def test_weights_of_an_adopted_network_are_looked_at_too() -> None:
    foreign = torch.nn.Module()
    parts = {"conv1": torch.nn.Conv2d(1, 4, 3), "fc": torch.nn.Linear(4, 2), "avgpool": torch.nn.AdaptiveAvgPool2d(1)}
    for name in ("conv1", "bn1", "relu", "maxpool", "avgpool", "fc"):
        foreign.add_module(name, parts.get(name, torch.nn.Identity()))
    foreign.add_module("layer1", torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1)))
    model = make_dynamic(foreign)
    with pytest.raises(UserError, match="images of 1 channels; these have 3"):
        GatherEngine(model)(torch.zeros(1, 3, 8, 8))
    model.state_dict()["layer1.0.weight"].view(-1)[0] = NAN
    with pytest.raises(UserError, match=r"layer1\.0\.weight of this network"):
        fold(model)


def test_an_engine_is_told_settled_arguments() -> None:
    class Told(Engine):
        name = "told"

        def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
            assert force is not None
            return RoutedOutput(images_BCHW, torch.tensor(threshold), force)

    told = Told(Takes.of(create_model("resnet20")), threshold=0.25)
    images = torch.zeros(2, 3, 8, 8)
    for force in (torch.ones(9, dtype=torch.bool), torch.ones(1, 9), torch.ones(2, 9, dtype=torch.int8)):
        output = told(images, force=force)
        assert torch.equal(output.path_BN, torch.ones(2, 9))
        assert output.scores_BN2.item() == 0.25
    assert told(images, threshold=0.75, force=torch.ones(9)).scores_BN2.item() == 0.75
