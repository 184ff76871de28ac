"""Kernels on some of the images of a batch, against plain PyTorch."""

import pytest
import torch

from codinet.kernels import available
from codinet.kernels.rows import Listed
from codinet.routers import FCRouter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Convolutions are for half precision. Triton's interpreter multiplies bfloat16 incorrectly.
CONV_DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
CONV_ATOL, CONV_RTOL = (5e-2, 2e-2) if DEVICE.type == "cuda" else (1e-3, 1e-3)
pytestmark = pytest.mark.skipif(not available(DEVICE), reason="needs Triton")


def features(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE).contiguous(memory_format=torch.channels_last)


def conv_features(*shape: int) -> torch.Tensor:
    return features(*shape).to(CONV_DTYPE)


def layer(outputs: int, inputs: int, side: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return 0.1 * conv_features(outputs, inputs, side, side), conv_features(1, outputs, 1, 1).flatten()


def convolved(
    x_BCHW: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int = 1, padding: int = 0
) -> torch.Tensor:
    """The convolution of torch, exact enough to compare with."""
    return torch.conv2d(x_BCHW.double(), weight.double(), bias.double(), stride, padding)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=CONV_ATOL, rtol=CONV_RTOL)


def listed(*images: int, count: int | None = None) -> Listed:
    number = None if count is None else torch.tensor([count], dtype=torch.int32, device=DEVICE)
    return Listed(torch.tensor(images, device=DEVICE), number)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("index", [None, [3, 0, 4, 4]])
