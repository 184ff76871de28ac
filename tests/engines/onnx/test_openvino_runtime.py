"""Exported files in OpenVINO: the same paths and logits as the network."""

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")

from codinet.adopt import import_vision, make_dynamic
from codinet.bench import compare
from codinet.bench.run_rate import settle, with_run_rate
from codinet.engines.onnx import ExportInfo, OpenVinoEngine, export
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

Make = Callable[..., RoutedNetwork]
Same = Callable[..., None]
SHAPE = 3, 32, 32
DATA = ExportInfo([str(k) for k in range(10)], [125.0, 123.0, 114.0], [63.0, 62.0, 67.0], SHAPE)
installed = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="requires OpenVINO")


@installed
@pytest.mark.parametrize("usual", [None, [1, None, 0, 1, 0, None, 0, 1, 1]])
def test_the_file_of_our_own_network(
    usual: list[int | None] | None, network: Make, images: torch.Tensor, assert_same: Same, tmp_path: Path
) -> None:
    model, file = network(), tmp_path / "m.onnx"
    export(model, file, DATA, usual=usual)
    engine = OpenVinoEngine(file, threads=1)
    for threshold in (0.5, 0.3):
        with torch.no_grad():
            reference = model(images, decide=partial(hard, threshold=threshold))
        assert_same(engine(images, threshold=threshold), reference)


@installed
@pytest.mark.parametrize("kind", ["masked", "static"])
def test_the_other_kinds(kind: str, network: Make, images: torch.Tensor, assert_same: Same) -> None:
    model = network()
    engine = OpenVinoEngine.of(model, SHAPE, kind=kind, threads=1)  # type: ignore[arg-type]
    with torch.no_grad():
        reference = model(images, force=torch.ones(9)) if kind == "static" else model(images)
    output = engine(images)
    assert torch.equal(output.path_BN, reference.path_BN)
    torch.testing.assert_close(output.logits_BK, reference.logits_BK, atol=1e-4, rtol=0)


@installed
def test_the_file_of_an_adopted_network(images: torch.Tensor, assert_same: Same) -> None:
    torch.manual_seed(0)
    timm = import_vision("timm")
    adopted = make_dynamic(timm.create_model("resnet18", num_classes=10))
    model = with_run_rate(settle(adopted, images), images, 0.5)
    usual: list[int | None] = [1, None] * (len(model.blocks) // 2)
    for engine in (OpenVinoEngine.of(model, SHAPE, threads=1), OpenVinoEngine.of(model, SHAPE, threads=1, usual=usual)):
        with torch.no_grad():
            assert_same(engine(images), model(images))


@installed
def test_threads_share_an_engine(network: Make, images: torch.Tensor, assert_same: Same) -> None:
    model = network()
    engine = OpenVinoEngine.of(model, SHAPE, threads=1)
    found: dict[int, object] = {}

    def classify(number: int) -> None:
        found[number] = engine(images.roll(number, 0))

    workers = [threading.Thread(target=classify, args=(number,), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    for number in range(4):
        with torch.no_grad():
            assert_same(found[number], model(images.roll(number, 0)))


@installed
def test_the_benchmark_has_a_static_row_for_each_runtime(network: Make, images: torch.Tensor) -> None:
    usual = [1, None, 0, 1, 0, None, 0, 1, 1]
    rows = compare(network(), images, engines=("onnx-file", "openvino"), usual=usual, rounds=2)
    against = {row["engine"]: row["against"] for row in rows}
    assert against["onnx-file"] == "static-onnx"
    assert against["openvino"] == against["static-openvino"] == "static-openvino"


def test_without_openvino_one_sentence_says_so(
    network: Make, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UserError, match="pip install openvino"):
        OpenVinoEngine.of(network(), SHAPE)
    with pytest.raises(UserError, match="pip install openvino"):
        compare(network(), images, engines=("openvino",))


_INTERRUPTED = """
import faulthandler, signal
from codinet import create_model
from codinet.engines.onnx import OpenVinoEngine

faulthandler.enable()  # its handlers run on a stack of their own
engines = [OpenVinoEngine.of(create_model("resnet14"), (3, 32, 32)) for _ in range(2)]
del engines[0]
del engines[0]
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


@installed
def test_an_interrupt_after_engines_were_deleted_does_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
