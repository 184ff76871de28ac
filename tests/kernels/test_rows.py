"""Kernels on some of the images of a batch, against plain PyTorch."""

import pytest
import torch

from codinet.kernels import available
from codinet.routers import FCRouter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(not available(DEVICE), reason="needs Triton")


def features(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE).contiguous(memory_format=torch.channels_last)


def layer(outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    return 0.1 * features(outputs, inputs, 1, 1).flatten(1).contiguous(), features(1, outputs, 1, 1).flatten()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("index", [None, [3, 0, 4, 4]])
def test_a_convolution_of_listed_images(stride: int, index: list[int] | None) -> None:
    from codinet.kernels.rows.conv_rows import conv_rows

    x_BCHW, (weight, bias) = features(5, 64, 7, 6), layer(32, 64)
    index_R = None if index is None else torch.tensor(index, device=DEVICE)
    y_RNHW = conv_rows(x_BCHW, weight, bias, stride=stride, index_R=index_R, relu=index is not None)
    rows_RCHW = x_BCHW if index_R is None else x_BCHW[index_R]
    expected = torch.conv2d(rows_RCHW, weight[:, :, None, None], bias, stride)
    torch.testing.assert_close(y_RNHW, expected if index is None else expected.relu(), atol=1e-3, rtol=1e-3)


def test_a_convolution_added_to_listed_images() -> None:
    from codinet.kernels.rows.conv_rows import add_conv_rows_

    y_BNHW, x_RCHW, (weight, bias) = features(5, 64, 6, 6), features(3, 32, 6, 6), layer(64, 32)
    index_R = torch.tensor([0, 2, 3], device=DEVICE)
    expected = y_BNHW.clone()
    expected[index_R] = (expected[index_R] + torch.conv2d(x_RCHW, weight[:, :, None, None], bias)).relu()
    add_conv_rows_(y_BNHW, index_R, x_RCHW, weight, bias)
    torch.testing.assert_close(y_BNHW, expected, atol=1e-3, rtol=1e-3)


def test_only_listed_images_are_pooled() -> None:
    from codinet.kernels.rows.router_rows import pool_rows_

    x_BCHW, pooled_BC = features(6, 96, 5, 7), torch.zeros(6, 96, device=DEVICE)
    index_R = torch.tensor([1, 4, 5], device=DEVICE)
    pool_rows_(pooled_BC, x_BCHW, index_R)
    expected = torch.zeros_like(pooled_BC)
    expected[index_R] = x_BCHW[index_R].mean(dim=(2, 3))
    torch.testing.assert_close(pooled_BC, expected)


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