def test_a_convolution_of_listed_images(side: int, stride: int, index: list[int] | None) -> None:
    from codinet.kernels.rows.conv_rows import Weights, conv_rows

    x_BCHW, (weight, bias) = conv_features(5, 64, 7, 6), layer(32, 64, side)
    rows = None if index is None else listed(*index)
    y_RNHW = conv_rows(
        x_BCHW, Weights.of(weight, bias, stride), listed=rows, gather=rows is not None, relu=rows is not None
    )
    rows_RCHW = x_BCHW if rows is None else x_BCHW[rows.index_R]
    expected = convolved(rows_RCHW, weight, bias, stride, side // 2)
    assert_near(y_RNHW, expected if index is None else expected.relu())


@pytest.mark.parametrize("positions", [(6, 6), (8, 8)])  # tiles that end with an image have 64 positions
def test_a_convolution_added_to_listed_images(positions: tuple[int, int]) -> None:
    from codinet.kernels.rows.conv_rows import Weights, add_conv_rows_

    y_BNHW, x_RCHW, (weight, bias) = conv_features(5, 64, *positions), conv_features(3, 32, *positions), layer(64, 32)
    rows, pooled_BC = listed(0, 2, 3), torch.zeros(5, 64, device=DEVICE)
    expected, index = y_BNHW.double(), rows.index_R
    expected[index] = (expected[index] + convolved(x_RCHW, weight, bias)).relu()
    add_conv_rows_(y_BNHW, rows, x_RCHW, Weights.of(weight, bias, 1), pooled_BC=pooled_BC)
    assert_near(y_BNHW, expected)
    assert_near(pooled_BC[index], expected[index].mean(dim=(2, 3)))
    assert not pooled_BC[[1, 4]].any()


@pytest.mark.parametrize(("count", "side"), [(0, 5), (2, 9), (3, 5)])
def test_images_behind_the_count_stay_as_they_are(count: int, side: int) -> None:
    """Programs share the sum over 9 · 64 and 8 · 64 channels, and the counters are zero again afterwards.

    The last program of an image pools it. With a side of 9 it has two programs for each group of channels.
    """
    from codinet.kernels.rows.conv_rows import Weights, _tiles, add_conv_rows_, conv_rows, zero_counters

    x_BCHW, rows = conv_features(4, 64, side, side), listed(2, 0, 3, count=count)
    (inner, bias), (last, last_bias) = layer(512, 64, 3), layer(64, 512)
    middle, end, counters = Weights.of(inner, bias, 1), Weights.of(last, last_bias, 1), zero_counters(x_BCHW)
    assert _tiles(3, side * side, end, few=True).split == 2
    expected, index = x_BCHW.double(), rows.index_R[:count]
    hidden = convolved(x_BCHW[index], inner, bias, padding=1).relu()
    expected[index] = (expected[index] + convolved(hidden, last, last_bias)).relu()
    pooled_BC = torch.zeros(4, 64, device=DEVICE)
    for _ in range(2 if count == 0 else 1):
        h_RCHW = conv_rows(x_BCHW, middle, listed=rows, gather=True, arrived=counters)
        add_conv_rows_(x_BCHW, rows, h_RCHW, end, pooled_BC=pooled_BC, arrived=counters)
        assert not counters.any()
    assert_near(x_BCHW, expected)
    assert_near(pooled_BC[index], expected[index].mean(dim=(2, 3)))
    assert torch.equal(pooled_BC.any(dim=1).nonzero()[:, 0].sort().values, index.sort().values)


def test_only_listed_images_are_pooled() -> None:
    from codinet.kernels.rows.router_rows import pool_rows_

    x_BCHW, pooled_BC, rows = features(6, 96, 5, 7), torch.zeros(6, 96, device=DEVICE), listed(1, 4, 5)
    pool_rows_(pooled_BC, x_BCHW, rows)
    expected = torch.zeros_like(pooled_BC)
    expected[rows.index_R] = x_BCHW[rows.index_R].mean(dim=(2, 3))
    torch.testing.assert_close(pooled_BC, expected)
    pool_rows_(pooled_BC, x_BCHW)
    torch.testing.assert_close(pooled_BC, x_BCHW.mean(dim=(2, 3)))


@pytest.mark.parametrize("sides", [(6, 10), (7, 9), (17, 16)])
def test_max_pooling_of_a_stem(sides: tuple[int, int]) -> None:
    from codinet.kernels.rows.stem_rows import max_pool

    x_BCHW = features(2, 48, *sides)
    y_BCHW, pooled_BC = max_pool(x_BCHW)
    expected = torch.max_pool2d(x_BCHW, 3, 2, 1)
    assert torch.equal(y_BCHW, expected)
    torch.testing.assert_close(pooled_BC, expected.mean(dim=(2, 3)))


@pytest.mark.parametrize("batch", [1, 19])
def test_the_parts_of_the_scores_add_up(batch: int) -> None:
    from codinet.kernels.rows.router_rows import score_parts

    torch.manual_seed(0)
    router, pooled_BC = FCRouter(96).to(DEVICE), features(20, 96, 1, 1).flatten(1)
    hidden, out = router.hidden, router.out
    with torch.no_grad():
        parts_PB2 = score_parts(pooled_BC, (hidden.weight, hidden.bias), (out.weight, out.bias), batch)
        expected = out(hidden(pooled_BC[:batch]).relu())
    assert len(parts_PB2) > 1
    torch.testing.assert_close(parts_PB2.sum(dim=0), expected)


@pytest.mark.parametrize("batch", [1, 6, 19])
def test_the_images_that_run_are_listed(batch: int) -> None:
    from codinet.kernels.rows.router_rows import Listing, score_parts

    torch.manual_seed(0)
    router, pooled_BC = FCRouter(96).to(DEVICE), features(20, 96, 1, 1).flatten(1)
    hidden, out = router.hidden, router.out
    forced_BN = torch.full((batch, 3), 2, dtype=torch.int8, device=DEVICE)
    forced_BN[::5, 1], forced_BN[1::5, 1] = 1, 0
    scores_BN2, path_BN = torch.zeros(batch, 3, 2, device=DEVICE), torch.zeros(batch, 3, device=DEVICE)
    limit, arrived = torch.tensor([0.05], device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    rows = listed(*[0] * batch, count=0)
    listing = Listing(forced_BN, limit, scores_BN2, path_BN, rows, arrived)
    with torch.no_grad():
        parts_PB2 = score_parts(pooled_BC, (hidden.weight, hidden.bias), (out.weight, out.bias), batch, listing, 1)
    scores_B2 = parts_PB2.sum(dim=0)
    asked_B = scores_B2[:, 1] - scores_B2[:, 0] >= limit
    runs_B = torch.where(forced_BN[:, 1] == 2, asked_B, forced_BN[:, 1] == 1)
    torch.testing.assert_close(scores_BN2[:, 1], scores_B2)
    assert torch.equal(path_BN[:, 1], runs_B.float())
    assert not path_BN[:, [0, 2]].any()
    assert rows.number is not None
    assert torch.equal(rows.index_R[: int(rows.number)], runs_B.nonzero()[:, 0])
    assert int(rows.number) == int(runs_B.sum())
    assert not arrived.any()
