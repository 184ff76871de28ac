"""The fused router against its reference."""

import pytest
import torch

pytest.importorskip("triton")

from codinet.kernels.block.router_kernels import fc_scores, plain_fc_scores

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("channels", "number"), [(16, 1), (32, 33), (64, 70)])
def test_scores_and_gradients_match_the_reference(channels, number) -> None:
    torch.manual_seed(0)
    shapes = (number, channels), (channels, channels), (channels,), (2, channels), (2,)
    inputs = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    weight = torch.randn(number, 2, device=DEVICE)
    results = []
    for function in (plain_fc_scores, fc_scores):
        scores = function(*inputs)
        results.append([scores, *torch.autograd.grad((scores * weight).sum(), inputs)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
