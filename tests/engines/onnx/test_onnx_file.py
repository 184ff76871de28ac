"""ONNX files reproduce the network's output, also in a process without torch."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

pytest.importorskip("onnxruntime")

import onnx

from codinet.bench.run_rate import settle, with_run_rate
from codinet.cost import block_costs
from codinet.create import create_model, list_models
from codinet.data import read_image
from codinet.data.views import normalise
from codinet.engines.onnx import OnnxEngine
from codinet.engines.onnx.build_graph import build
from codinet.engines.onnx.onnx_file import ExportInfo, check, export
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

Make = Callable[..., RoutedNetwork]
Same = Callable[..., None]
DATA = ExportInfo([f"class {k}" for k in range(10)], [125.0, 123.0, 114.0], [63.0, 62.0, 67.0], (3, 32, 32))


@pytest.mark.parametrize("kind", ["routed", "masked"])
@pytest.mark.parametrize("router", ["fc", "cnn", "rnn"])
@pytest.mark.parametrize("run_rate", [0.0, 0.5, 1.0])
def test_a_graph_equals_the_network(
    kind: str, router: str, run_rate: float, network: Make, images: torch.Tensor, assert_same: Same
) -> None:
    model = network(router=router, run_rate=run_rate)
    engine = OnnxEngine.of(model, (3, 32, 32), kind=kind)  # type: ignore[arg-type]
    for batch in (images, images[:1], images[:5].to(memory_format=torch.channels_last)):
        for threshold in (0.0, 0.3, 0.5, 1.0):
            with torch.no_grad():
                reference = model(batch, decide=partial(hard, threshold=threshold))
            assert_same(engine(batch, threshold=threshold), reference)


@pytest.mark.parametrize("arch", [name for name in list_models() if name != "resnet101"])  # has resnet50's blocks
def test_every_network_of_the_registry(arch: str, of_registry: Callable, assert_same: Same) -> None:
    model, images, reference = of_registry(arch)
    size = images.shape[-1]
    assert_same(OnnxEngine.of(model, (3, size, size))(images), reference)


def test_a_static_graph_of_a_path(network: Make, images: torch.Tensor, tmp_path: Path, assert_same: Same) -> None:
    model, path = network(), [1, 0, 1, 0, 0, 1, 0, 1, 1]
    export(model, tmp_path / "m.onnx", DATA, kind="static", path=path)
    assert_same(OnnxEngine(tmp_path / "m.onnx")(images), StaticEngine(model, path=torch.tensor(path))(images))


@pytest.mark.parametrize("opset", [13, 17, 18, 21, 22])
def test_opsets(opset: int, network: Make, images: torch.Tensor, tmp_path: Path, assert_same: Same) -> None:
    model = network()
    assert export(model, tmp_path / "m.onnx", DATA, opset=opset, images_BCHW=images) == 16
    with torch.no_grad():
        assert_same(OnnxEngine(tmp_path / "m.onnx")(images), model(images))


def test_one_branch_per_block(network: Make) -> None:
    nodes = build(network(), (3, 32, 32)).graph.node
    assert sum(node.op_type == "If" for node in nodes) == 9


def test_metadata(network: Make, tmp_path: Path) -> None:
    export(network(), tmp_path / "m.onnx", DATA, threshold=0.25)
    engine = OnnxEngine(tmp_path / "m.onnx")
    assert engine.threshold == 0.25
    assert engine.about["classes"] == DATA.classes
    assert engine.about["mean"] == DATA.mean
    assert engine.about["image_shape"] == [3, 32, 32]
    assert len(engine.about["cost_table"]["run_N"]) == 9
    assert engine.about["codinet"]


def test_the_check_detects_other_weights(network: Make, images: torch.Tensor) -> None:
    engine = OnnxEngine.of(network(), (3, 32, 32))
    with pytest.raises(UserError, match="paths differ"):
        check(network(run_rate=1.0), engine, images)
    other = with_run_rate(settle(create_model("resnet20"), images), images, 1.0)
    with pytest.raises(UserError, match="logits differ"):
        check(other, OnnxEngine.of(network(run_rate=1.0), (3, 32, 32)), images)


def test_a_mismatch_leaves_no_file(
    network: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: torch.Tensor
) -> None:
    wrong = build(network(run_rate=1.0), (3, 32, 32))
    monkeypatch.setattr("codinet.engines.onnx.onnx_file.build", lambda *_args, **_flags: wrong)
    with pytest.raises(UserError, match="paths differ"):
        export(network(), tmp_path / "m.onnx", DATA, images_BCHW=images)
    assert list(tmp_path.iterdir()) == []


def test_unsupported_exports_are_rejected(network: Make, tmp_path: Path) -> None:
    static = create_model("resnet20", routed=False)
    with pytest.raises(UserError, match="can only be exported with the kind static"):
        build(static, (3, 32, 32))
    with pytest.raises(UserError, match="opset must be from 13 to 22, got 9"):
        build(network(), (3, 32, 32), opset=9)
    with pytest.raises(UserError, match="path must have 9 digits"):
        export(static, tmp_path / "m.onnx", DATA, kind="static", path=[1, 0])


def test_images_of_another_shape_are_rejected(network: Make, images: torch.Tensor) -> None:
    with pytest.raises(UserError, match="3×32×32, got 3×16×32"):
        OnnxEngine.of(network(), (3, 32, 32))(images[:, :, ::2])


def test_other_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="cannot be opened"):
        OnnxEngine(tmp_path / "bad.onnx")
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [info], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    for key, value in [("", ""), ("author", "me"), ("kind", "a ReLU"), ("kind", '"rectified"')]:
        if key:
            model.metadata_props.add(key=key, value=value)
        (tmp_path / "other.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UserError, match="not written by codinet"):
            OnnxEngine(tmp_path / "other.onnx")


def foreign(
    *,
    inputs: dict[str, list[int | str]] | None = None,
    outputs: tuple[str, ...] = ("logits",),
    element: int = onnx.TensorProto.FLOAT,
    **metadata: str,
) -> bytes:
    """A graph of another program that copies its first input to every output."""
    given = inputs or {"images": ["batch", 10]}
    sides = [
        [onnx.helper.make_tensor_value_info(name, element, shape) for name, shape in side.items()]
        for side in (given, {name: next(iter(given.values())) for name in outputs})
    ]
    nodes = [onnx.helper.make_node("Identity", [next(iter(given))], [name]) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "g", sides[0], sides[1])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


FOUR: dict[str, list[int | str]] = {"images": ["batch", 3, 8, 8]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (foreign(kind="[" * 100_000), "its kind is None"),
        (foreign(kind='["static"]'), r"its kind is \['static'\]"),
        (foreign(kind='"static"'), r"its images have the shape \['batch', 10\]"),
        (foreign(kind='"static"', inputs={"x": [1]}), r"its inputs are \['x'\]"),
        (foreign(kind='"static"', inputs={**FOUR, "y": [1]}), r"its inputs are \['images', 'y'\]"),
        (foreign(kind='"static"', inputs={"images": [1, "c", "h", "w"]}), "its images have the shape"),
        (foreign(kind='"static"', inputs={"images": []}), r"its images have the shape \[\]"),
        (foreign(kind='"static"', inputs=FOUR), "its outputs have unexpected shapes"),
        (foreign(kind='"static"', element=onnx.TensorProto.DOUBLE), "not float32"),
        (foreign(kind='"static"', outputs=("logits", "scores")), "its outputs"),
        (foreign(kind='"routed"', outputs=("logits", "scores", "path")), "its threshold is not an input"),
    ],
)
def test_a_graph_of_another_program_is_rejected(content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=f"not written by codinet export: .*{words}"):
        OnnxEngine(content)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("threshold", '"half"', "its threshold is 'half'"),
        ("threshold", "7", "its threshold is 7"),
        ("threshold", "[0.5]", r"its threshold is \[0.5\]"),
        ("path", '["1"]', r"its path is \['1'\]"),
        ("path", "[2]", r"its path is \[2\]"),
        ("path", "3", "its path is 3"),
        ("kind", '"static"', "its outputs|its threshold"),
    ],
)
def test_metadata_that_contradicts_the_graph_is_rejected(network: Make, key: str, value: str, words: str) -> None:
    proto = build(network(), (3, 32, 32))
    metadata = {"kind": '"routed"', key: value}
    for entry, text in metadata.items():
        proto.metadata_props.add(key=entry, value=text)
    with pytest.raises(UserError, match=f"not written by codinet export: .*({words})"):
        OnnxEngine(proto.SerializeToString())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.onnx cannot be read \(No such file"):
        OnnxEngine(tmp_path / "none.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(UserError, match=r"pipe\.onnx cannot be read \(.*regular file"):
        OnnxEngine(tmp_path / "pipe.onnx")


def test_metadata_of_other_programs_is_ignored(network: Make, tmp_path: Path, images: torch.Tensor) -> None:
    export(network(), tmp_path / "m.onnx", DATA)
    model = onnx.load(tmp_path / "m.onnx")
    model.metadata_props.add(key="author", value="me")
    onnx.save(model, tmp_path / "signed.onnx")
    engine = OnnxEngine(tmp_path / "signed.onnx")
    assert "author" not in engine.about
    assert torch.equal(engine(images).logits_BK, OnnxEngine(tmp_path / "m.onnx")(images).logits_BK)


@pytest.mark.parametrize("kind", ["routed", "masked"])
def test_a_threshold_of_the_engine(kind: str, network: Make, images: torch.Tensor, assert_same: Same) -> None:
    engine = OnnxEngine.of(network(), (3, 32, 32), kind=kind, threshold=0.3)  # type: ignore[arg-type]
    assert_same(engine(images), MaskedEngine(network(), threshold=0.3)(images))
    assert engine(images).path_BN.mean() > OnnxEngine.of(network(), (3, 32, 32))(images).path_BN.mean()


def documented_example() -> str:
    text = (Path(__file__).parents[3] / "docs" / "inference.md").read_text()
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "onnxruntime" in part]
    return code


def save_jpeg(file: Path, number: int) -> None:
    """A JPEG of any size, colour and orientation. Images of noise alone look alike to a router."""
    random = np.random.default_rng(number)
    height, width = (32, 32) if number % 5 == 0 else random.integers(1, 90, 2)
    colour = random.integers(0, 206, (1, 1, 3))
    image = Image.fromarray((colour + random.integers(0, 50, (height, width, 3))).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = number % 9  # 0 is invalid
    image.convert(("RGB", "RGB", "RGB", "L", "CMYK")[number % 5]).save(file, quality=95, exif=exif)


def save_png(file: Path, number: int) -> None:
    """A PNG of any size and mode."""
    random = np.random.default_rng(number)
    height, width = (32, 32) if number % 5 == 0 else random.integers(1, 90, 2)
    if number % 7 == 0:  # 16 bits
        Image.fromarray(random.integers(0, 65536, (height, width)).astype(np.uint16)).save(file)
        return
    image = Image.fromarray(random.integers(0, 256, (height, width, 4)).astype(np.uint8), "RGBA")
    more: dict[str, Any] = {"transparency": 7} if number % 7 == 6 else {}
    image.convert(("", "RGBA", "LA", "RGB", "1", "P", "P")[number % 7]).save(file, **more)


@pytest.mark.parametrize(("shape", "crop"), [((3, 32, 32), 1), ((1, 28, 20), 0.875), ((3, 7, 64), 1)])
def test_the_documented_example_reads_the_pixels_that_predict_reads(
    shape: tuple[int, int, int], crop: float, tmp_path: Path
) -> None:
    (function,) = re.findall(r"^def read.*?(?=^\S)", documented_example(), re.DOTALL | re.MULTILINE)
    channels, height, width = shape
    names: dict[str, Any] = {"Image": Image, "ImageOps": ImageOps, "np": np}
    names |= {"channels": channels, "height": height, "width": width, "about": {"crop": crop}}
    exec(function, names)
    for number in range(45):
        save_jpeg(jpeg := tmp_path / f"{number}.jpg", number)
        save_png(png := tmp_path / f"{number}.png", number)
        for file in (jpeg, png):
            wished = read_image(file, channels=channels, size=(height, width), crop=crop).numpy()
            assert np.array_equal(names["read"](file), wished), file


def test_the_documented_example_needs_no_torch_and_prints_no_warnings(tmp_path: Path) -> None:
    """JPEGs in, the same classes and paths as torch gives out."""
    watch = "\nassert not {'torch', 'codinet', 'onnx'} & set(sys.modules)\n"
    (tmp_path / "classify.py").write_text(documented_example() + watch)
    files = [f"{number}.jpg" for number in range(120)]
    for number, file in enumerate(files):
        save_jpeg(tmp_path / file, number)
    images = torch.stack([read_image(tmp_path / file, channels=3, size=(32, 32)) for file in files])
    images = normalise(images, torch.tensor(DATA.mean), torch.tensor(DATA.std))
    torch.manual_seed(0)
    model = with_run_rate(settle(create_model("resnet20"), images[:64]), images[:64], 0.5)

    def answers(files: list[str], code: int = 0) -> list[dict[str, Any]]:
        words = [sys.executable, "-I", "-W", "always", "classify.py", "m.onnx", *files]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (code, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    export(model, tmp_path / "m.onnx", DATA)
    found = answers(files)
    with torch.no_grad():
        output = model(images)
    assert [answer["file"] for answer in found] == files
    assert [answer["class"] for answer in found] == [DATA.classes[k] for k in output.logits_BK.argmax(dim=1)]
    paths = ["".join(str(int(ran)) for ran in row) for row in output.path_BN]
    assert [answer["path"] for answer in found] == paths
    assert len(set(paths)) > 20
    table = block_costs(model, (3, 32, 32))
    assert [answer["cost_share"] for answer in found] == pytest.approx(table.share(output.path_BN).tolist())

    (tmp_path / "torn.jpg").write_bytes((tmp_path / "0.jpg").read_bytes()[:400])
    torn, missing, good = answers(["torn.jpg", "none.jpg", "0.jpg"], code=2)
    assert (torn.keys(), missing.keys(), good) == ({"file", "error"}, {"file", "error"}, found[0])

    path = [1, 0] * 4 + [1]
    export(model, tmp_path / "m.onnx", DATA, kind="static", path=path)
    found = answers(files[:5])
    with torch.no_grad():
        classes = model(images[:5], force=torch.tensor(path)).logits_BK.argmax(dim=1)
    assert [answer["class"] for answer in found] == [DATA.classes[k] for k in classes]
    assert {answer["path"] for answer in found} == {"101010101"}
    without_routers = table.share(torch.tensor([path])).item() - sum(table.router_N) / table.static_macs
    assert found[0]["cost_share"] == pytest.approx(without_routers)
