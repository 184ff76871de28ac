"""The cost table against hand counts and a count by layers, and Eq. 10 over it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codinet import CoDiNet, CostTable, block_costs, create_model, list_models
from codinet.backbones import ARCHITECTURES
from codinet.routers import ROUTERS

quick = settings(deadline=None, derandomize=True, max_examples=25)
HAND = CostTable((100, 200, 300), (0, 50, 0), (1, 2, 3), fixed=10, image_shape=(3, 8, 8), paper_unit=2)


def counted(model: CoDiNet, function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """The MACs of the layers that a call goes through, and what the call returns."""
    seen: list[int] = []
    handles = [
        module.register_forward_hook(lambda module, _inputs, output: seen.append(layer_macs(module, output)))
        for module in model.modules()
    ]
    with torch.no_grad():
        result = function(*args)
    for handle in handles:
        handle.remove()
    return sum(seen), result


def layer_macs(layer: nn.Module, output: Any) -> int:
    """By its formula; 0 for what is no convolution or matrix product, and for what is made of layers."""
    if isinstance(layer, nn.Conv2d):
        return output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    if isinstance(layer, nn.LSTMCell):
        return output[0].shape[0] * 4 * layer.hidden_size * (layer.input_size + layer.hidden_size)
    return 0


def table_by_layers(model: CoDiNet, images_BCHW: torch.Tensor) -> CostTable:
    fixed, x = counted(model, model.stem, images_BCHW)
    state = () if model.routers is None else model.routers.start(images_BCHW)
    run, skip, router = [], [], []
    for k, block in enumerate(model.blocks):
        skip.append(counted(model, block.shortcut, x)[0])
        if model.routers is None:
            router.append(0)
        else:
            macs, (_, state) = counted(model, model.routers.router(k), x, state)
            router.append(macs)
        macs, x = counted(model, block, x)
        run.append(macs)
    fixed += counted(model, model.head, x)[0]
    shape = (images_BCHW.shape[1], images_BCHW.shape[2], images_BCHW.shape[3])
    return CostTable(tuple(run), tuple(skip), tuple(router), fixed, shape, paper_unit=model.paper_unit)


def assert_the_layers_agree(model: CoDiNet, size: int) -> None:
    images_BCHW = torch.empty(1, model.config.in_channels, size, size, device="meta")
    table = block_costs(model, (model.config.in_channels, size, size))
    assert table == table_by_layers(model, images_BCHW)
    assert table.static_macs + sum(table.router_N) == counted(model, model, images_BCHW)[0]


@pytest.mark.parametrize("routed", [False, True], ids=["static", "routed"])
@pytest.mark.parametrize("name", list_models())
def test_every_table_matches_the_count_by_layers_part_by_part_and_in_total(name: str, routed: bool) -> None:
    with torch.device("meta"):
        model = create_model(name, routed=routed).eval()
    assert_the_layers_agree(model, ARCHITECTURES[name].image_size)


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
