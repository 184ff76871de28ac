"""A routed graph is rewritten for the machine; if that fails, the graph of the file is used."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")

import onnx
from onnx import numpy_helper

from codinet.engines.onnx import OnnxEngine, runtime
from codinet.engines.onnx.build_graph import build
from codinet.engines.onnx.onnx_file import ExportInfo, export
from codinet.engines.onnx.runtime import open_blocked, open_session
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

Make = Callable[..., RoutedNetwork]
Same = Callable[..., None]
DATA = ExportInfo([str(k) for k in range(10)], [125.0, 123.0, 114.0], [63.0, 62.0, 67.0], (3, 32, 32))


def _content(model: RoutedNetwork) -> bytes:
    proto = build(model, (3, 32, 32))
    proto.metadata_props.add(key="kind", value=json.dumps("routed"))
    return proto.SerializeToString()


def _refuse(_model: onnx.ModelProto) -> None:
    raise RuntimeError("unknown node")


def _spoil(model: onnx.ModelProto) -> None:
    """Change a weight in one branch, as a wrong rewriting might."""
    branch = next(node for node in model.graph.node if node.op_type == "If").attribute[0].g
    branch.initializer[0].CopyFrom(
        numpy_helper.from_array(-numpy_helper.to_array(branch.initializer[0]), branch.initializer[0].name)
    )


@pytest.mark.parametrize("router", ["fc", "cnn", "rnn"])
def test_a_rewritten_graph_agrees(router: str, network: Make) -> None:
    content = _content(network(router=router))
    assert open_blocked(content, open_session(content, threads=1), threads=1) is not None


@pytest.mark.parametrize("wrong", [_refuse, _spoil])
def test_a_failed_rewriting_is_not_used(
    wrong: Callable[[onnx.ModelProto], None],
    network: Make,
    images: torch.Tensor,
    assert_same: Same,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "keep_blocked", wrong)
    model = network()
    content = _content(model)
    assert open_blocked(content, open_session(content, threads=1), threads=1) is None
    with torch.no_grad():
        assert_same(OnnxEngine(content)(images), model(images))


def test_rewritten_and_portable_agree(network: Make, images: torch.Tensor, assert_same: Same, tmp_path: Path) -> None:
    model, file = network(), tmp_path / "m.onnx"
    export(model, file, DATA)
    before = file.read_bytes()
    rewritten, portable = OnnxEngine(file), OnnxEngine(file, portable=True)
    for threshold in (0.0, 0.3, 0.5, 1.0):
        with torch.no_grad():
            reference = model(images, decide=partial(hard, threshold=threshold))
        assert_same(rewritten(images, threshold=threshold), reference)
        assert_same(portable(images, threshold=threshold), reference)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_export_checks_the_portable_graph(network: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("codinet.engines.onnx.runtime.open_blocked", lambda *given, **_flags: calls.append(given))
    export(network(), tmp_path / "m.onnx", DATA)
    assert calls == []
    OnnxEngine(tmp_path / "m.onnx")
    assert len(calls) == 1


def test_files_use_standard_operators_only(network: Make) -> None:
    model = build(network(), (3, 32, 32))
    assert [one.domain for one in model.opset_import] == [""]
