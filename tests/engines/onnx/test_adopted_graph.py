"""ONNX files of adopted networks: the same paths and logits, whatever the layout of the features."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")

import onnx

from codinet.adopt import import_vision, make_dynamic
from codinet.bench.run_rate import settle, with_run_rate
from codinet.engines import choose as choosing
from codinet.engines import compile_engine
from codinet.engines.onnx import OnnxEngine
from codinet.engines.onnx.build_graph import build
from codinet.engines.onnx.graph_nodes import Graph, finish
from codinet.engines.onnx.onnx_file import ExportInfo, export
from codinet.engines.onnx.runtime import open_session
from codinet.engines.onnx.torch_parts import TorchPart, export_part
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

SHAPE = 3, 16, 24
Same = Callable[..., None]


class ConvBlock(nn.Module):
    """Maps; writes into its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self.norm(self.conv(x)).relu())


class LinearBlock(nn.Module):
    """Channels-last features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class TokenBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(number, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(number, tokens, width))


class Mixed(nn.Module):
    """Blocks in all three layouts, and operations between them that always run."""

    def __init__(self, token_block: type[nn.Module] = TokenBlock) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.convs = nn.Sequential(ConvBlock(8), ConvBlock(8))
        self.merge = nn.Linear(8, 12)
        self.linears = nn.Sequential(LinearBlock(12), LinearBlock(12))
        self.tokens = nn.Sequential(token_block(12), token_block(12))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convs(self.stem(x)).permute(0, 2, 3, 1)
        x = self.linears(self.merge(x)).flatten(1, 2)
        return self.head(self.tokens(x).mean(dim=1))


def images_of(number: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    """Noise of different colour and contrast; images of noise alone look alike to a router."""
    random = torch.Generator().manual_seed(5)
    colours = torch.randn(number, shape[0], 1, 1, generator=random)
    return colours + torch.randn(number, *shape, generator=random) * torch.rand(number, 1, 1, 1, generator=random)


@cache
def mixed(router: str = "fc") -> RoutedNetwork:
    torch.manual_seed(0)
    model = make_dynamic(Mixed(), blocks=["convs.*", "linears.*", "tokens.*"], router=router, image_shape=SHAPE)
    images = images_of(32)
    return with_run_rate(settle(model, images), images, 0.5)


def require_parity(model: RoutedNetwork, engine: OnnxEngine, images: torch.Tensor, assert_same: Same) -> None:
    paths = set()
    for threshold in (0.0, 0.47, 0.5, 1.0):
        with torch.no_grad():
            reference = model(images, decide=partial(hard, threshold=threshold))
        assert_same(engine(images, threshold=threshold), reference)
        paths |= {tuple(path) for path in reference.path_BN.tolist()}
    assert len(paths) > 4


@pytest.mark.parametrize("kind", ["routed", "masked"])
@pytest.mark.parametrize("router", ["fc", "cnn", "rnn"])
def test_all_layouts(kind: str, router: str, assert_same: Same) -> None:
    engine = OnnxEngine.of(mixed(router), SHAPE, kind=kind, threads=1)  # type: ignore[arg-type]
    require_parity(mixed(router), engine, images_of(32), assert_same)


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit", "test_convnext"])
@pytest.mark.filterwarnings("ignore")  # of timm, when it is imported
def test_networks_of_timm(arch: str, assert_same: Same) -> None:
    torch.manual_seed(0)
    module = import_vision("timm").create_model(arch, num_classes=5)
    shape = (3, 160, 160) if arch == "test_vit" else (3, 64, 64)
    images = images_of(8, shape)
    model = with_run_rate(settle(make_dynamic(module, image_shape=shape), images), images, 0.5)
    require_parity(model, OnnxEngine.of(model, shape, threads=1), images, assert_same)


def test_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str], assert_same: Same) -> None:
    """A static path, metadata, nothing printed, and the same bytes each time."""
    data = ExportInfo([f"class {k}" for k in range(5)], [120.0] * 3, [60.0] * 3, SHAPE, crop=0.875)
    model, images, path = mixed(), images_of(4), [1, 0, 0, 1, 1, 0]
    modes = [module.training for module in model.modules()]
    export(model, tmp_path / "static.onnx", data, kind="static", path=path)
    with torch.no_grad():
        expected = model(images, force=torch.tensor(path)).logits_BK
    engine = OnnxEngine(tmp_path / "static.onnx")
    assert (engine(images).logits_BK - expected).abs().max() < 1e-5
    assert engine.about["crop"] == 0.875
    assert len(engine.about["cost_table"]["run_N"]) == 6
    for name in ("a.onnx", "b.onnx"):
        assert export(model, tmp_path / name, data, threshold=0.4, images_BCHW=images) == 12
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    engine = OnnxEngine(tmp_path / "a.onnx")
    assert (engine.about["router"], engine.threshold) == ("fc", 0.4)
    assert capfd.readouterr() == ("", "")
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(UserError, match="classes must name the 5 classes"):
        export(model, tmp_path / "c.onnx", ExportInfo(["one"], [1.0] * 3, [1.0] * 3, SHAPE))
    with pytest.raises(UserError, match="opset must be from 18 to 20 for an adopted network, got 17"):
        build(model, SHAPE, opset=17)
    with pytest.raises(UserError, match="The stem fails on images of 4×16×24"):
        build(model, (4, 16, 24))


@pytest.mark.parametrize("own", [True, False])
def test_branches_are_decided_by_scalars_and_state_their_shapes(own: bool, network: Callable) -> None:
    """OpenVINO and TensorRT require it."""
    graph = build(network(), (3, 32, 32)).graph if own else build(mixed(), SHAPE).graph
    inferred = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph), data_prop=True).graph
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in inferred.value_info}
    branches = [node for node in graph.node if node.op_type == "If"]
    assert len(branches) == (9 if own else 6)
    for node in branches:
        assert ranks[node.input[0]] == 0
        for branch in (attribute.g for attribute in node.attribute):
            assert branch.initializer or branch.name.startswith("skip")  # the weights of a block are in its branch
            for output in branch.output:
                assert output.type.tensor_type.shape.dim[0].dim_value == 1
                assert all(side.dim_value > 0 for side in output.type.tensor_type.shape.dim)


class StrangeBlock(LinearBlock):
    """Cannot be exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._get_tracing_state() or torch.compiler.is_compiling():
            raise RuntimeError("This block cannot be traced.")
        return super().forward(x)


