"""All engines reject the same input with the same errors; `test_parity` compares their output."""

import copy
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from codinet.adopt import make_dynamic
from codinet.create import create_model
from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine, InputSpec
from codinet.engines.folded_network import fold
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.errors import UserError
from codinet.kernels import available
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput

Make = Callable[..., RoutedNetwork]
NAN, INFINITY = float("nan"), float("inf")
FORCIBLE = ["masked", "branch", "gather", "graph"]
OTHERS = ["static", "static-graph", "onnx", "onnx-static"]


@pytest.fixture(scope="module")
def engine(network: Make) -> Callable[[str, RoutedNetwork | None], Engine]:
    """An engine by name, of a network or of the default one; skips the test if it is not available."""

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
def test_unsuitable_input_is_rejected(name: str, engine: Callable[..., Engine], images: torch.Tensor) -> None:
    tested = engine(name)
    for wrong, said in [
        (images[0], r"batch of images, B×C×H×W, got \(3, 32, 32\)"),
        (images[:0], "batch of images"),
        ((images[:2] * 50 + 128).to(torch.uint8), r"normalised images in a float dtype, got torch\.uint8"),
        (images[:2] > 0, r"got torch\.bool"),
        (images[:2, :1], "images with 3 channels, got 1"),
    ]:
        with pytest.raises(UserError, match=said):
            tested(wrong)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("pixel", [NAN, INFINITY, -INFINITY])
def test_images_with_nan_or_infinity_are_rejected(
    name: str, pixel: float, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    spoilt = images[:4].clone()
    spoilt[2, 0, 5, 5] = pixel
    tested = engine(name)
    for batch in (spoilt, spoilt.to(memory_format=torch.channels_last)):
        with pytest.raises(UserError, match="Image 2 of this batch contains NaN or infinity"):
            tested(batch)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
def test_only_tensors_on_the_engines_device_are_accepted(
    name: str, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    tested = engine(name)
    for wrong in (None, 3, [[1.0]], images.numpy()):
        with pytest.raises(UserError, match="takes a batch of images, a tensor of B×C×H×W, got"):
            tested(wrong)  # type: ignore[arg-type]
    if tested.spec.device is not None:
        with pytest.raises(UserError, match="takes images on cpu, got images on meta"):
            tested(images.to("meta"))


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("threshold", [NAN, INFINITY, -0.1, 1.5, "0.5", True, 10**400])
def test_a_threshold_is_a_probability(
    name: str, threshold: Any, engine: Callable[..., Engine], images: torch.Tensor
) -> None:
    """With a threshold of NaN every block would be skipped."""
    tested = engine(name)
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got"):
        tested(images[:1], threshold=threshold)
    tested.threshold = threshold
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got"):
        tested(images[:1])


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine])
def test_an_engine_rejects_an_invalid_threshold(kind: Any, network: Make) -> None:
    with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got nan"):
        kind(network(), threshold=NAN)


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine, StaticEngine, GraphEngine, fold])
@pytest.mark.parametrize("model", [None, "resnet20", torch.nn.Linear(2, 2)])
def test_engines_need_a_network(kind: Any, model: Any) -> None:
    with pytest.raises(UserError, match="model must be a network from create_model or make_dynamic, got"):
        kind(model)


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_engines_cannot_be_copied(name: str, duplicate: Any, engine: Callable[..., Engine]) -> None:
    with pytest.raises(UserError, match=r"engine cannot be copied or pickled, .* make another engine from it"):
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
    with pytest.raises(UserError, match=r"path must be a tensor of numbers, 9|path must have a 0 or 1 for each block"):
        StaticEngine(network(), path=path)


def test_finite_images_are_accepted_even_if_their_sum_overflows() -> None:
    spec = InputSpec(3, None, None)
    spec.check(torch.full((1, 3, 8, 8), 3e38))  # whose sum is not finite
    spec.check(torch.full((1, 3, 64, 64), 60.0, dtype=torch.float16))


