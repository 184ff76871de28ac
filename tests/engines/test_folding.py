"""A fused convolution equals its parts."""

import pytest
import torch

from codinet.engines import folding
from codinet.engines.folding import Conv, FusedConv

SHAPES = [(16, 16, 3, 1, 1), (16, 32, 3, 2, 1), (3, 16, 7, 2, 3), (24, 8, 1, 1, 0)]  # in, out, kernel, stride, padding


def _conv(shape: tuple[int, int, int, int, int], dtype: torch.dtype = torch.float32) -> Conv:
    before, after, kernel, stride, padding = shape
    weight = torch.randn(after, before, kernel, kernel, dtype=dtype) / (before * kernel**2) ** 0.5
    return Conv(
        weight.contiguous(memory_format=torch.channels_last),
        torch.randn(after, dtype=dtype),
        (stride, stride),
        (padding, padding),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fused", [True, False])
@torch.inference_mode()
def test_fused_equals_its_parts(shape: tuple[int, int, int, int, int], fused: bool) -> None:
    torch.manual_seed(0)
    plain = _conv(shape)
    conv = FusedConv(plain)
    conv.fusable = conv.fusable and fused
    for number in (7, 1, 12):  # weights are reordered at the first call
        x = torch.randn(number, shape[0], 10, 10).contiguous(memory_format=torch.channels_last)
        kept = x.clone()
        y = plain(x)
        other = torch.randn_like(y).contiguous(memory_format=torch.channels_last)
        wanted = (y + other).relu()
        torch.testing.assert_close(conv.relu(x), y.relu(), atol=1e-5, rtol=1e-5)
        before = other.clone()
        torch.testing.assert_close(conv.add_relu(x, other), wanted, atol=1e-5, rtol=1e-5)
        assert torch.equal(other, before)
        conv.add_relu_(x, other)
        torch.testing.assert_close(other, wanted, atol=1e-5, rtol=1e-5)
        assert torch.equal(x, kept)


@torch.inference_mode()
def test_in_place_on_a_window_of_a_batch() -> None:
    torch.manual_seed(1)
    plain = _conv(SHAPES[0])
    x = torch.randn(6, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    wanted = x.clone()
    wanted[2:5] = (plain(x[2:5]) + x[2:5]).relu()
    window = x[2:5]
    FusedConv(plain).add_relu_(window.clone(memory_format=torch.channels_last), window)
    torch.testing.assert_close(x, wanted, atol=1e-5, rtol=1e-5)


def test_only_float32_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not FusedConv(_conv(SHAPES[0], torch.float64)).fusable
    monkeypatch.setattr(folding, "has_fused", lambda: False)
    assert not FusedConv(_conv(SHAPES[0])).fusable
