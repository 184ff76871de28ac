"""Usual decisions: the same output as the network, whether images decide so or not."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")

import numpy as np
import onnx

from codinet.engines.onnx import ExportInfo, OnnxEngine, export
from codinet.engines.onnx.build_graph import build
from codinet.engines.onnx.network_graph import usual_decisions
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import hard

Make = Callable[..., RoutedNetwork]
Same = Callable[..., None]
SHAPE = 3, 32, 32
DATA = ExportInfo([str(k) for k in range(10)], [125.0, 123.0, 114.0], [63.0, 62.0, 67.0], SHAPE)
USUAL: list[list[int | None]] = [
    [1, None, 0, 1, 0, None, 0, 1, 1],
    [1] * 9,
    [0] * 9,
    [None] * 8 + [1],
    [0, None, None, None, None, None, None, None, None],
]


@pytest.mark.parametrize("router", ["fc", "cnn", "rnn"])
@pytest.mark.parametrize("usual", USUAL)
def test_the_output_does_not_depend_on_what_is_usual(
    router: str, usual: list[int | None], network: Make, images: torch.Tensor, assert_same: Same
) -> None:
    model = network(router=router)
    engine = OnnxEngine.of(model, SHAPE, usual=usual)
    for threshold in (0.0, 0.3, 0.5, 1.0):
        with torch.no_grad():
            reference = model(images, decide=partial(hard, threshold=threshold))
        assert_same(engine(images, threshold=threshold), reference)


@pytest.mark.parametrize("opset", [13, 17, 18, 22])
def test_usual_images_do_not_need_the_second_part(
    opset: int, network: Make, images: torch.Tensor, assert_same: Same
) -> None:
    """The second part is replaced by one that answers 0, so what the first part answers is visible."""
    model = network()
    with torch.no_grad():
        reference = model(images)
    path = [int(ran) for ran in reference.path_BN[0]]
    usual: list[int | None] = [*path]
    usual[4] = None
    proto = build(model, SHAPE, usual=usual, opset=opset)
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "If")
    second = next(attribute.g for attribute in last.attribute if attribute.name == "else_branch")
    infos = [*second.output]
    zeros = [np.zeros([side.dim_value for side in info.type.tensor_type.shape.dim], np.float32) for info in infos]
    nodes = [
        onnx.helper.make_node("Constant", [], [info.name], value=onnx.numpy_helper.from_array(zero))
        for info, zero in zip(infos, zeros, strict=True)
    ]
    second.CopyFrom(onnx.helper.make_graph(nodes, "zeros", [], infos))
    for key, value in (("kind", "routed"), ("usual", usual)):
        proto.metadata_props.add(key=key, value=json.dumps(value))
    output = OnnxEngine(proto.SerializeToString())(images)
    agrees_B = (reference.path_BN == torch.tensor(path)).index_fill(1, torch.tensor([4]), True).all(dim=1)
    assert agrees_B[0]
    assert not agrees_B.all()
    assert_same(*(RoutedOutput(*(part[agrees_B] for part in each)) for each in (output, reference)))
    assert not output.logits_BK[~agrees_B].any()


def test_a_file_with_usual_decisions(network: Make, images: torch.Tensor, assert_same: Same, tmp_path: Path) -> None:
    model, file = network(), tmp_path / "m.onnx"
    export(model, file, DATA, usual=USUAL[0], images_BCHW=images)
    engine = OnnxEngine(file)
    assert engine.about["usual"] == USUAL[0]
    with torch.no_grad():
        assert_same(engine(images), model(images))


def test_only_unusual_blocks_are_branches(network: Make) -> None:
    nodes = build(network(), SHAPE, usual=USUAL[0]).graph.node
    assert sum(node.op_type == "If" for node in nodes) == USUAL[0].count(None) + 1


def test_usual_decisions_of_images() -> None:
    probability_TN = torch.full((1000, 4), 0.4)
    probability_TN[:, 0] = 0.9
    probability_TN[:2, 1] = 0.9
    probability_TN[:3, 2] = 0.9
    probability_TN[:500, 3] = 0.5
    assert usual_decisions(probability_TN) == [1, 0, None, None]
    assert usual_decisions(probability_TN, 0.3) == [1, 1, 1, 1]
    assert usual_decisions(probability_TN[:, 3:]) is None  # not worth it


def test_wrong_arguments(network: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Usual decisions are for the kind routed"):
        build(network(), SHAPE, kind="masked", usual=USUAL[0])
    for wrong in ([1, 0], [2] * 9, ["1"] * 9):
        with pytest.raises(UserError, match="usual must"):
            export(network(), tmp_path / "m.onnx", DATA, usual=wrong)  # type: ignore[arg-type]