@pytest.mark.parametrize("name", ["masked", "branch", "gather", "static"])
def test_images_of_another_dtype_are_rejected(
    name: str, engine: Callable[..., Engine], network: Make, images: torch.Tensor
) -> None:
    with pytest.raises(UserError, match=r"in torch\.float32, got torch\.float64"):
        engine(name)(images.double())
    with pytest.raises(UserError, match=r"in torch\.float64, got torch\.float32"):
        engine(name, copy.deepcopy(network()).double())(images)


def test_onnx_takes_floats_of_any_precision(engine: Callable[..., Engine], images: torch.Tensor) -> None:
    tested = engine("onnx")
    assert torch.equal(tested(images[:1].double()).logits_BK, tested(images[:1]).logits_BK)


@pytest.mark.parametrize("name", FORCIBLE)
def test_a_path_of_the_wrong_length_is_rejected(name: str, engine: Callable[..., Engine], images: torch.Tensor) -> None:
    tested = engine(name)
    for wrong in (torch.ones(8), torch.ones(10), torch.ones(1), torch.tensor(1.0), torch.ones(3, 9), torch.ones(2, 1)):
        with pytest.raises(UserError, match="A forced path must have 9 decisions, or 2×9 with one row per image"):
            tested(images[:2], force=wrong)


@pytest.mark.parametrize("name", OTHERS)
def test_engines_without_force_reject_it(name: str, engine: Callable[..., Engine], images: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"The .* engine does not support force; make a static engine with that path"):
        engine(name)(images[:2], force=torch.ones(9))


@pytest.mark.parametrize("name", FORCIBLE + OTHERS)
@pytest.mark.parametrize("value", [NAN, INFINITY])
@pytest.mark.parametrize("part", ["layer2.0.conv1.weight", "layer1.0.bn2.running_var", "routers.each.3.out.bias"])
def test_weights_with_nan_or_infinity_are_named(
    name: str, value: float, part: str, engine: Callable[..., Engine], network: Make
) -> None:
    model = copy.deepcopy(network())
    model.state_dict()[part].view(-1)[0] = value
    with pytest.raises(UserError, match=f"{part} of this network contains NaN or infinity"):
        engine(name, model)


def test_weights_of_an_adopted_network_are_checked_too() -> None:
    foreign = torch.nn.Module()
    parts = {"conv1": torch.nn.Conv2d(1, 4, 3), "fc": torch.nn.Linear(4, 2), "avgpool": torch.nn.AdaptiveAvgPool2d(1)}
    for name in ("conv1", "bn1", "relu", "maxpool", "avgpool", "fc"):
        foreign.add_module(name, parts.get(name, torch.nn.Identity()))
    foreign.add_module("layer1", torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1)))
    model = make_dynamic(foreign)
    with pytest.raises(UserError, match="images with 1 channels, got 3"):
        GatherEngine(model)(torch.zeros(1, 3, 8, 8))
    model.state_dict()["layer1.0.weight"].view(-1)[0] = NAN
    with pytest.raises(UserError, match=r"layer1\.0\.weight of this network"):
        fold(model)


def test_classify_gets_checked_arguments() -> None:
    class Echo(Engine):
        name = "echo"

        def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
            assert force is not None
            return RoutedOutput(images_BCHW, torch.tensor(threshold), force)

    echo = Echo(InputSpec.of(create_model("resnet20")), threshold=0.25)
    images = torch.zeros(2, 3, 8, 8)
    for force in (torch.ones(9, dtype=torch.bool), torch.ones(1, 9), torch.ones(2, 9, dtype=torch.int8)):
        output = echo(images, force=force)
        assert torch.equal(output.path_BN, torch.ones(2, 9))
        assert output.scores_BN2.item() == 0.25
    assert echo(images, threshold=0.75, force=torch.ones(9)).scores_BN2.item() == 0.75
