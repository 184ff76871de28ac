"""Networks with fewer channels inside their blocks: costs, engines, exported files, and who refuses them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from codinet import block_costs, create_model, load, save
from codinet.bench.run_rate import settle, with_run_rate
from codinet.config import ModelConfig
from codinet.engines.branch import BranchEngine
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import why_not
from codinet.engines.reference import MaskedEngine
from codinet.engines.switch import SwitchEngine
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork
from codinet.networks import build

WIDTHS = (5, 16, 32, 17, 1, 64)  # of a resnet14: some as many as it has, some fewer, in blocks of every kind


@pytest.fixture(scope="module")
def pruned() -> tuple[RoutedNetwork, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    return with_run_rate(settle(create_model("resnet14", widths=WIDTHS), images), images, 0.5), images


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine, SwitchEngine])
def test_engines(kind: Callable, pruned: tuple[RoutedNetwork, torch.Tensor], assert_same: Callable) -> None:
    model, images = pruned
    with torch.no_grad():
        reference = model(images)
    assert 0 < reference.path_BN.mean() < 1
    assert_same(kind(model)(images), reference)


def test_an_exported_file(pruned: tuple[RoutedNetwork, torch.Tensor], assert_same: Callable) -> None:
    pytest.importorskip("onnxruntime")
    from codinet.engines.onnx import OnnxEngine

    model, images = pruned
    with torch.no_grad():
        assert_same(OnnxEngine.of(model, (3, 32, 32))(images[:1]), model(images[:1]))


def test_a_saved_network(pruned: tuple[RoutedNetwork, torch.Tensor], tmp_path: Path) -> None:
    model, images = pruned
    save(model, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.config is not None
    assert again.config.widths == WIDTHS
    with torch.no_grad():
        assert torch.equal(again(images).logits_BK, model(images).logits_BK)


def test_costs_by_hand() -> None:
    whole, pruned = (block_costs(create_model("resnet14", widths=w), (3, 32, 32)) for w in ((), WIDTHS))
    # The first block: 16 → 5 → 16 channels at 32×32. The third: 16 → 32 → 32 at 16×16, as in the whole network.
    assert pruned.run_N[0] == 9 * 32 * 32 * (16 * 5 + 5 * 16)
    assert pruned.run_N[2] == whole.run_N[2] == 9 * 16 * 16 * (16 * 32 + 32 * 32)
    assert (pruned.fixed, pruned.skip_N, pruned.router_N) == (whole.fixed, whole.skip_N, whole.router_N)


def test_the_kernels_for_equal_widths_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codinet.kernels.available", lambda _device: True)
    sixteen = create_model("resnet14", widths=(16, 16, 16, 16, 16, 16))  # widths that the kernels know
    assert "does not support pruned networks" in str(why_not(sixteen, torch.device("cpu")))
    assert why_not(create_model("resnet14", widths=(16, 16, 32, 32, 64, 64)), torch.device("cpu")) is None
    fused = pytest.importorskip("codinet.train.fused")
    x_BCHW = torch.zeros(2, 32, 16, 16, dtype=torch.bfloat16)
    assert not fused.supports(sixteen.blocks[3], x_BCHW, static=True)
    assert fused.supports(create_model("resnet14").blocks[3], x_BCHW, static=True)


@pytest.mark.parametrize(
    ("arch", "widths", "sentence"),
    [
        ("resnet14", (5, 16), "one entry for each of the 6 blocks, got 2"),
        ("resnet14", (5, 16, 32, 0, 1, 64), "Each of widths must be a whole number"),
        ("resnet14", "wide", "widths must be numbers of channels"),
        ("resnet50", (5,) * 16, "networks of basic blocks"),
        ("timm:resnet18", (5,) * 8, "widths must be left out for timm:resnet18"),
    ],
)
def test_impossible_widths(arch: str, widths: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(ModelConfig(arch, widths=widths))


def test_widths_of_a_saved_config_are_a_tuple() -> None:
    model = CoDiNet(ModelConfig("resnet14", widths=list(WIDTHS)))  # type: ignore[arg-type]
    assert model.config.widths == WIDTHS
