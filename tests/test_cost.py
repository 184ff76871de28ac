"""The cost table against hand counts and a count by layers, and Eq. 10 over it."""

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from codinet import CostTable, UserError, block_costs, create_model, list_models, make_dynamic
from codinet.backbones import ARCHITECTURES
from codinet.model import RoutedNetwork
from codinet.routers import ROUTERS

quick = settings(deadline=None, derandomize=True, max_examples=25)
HAND = CostTable((100, 200, 300), (0, 50, 0), (1, 2, 3), fixed=10, image_shape=(3, 8, 8), paper_unit=2)


def counted(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """The MACs of the layers that a call goes through, and what the call returns."""
    seen: list[int] = []
    count = lambda module, _inputs, output: seen.append(layer_macs(module, output))  # noqa: E731
    with torch.no_grad(), register_module_forward_hook(count):
        result = function(*args)
    return sum(seen), result


def layer_macs(layer: nn.Module, output: Any) -> int:
    """By its formula; 0 for modules that are neither convolution nor matrix product, and for containers."""
    if isinstance(layer, nn.Conv2d):
        return output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    if isinstance(layer, nn.LSTMCell):
        return output[0].shape[0] * 4 * layer.hidden_size * (layer.input_size + layer.hidden_size)
    return 0


def table_by_layers(model: RoutedNetwork, images_BCHW: torch.Tensor) -> CostTable:
    fixed, x = counted(model.stem, images_BCHW)
    state = () if model.routers is None else model.routers.start(images_BCHW)
    run, skip, router = [], [], []
    for k, block in enumerate(model.blocks):
        skip.append(counted(block.shortcut, x)[0])
        if model.routers is None:
            router.append(0)
        else:
            macs, (_, state) = counted(model.routers.router(k), x, state)
            router.append(macs)
        macs, x = counted(block, x)
        run.append(macs)
    fixed += counted(model.head, x)[0]
    shape = (images_BCHW.shape[1], images_BCHW.shape[2], images_BCHW.shape[3])
    return CostTable(tuple(run), tuple(skip), tuple(router), fixed, shape, paper_unit=model.paper_unit)


def assert_the_layers_agree(model: RoutedNetwork, size: int) -> None:
    assert model.in_channels is not None
    images_BCHW = torch.zeros(1, model.in_channels, size, size, device=next(model.parameters()).device)
    table = block_costs(model, (model.in_channels, size, size))
    assert table == table_by_layers(model, images_BCHW)
    assert table.static_macs + sum(table.router_N) == counted(model, images_BCHW)[0]


@pytest.mark.parametrize("routed", [False, True], ids=["static", "routed"])
@pytest.mark.parametrize("name", list_models())
def test_every_table_matches_the_count_by_layers_part_by_part_and_in_total(name: str, routed: bool) -> None:
    size = ARCHITECTURES[name].image_size
    with torch.device("meta" if size > 32 else "cpu"):  # small images are computed faster than their shapes
        model = create_model(name, routed=routed).eval()
    assert_the_layers_agree(model, size)


@pytest.mark.parametrize("kind", ROUTERS)
def test_every_router_kind_matches_the_count_by_layers(kind: str) -> None:
    with torch.device("meta"):
        model = create_model("resnet20", router=kind, num_classes=7, in_channels=1).eval()
    assert_the_layers_agree(model, 29)


def test_stride_on_1x1_matches_the_count_by_layers() -> None:
    with torch.device("meta"):
        model = create_model("resnet50", stride_on="1x1").eval()
    assert_the_layers_agree(model, 224)


def test_resnet20_counted_by_hand() -> None:
    table = block_costs(create_model("resnet20"), (3, 32, 32))
    assert table.fixed == 27 * 16 * 32 * 32 + 64 * 10
    assert table.run_N[0] == 2 * 9 * 16 * 16 * 32 * 32
    assert table.run_N[3] == 9 * (16 + 32) * 32 * 16 * 16
    assert table.run_N[8] == 2 * 9 * 64 * 64 * 8 * 8
    assert table.skip_N == (0,) * 9
    assert table.router_N == tuple(c * c + 2 * c for c in [16] * 4 + [32] * 3 + [64] * 2)


def test_a_projection_is_paid_for_whether_its_block_runs_or_not() -> None:
    with torch.device("meta"):
        table = block_costs(create_model("resnet50", routed=False), (3, 224, 224))
    assert table.skip_N[0] == 64 * 256 * 56 * 56
    assert table.skip_N[3] == 256 * 512 * 28 * 28
    assert [k for k, skip in enumerate(table.skip_N) if skip] == [0, 3, 7, 13]
    assert table.run_N[0] == (64 * 64 + 9 * 64 * 64 + 64 * 256 + 64 * 256) * 56 * 56


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("resnet20").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    block_costs(model, (3, 32, 32))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_neither_costs_nor_an_engine_need_the_compiler() -> None:
    """Importing it takes as long as importing torch, so every command would start later."""
    code = """
import sys, torch
from codinet import block_costs, compile_engine, create_model
model = create_model("resnet20")
block_costs(model, (3, 32, 32)), compile_engine(model, measure=False)(torch.zeros(1, 3, 32, 32))
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- Eq. 10


def test_eq10_worked_by_hand() -> None:
    """Run, skip, run: 10 fixed + 6 routers + 100 + 50 (the shortcut) + 300; all skipped; half of the first."""
    path_BN = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    assert HAND.path_macs(path_BN).tolist() == [466, 66, 116]
    assert HAND.static_macs == 610
    assert HAND.added_N == (100, 150, 300)
    assert HAND.share(path_BN).tolist() == pytest.approx([466 / 610, 66 / 610, 116 / 610])
    assert HAND.paper_gmaccs(1e9) == 2


@quick
@given(
    rows=st.lists(st.tuples(*[st.tuples(st.integers(0, 10**9), st.integers(0, 10**8))] * 5), min_size=1, max_size=1),
    path=st.lists(st.tuples(*[st.integers(0, 1)] * 5), min_size=1, max_size=6),
    fixed=st.integers(1, 10**9),
)
def test_eq10_adds_up_what_was_run_and_what_was_skipped(
    rows: list[tuple[tuple[int, int], ...]], path: list[tuple[int, ...]], fixed: int
) -> None:
    skip = tuple(skip for _, skip in rows[0])
    run = tuple(added + skip for added, skip in rows[0])
    table = CostTable(run, skip, (7,) * 5, fixed=fixed, image_shape=(3, 8, 8), paper_unit=1)
    expected = [fixed + 35 + sum(run[k] if v else skip[k] for k, v in enumerate(row)) for row in path]
    assert table.path_macs(torch.tensor(path, dtype=torch.uint8)).tolist() == expected


@pytest.mark.parametrize("name", ["resnet32", "resnet110", "resnet50"])
def test_all_ones_cost_a_static_net_exactly_itself(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, routed=False)
    size = ARCHITECTURES[name].image_size
    table = block_costs(model, (3, size, size))
    assert table.share(torch.ones(1, len(model.blocks))).item() == 1.0


def test_routers_are_part_of_a_paths_cost() -> None:
    table = block_costs(create_model("resnet20"), (3, 32, 32))
    assert table.path_macs(torch.ones(1, 9)).item() == table.static_macs + sum(table.router_N)


def test_loss_weights_worked_by_hand() -> None:
    """Running adds 100, 150 and 300, of mean 550 / 3."""
    expected = torch.tensor([6 / 11, 9 / 11, 18 / 11])
    torch.testing.assert_close(HAND.loss_weights(), expected)


@pytest.mark.parametrize("name", list_models())
def test_loss_weights_sum_to_the_number_of_blocks(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, routed=False)
    weights_N = block_costs(model, (3, 64, 64)).loss_weights()
    assert weights_N.dtype == torch.float32
    assert weights_N.sum().item() == pytest.approx(len(model.blocks), rel=1e-6)
    assert (weights_N > 0).all()


# --- what they refuse


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"run_N": (100, 200)}, "must have one entry per block, got"),
        ({"run_N": (), "skip_N": (), "router_N": ()}, "must have one entry per block"),
        ({"run_N": [100, 200, 300]}, "run_N must be a tuple"),
        ({"run_N": (100, 20, 300)}, "run_N must be at least skip_N"),
        ({"skip_N": (0, -1, 0)}, "An entry of skip_N must be a whole number from 0"),
        ({"router_N": (1.5, 2, 3)}, "An entry of router_N must be a whole number"),
        ({"fixed": 10**400}, "fixed must be a whole number"),
        ({"paper_unit": 0}, "paper_unit must be a whole number from 1 to 2, got 0"),
        ({"image_shape": (3, 8)}, "image_shape must be"),
        ({"run_N": (0,) * 3, "skip_N": (0,) * 3, "fixed": 0}, "must have at least one entry above 0"),
    ],
)
def test_a_table_that_cannot_be_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(HAND, **change)


@pytest.mark.parametrize("path", [None, [1, 0, 1], torch.ones(3), torch.ones(2, 4), torch.ones(1, 3, 1)])
def test_paths_have_a_decision_for_each_block(path: Any) -> None:
    for function in (HAND.path_macs, HAND.share):
        with pytest.raises(UserError, match="paths must be"):
            function(path)


def test_blocks_that_cost_nothing_cannot_be_weighed() -> None:
    with pytest.raises(UserError, match="adds no MACs"):
        dataclasses.replace(HAND, run_N=(0, 50, 0)).loss_weights()


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((1, 32, 32), r"image_shape must have 3 channels, as the network requires, got \(1, 32, 32\)"),
        ((3, 32), "image_shape must be"),
        ("abc", "image_shape must be"),
        ((3, 32, -1), "width of image_shape must be a whole number from 1 to 65536, got -1"),
        ((3, 32.0, 32), "height of image_shape must be"),
        ((3, 10**30, 32), "height of image_shape must be"),
    ],
)
def test_images_that_the_network_cannot_take_have_no_cost(shape: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        block_costs(create_model("resnet20"), shape)


def test_a_forward_that_fails_on_such_images_is_named() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4 * 64, 5)
            self.blocks = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.blocks(self.conv(x)).flatten(1))

    network = make_dynamic(Picky(), blocks="blocks.*", image_shape=(3, 8, 8))
    with pytest.raises(UserError, match="This network does not accept images of 3×9×9: "):
        block_costs(network, (3, 9, 9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_network_of_any_precision_has_the_same_costs(dtype: torch.dtype) -> None:
    assert block_costs(create_model("resnet20").to(dtype), (3, 8, 8)) == block_costs(
        create_model("resnet20"), (3, 8, 8)
    )
