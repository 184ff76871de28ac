"""The end of a routed block against its reference. Without a GPU, kernels run in Triton's interpreter, in float32."""

import pytest
import torch

pytest.importorskip("triton")

from codinet.kernels.block.routed_end import NormBuffers, plain_routed_end, routed_end, supports_end

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _tensors(number: int, channels: int, height: int, width: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shape = number, channels, height, width
    tensors = {
        "y": (3 * torch.randn(shape) + 1).to(dtype),
        "shortcut": torch.randn(shape).to(dtype),
        "run": torch.rand(number),
        "gamma": torch.randn(channels),
        "beta": torch.randn(channels),
    }
    return {name: tensor.to(DEVICE).requires_grad_() for name, tensor in tensors.items()}


def _results(function, tensors: dict[str, torch.Tensor], *, pooled: bool = True) -> dict[str, torch.Tensor]:
    """Returns the outputs, all gradients and the BatchNorm buffers."""
    zeros = torch.zeros_like(tensors["gamma"]).detach()
    buffers = NormBuffers(zeros, zeros + 1, torch.zeros((), dtype=torch.long, device=DEVICE), 0.1, 1e-5)
    out, pool = function(*(tensors.get(name) for name in ("y", "shortcut", "run", "gamma", "beta")), buffers)
    generator = torch.Generator(DEVICE).manual_seed(1)
    loss = (out.float() * torch.randn(out.shape, generator=generator, device=DEVICE)).sum()
    if pooled:
        loss = loss + 10 * (pool * torch.randn(pool.shape, generator=generator, device=DEVICE)).sum()
    gradients = dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True))
    kept = {"mean": buffers.running_mean, "var": buffers.running_var, "batches": buffers.batches}
    return {"out": out, "pool": pool, **{f"d{name}": gradient for name, gradient in gradients.items()}, **kept}


def _errors(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    return {
        name: ((got[name].float() - each.float()).norm() / each.float().norm().clamp_min(1e-6)).item()
        for name, each in expected.items()
    }


@pytest.mark.parametrize(
    ("shape", "routed", "pooled"),
    [
        ((3, 256, 5, 5), True, True),  # two parts of the channels, pixels that do not fill the tiles
        ((2, 64, 8, 4), True, True),
        ((2, 64, 5, 3), False, True),
        ((2, 16, 3, 3), True, False),
    ],
)
def test_the_end_of_a_block_matches_the_reference(shape: tuple[int, int, int, int], routed: bool, pooled: bool) -> None:
    assert supports_end(*shape)
    tensors = _tensors(*shape, torch.float32)
    if not routed:
        del tensors["run"]
    expected = _results(plain_routed_end, tensors, pooled=pooled)
    errors = _errors(_results(routed_end, tensors, pooled=pooled), expected)
    assert errors == pytest.approx(dict.fromkeys(expected, 0.0), abs=1e-5)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("shape", [(64, 256, 56, 56), (64, 512, 28, 28), (96, 1024, 14, 14), (33, 2048, 7, 7)])
def test_features_of_a_resnet50_in_bfloat16(shape: tuple[int, int, int, int]) -> None:
    tensors = _tensors(*shape, torch.bfloat16)
    exact = {name: tensor.detach().float().requires_grad_() for name, tensor in tensors.items()}
    errors = _errors(_results(routed_end, tensors), _results(plain_routed_end, exact))
    assert max(errors.values()) < 1e-2, errors


def test_decisions_0_and_1_return_exactly_the_shortcut_or_the_block() -> None:
    tensors = _tensors(2, 64, 3, 5, torch.float32)
    static = _results(routed_end, {name: tensors[name] for name in ("y", "shortcut", "gamma", "beta")})["out"]
    tensors["run"] = torch.tensor([0.0, 1.0], device=DEVICE, requires_grad=True)
    out = _results(routed_end, tensors)["out"]
    assert torch.equal(out[0], tensors["shortcut"][0])
    assert torch.equal(out[1], static[1])


def test_shapes_that_it_does_not_support() -> None:
    assert not supports_end(2, 40, 8, 8)
    assert not supports_end(2**16, 2048, 7, 7)  # an index would overflow
