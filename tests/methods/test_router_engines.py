"""The routers of all methods in every engine."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch

from codinet.bench.run_rate import settle, with_run_rate
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.engines.branch import BranchEngine
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, why_not
from codinet.engines.reference import MaskedEngine
from codinet.kernels import available
from codinet.methods.router_kinds import ROUTER_KINDS, build_routers
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import hard
from codinet.routers import ROUTERS, OnceRouters
from codinet.saving import load, save

HALTING = ["halting", "spatial"]
NEW = [kind for kind in ROUTER_KINDS if kind not in ROUTERS]
CPU = torch.device("cpu")
IMAGES = torch.randn(6, 1, 12, 10, generator=torch.Generator().manual_seed(3))


def network(kind: str) -> RoutedNetwork:
    torch.manual_seed(0)
    model = settle(create_model("resnet14", router=kind, in_channels=1, num_classes=5), IMAGES)
    with torch.no_grad():
        for name, parameter in model.routers.named_parameters():  # type: ignore[union-attr]
            if name.endswith(("out.weight", "halt.weight")):
                parameter.normal_()  # scores that depend on the image
    model = with_run_rate(model, IMAGES, 0.5 if kind not in HALTING else 0.75)
    if kind in HALTING:
        model.routers.shift(0.01)  # type: ignore[union-attr]  # no sum of halting scores at the limit itself
    return model


def assert_same(found: RoutedOutput, expected: RoutedOutput) -> None:
    assert torch.equal(found.path_BN.cpu(), expected.path_BN)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert torch.allclose(ours.cpu(), theirs, atol=1e-4)


@pytest.mark.parametrize("kind", NEW)
def test_every_engine_gives_the_output_of_the_network(kind: str) -> None:
    model = network(kind)
    with torch.no_grad():
        expected = model(IMAGES)
    for engine in (MaskedEngine(model), BranchEngine(model), GatherEngine(model)):
        assert_same(engine(IMAGES), expected)
        assert_same(
            engine(IMAGES.to(memory_format=torch.channels_last)[::2]), RoutedOutput(*(x[::2] for x in expected))
        )
    if kind != "bias":
        assert len(expected.path_BN.unique(dim=0)) > 1


@pytest.mark.parametrize("graph", ["routed", "masked"])
@pytest.mark.parametrize("kind", NEW)
def test_an_exported_graph_gives_the_output_of_the_network(kind: str, graph: str) -> None:
    pytest.importorskip("onnxruntime")
    from codinet.engines.onnx import OnnxEngine

    model = network(kind)
    engine = OnnxEngine.of(model, (1, 12, 10), kind=graph)  # type: ignore[arg-type]
    for threshold in (0.2, 0.5):
        with torch.no_grad():
            expected = model(IMAGES, decide=partial(hard, threshold=threshold))
        assert_same(engine(IMAGES, threshold=threshold), expected)


@pytest.mark.parametrize("opset", [13, 22])
def test_opsets_of_routers_that_torch_exports(opset: int) -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime import InferenceSession

    from codinet.engines.onnx.build_graph import build

    proto = build(network("policy"), (1, 12, 10), opset=opset)
    (path_BN,) = InferenceSession(proto.SerializeToString()).run(["path"], {"images": IMAGES[:1].numpy()})
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(path_BN), network("policy")(IMAGES[:1]).path_BN)


@pytest.mark.skipif(not available(CPU), reason="needs Triton's interpreter")
def test_the_graph_engine_takes_gates_that_can_be_folded_and_refuses_others() -> None:
    model = network("narrow")
    with torch.no_grad():
        assert_same(GraphEngine(model, device=CPU)(IMAGES[:1]), model(IMAGES[:1]))
    assert why_not(network("policy"), CPU) == (
        "The graph engine supports fc routers only, got policy; use another engine."
    )


@pytest.mark.parametrize("kind", NEW)
def test_a_shift_moves_every_run_score(kind: str) -> None:
    model = network(kind)
    shifted = copy.deepcopy(model)
    assert shifted.routers is not None
    shifted.routers.shift(0.75)
    path = torch.ones(6)
    with torch.no_grad():
        before, after = (each(IMAGES, force=path).scores_BN2 for each in (model, shifted))
    assert torch.allclose(after[..., 1] - after[..., 0], before[..., 1] - before[..., 0] + 0.75, atol=1e-5)
    if kind not in HALTING:  # their skip scores are the ponder cost
        assert torch.equal(after[..., 0], before[..., 0])


@pytest.mark.parametrize("kind", NEW)
def test_a_network_is_saved_with_its_routers(kind: str, tmp_path: Path) -> None:
    model = network(kind)
    save(model, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert loaded.config is not None
    assert loaded.config.router == kind
    with torch.no_grad():
        assert_same(loaded(IMAGES), model(IMAGES))


@pytest.mark.parametrize(("kind", "macs"), [("narrow", 16 * 16 + 16 * 2), ("hash", 0), ("bias", 0), ("halting", 0)])
def test_what_the_first_router_costs(kind: str, macs: int) -> None:
    assert block_costs(network(kind), (1, 12, 10)).router_N[0] == macs


def test_what_halting_units_cost() -> None:
    """A linear layer on the output of each block but the last one of a group, and a convolution to one channel."""
    table = block_costs(network("halting"), (1, 12, 10))
    assert table.router_N == (0, 16, 0, 32, 0, 64)
    spatial = block_costs(network("spatial"), (1, 12, 10))
    assert spatial.router_N == (0, 16 + 16 * 9 * 120, 0, 32 + 32 * 9 * 30, 0, 64 + 64 * 9 * 9)
    assert spatial.run_N == table.run_N


def test_scores_that_are_known_from_the_start_are_taken_in_order() -> None:
    routers = build_routers("policy", [4, 4, 8], 2)
    assert isinstance(routers, OnceRouters)
    routers.eval()
    images = torch.randn(3, 2, 8, 8)
    (scores_BN2,) = state = routers.start(images)
    for k in range(3):
        scores_B2, state = routers.router(k)(torch.zeros(3, 4, 1, 1), state)
        assert torch.equal(scores_B2, scores_BN2[:, k])
