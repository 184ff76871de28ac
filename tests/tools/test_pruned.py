"""Pruned networks: the channels that matter stay, the cost is met, and the result trains and routes."""

from pathlib import Path

import pytest
import torch

from codinet import block_costs, cli, create_model
from codinet.backbones import BasicBlock
from codinet.errors import UserError
from codinet.model import CoDiNet
from codinet.runs import open_run
from tools.pruned import main as pruned_main
from tools.pruned import prune, widths
from tools.results.record import make_record, read_records, save_records

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
        assert widths(model) == (16, 16, 32, 32, 64, 64)
        assert found.config.widths == widths(found)
        assert all(left >= width // 2 for left, width in zip(widths(found), widths(model), strict=True))
        torch.testing.assert_close(found(images).logits_BK, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [0.2, 0.39, 0.8])
def test_the_budget_is_met_closely(budget: float) -> None:
    model = settled()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = prune(model, SHAPE, budget)
    table = block_costs(found, SHAPE)
    assert budget - 0.02 < table.static_macs / block_costs(model, SHAPE).static_macs <= budget
    assert table.paper_unit == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


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


def test_a_pruned_run_trains_routes_and_is_recorded(digits_npz: Path, tmp_path: Path) -> None:
    static, pruned, routed, out = (tmp_path / name for name in ("static", "pruned", "routed", "out"))
    settings = "--config", str(out / "network.json")
    schedule = "--epochs", "1", "--finetune", "1", "--batch", "16", "--device", "cpu"

    def train(run: Path, *words: str) -> None:
        assert cli.main(["train", str(digits_npz), *words, *schedule, "--out", str(run)]) == 0

    train(static, "--arch", "resnet14", "--no-routed", "--start", "none")
    assert pruned_main([str(static), "--budget", "0.5", "--out", str(out)]) == 0
    train(pruned, *settings, "--weights", str(out / "model.safetensors"), "--no-routed")
    train(routed, *settings, "--start", str(pruned), "--budget", "0.8")
    for run, method in ((pruned, "static"), (routed, "CoDiNet")):
        record = make_record(open_run(run), ["results"])
        assert record["tables"]["results"] == f"ResNet-14, pruned, {method}"
        assert "--widths" in record["command"]
        save_records([record], tmp_path / "results")
    assert len(read_records(tmp_path / "results")) == 2
    whole, less = (open_run(run).load_evaluation() for run in (static, pruned))
    assert less["macs"] < 0.5 * whole["macs"]
    assert less["paper_gmaccs"] == pytest.approx(2 * less["macs"] / 1e9)
