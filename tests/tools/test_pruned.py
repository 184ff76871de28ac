"""Pruned networks: the channels that matter stay, the cost is met, and the result trains and routes."""

import json
from pathlib import Path

import pytest
import torch

from codinet import block_costs, create_model, make_dynamic
from codinet.backbones import BasicBlock
from codinet.errors import UserError
from codinet.model import CoDiNet
from tools import pruned
from tools.pruned import BLOCKS, PrunedResNet, network, prune, widths

pytest.importorskip("torch_pruning")
SHAPE = 3, 16, 16


def settled(arch: str = "resnet14") -> CoDiNet:
    torch.manual_seed(0)
    model = create_model(arch, routed=False)
    assert isinstance(model, CoDiNet)
    with torch.no_grad():
        model.train()(torch.randn(32, *SHAPE))
    return model.eval()


def test_the_smallest_channels_go_and_the_rest_computes_the_same() -> None:
    model, images = settled(), torch.randn(3, *SHAPE)
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, BasicBlock)
            half = block.conv1.out_channels // 2
            for part in (block.conv1, block.bn1):
                part.weight[:half] *= 1e-4
            block.bn1.bias[:half] = 0
            block.conv2.weight[:, :half] *= 1e-4
        expected = model(images).logits_BK
        found = prune(model, SHAPE, 0.55)
        assert widths(model) == [16, 16, 32, 32, 64, 64]
        assert all(left >= width // 2 for left, width in zip(widths(found), widths(model), strict=True))
        torch.testing.assert_close(found(images), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [0.2, 0.39, 0.8])
def test_the_budget_is_met_closely(budget: float) -> None:
    model = settled()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = prune(model, SHAPE, budget)
    routed = make_dynamic(found, blocks=BLOCKS, image_shape=SHAPE)
    static = make_dynamic(found, blocks=BLOCKS, router=None)
    share = block_costs(static, SHAPE).static_macs / block_costs(model, SHAPE).static_macs
    assert budget - 0.02 < share <= budget
    assert len(routed.blocks) == 4  # the two that change the shape always run
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_network_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(pruned.FOLDER_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"python -m tools\.pruned"):
        network(10)
    (tmp_path / "widths.json").write_text(json.dumps({"arch": "resnet14", "widths_N": [3, 16, 1, 2, 9, 64]}))
    monkeypatch.setenv(pruned.FOLDER_VARIABLE, str(tmp_path))
    built = network(7, in_channels=1)
    assert isinstance(built, PrunedResNet)
    assert widths(built) == [3, 16, 1, 2, 9, 64]
    assert built(torch.zeros(2, 1, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize(
    ("arch", "routed", "budget", "said"),
    [
        ("resnet14", True, 0.5, "static networks of basic blocks"),
        ("resnet50", False, 0.5, "static networks of basic blocks"),
        ("resnet14", False, 1.5, "between 0 and 1"),
        ("resnet14", False, 0.01, "shortcuts' channels remain"),
    ],
)
def test_what_cannot_be_pruned_is_one_sentence(arch: str, routed: bool, budget: float, said: str) -> None:
    model = create_model(arch, routed=routed)
    assert isinstance(model, CoDiNet)
    with pytest.raises(UserError, match=said):
        prune(model, SHAPE, budget)