def test_the_newer_exporter_is_used_where_the_older_one_fails() -> None:
    pytest.importorskip("onnxscript")
    layer, x = nn.Linear(4, 4), torch.randn(1, 4, 4)
    function = TorchPart(layer, lambda x: layer(x.mT))
    with pytest.raises(UserError, match=r"^It cannot be exported to ONNX: .*aten::mT.*"):
        export_part("It", function, x, opset=18, any_batch=False, thorough=False)
    graph = Graph(18)
    graph.rename(graph.insert(export_part("It", function, x, opset=18, any_batch=False, thorough=True), "x"), "y")
    model = finish(graph.main({"x": [1, 4, 4]}, {"y": [1, 4, 4]}, "test"), 18)
    (y,) = open_session(model.SerializeToString(), threads=1).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(y), layer(x.mT), atol=1e-6)


def test_a_block_that_cannot_be_exported_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    model = make_dynamic(Mixed(StrangeBlock), blocks="tokens.*", image_shape=SHAPE)
    with pytest.raises(UserError, match=r"^tokens\.0 cannot be exported to ONNX: This block cannot be traced\.$"):
        build(model, SHAPE)
    assert model.training
    assert compile_engine(model.eval(), images=images_of(1)).name != "onnx"
    assert capfd.readouterr() == ("", "")


def test_compile_engine_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_fastest_of", lambda engine, _images: float(engine.name != "onnx"))
    assert compile_engine(mixed(), images=images_of(1)).name == "onnx"
