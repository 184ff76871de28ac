"""The fused block against its reference. Without a GPU the kernels run in Triton's interpreter, in float32."""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from codinet.kernels.block import fused_block
from codinet.kernels.block.fused_block import BlockTensors, plain_routed_block, routed_block
from codinet.kernels.block.routed_end import NormBuffers
from codinet.kernels.block.tile_sizes import Tiles, choose, fits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAMES = ("x", "run", "weight1", "gamma1", "beta1", "weight2", "gamma2", "beta2")


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """PyTorch's convolutions round to TF32 on a GPU by default."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def _block(channels: int, memory_format: torch.memory_format) -> BlockTensors:
    def weight() -> torch.Tensor:
        random = torch.randn(channels, channels, 3, 3, device=DEVICE) * 0.1
        return random.contiguous(memory_format=memory_format).requires_grad_()

    def vector() -> torch.Tensor:
        return torch.randn(channels, device=DEVICE).requires_grad_()

    def buffers() -> NormBuffers:
        zeros = torch.zeros(channels, device=DEVICE)
        return NormBuffers(zeros, zeros + 1, torch.zeros((), dtype=torch.long, device=DEVICE), 0.1, 1e-5)

    return BlockTensors(weight(), vector(), vector(), weight(), vector(), vector(), buffers(), buffers())


def _results(function, x, run, block: BlockTensors, *, pooled: bool = True) -> dict[str, torch.Tensor]:
    """Returns the outputs, all gradients and the BatchNorm buffers."""
    for buffers in (block.buffers1, block.buffers2):
        buffers.running_mean.zero_(), buffers.running_var.fill_(1), buffers.batches.zero_()
    out, pool = function(x, run, block)
    generator = torch.Generator(DEVICE).manual_seed(1)
    loss = (out.float() * torch.randn(out.shape, generator=generator, device=DEVICE)).sum()
    if pooled:
        loss = loss + 10 * (pool * torch.randn(pool.shape, generator=generator, device=DEVICE)).sum()
    inputs = {"x": x, "run": run, **dict(zip(NAMES[2:], block[:6], strict=True))}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    gradients = dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))
    kept = {
        f"{name} {number}": tensor.clone().float()
        for number, buffers in enumerate((block.buffers1, block.buffers2), start=1)
        for name, tensor in zip(("mean", "var", "batches"), buffers[:3], strict=True)
    }
    return {"out": out, "pool": pool, **gradients, **kept}


def _relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-6)).item()


@pytest.mark.parametrize(
    ("channels", "height", "width", "number", "routed", "tiles"),
    [
        (16, 8, 8, 3, True, None),
        (16, 8, 8, 3, False, None),
        (16, 16, 32, 1, True, None),
        (16, 8, 8, 3, True, Tiles(1, 2, 4, 4, 1, 2, 4)),
        (32, 8, 16, 3, True, None),
        (32, 8, 8, 2, False, Tiles(2, 4, 8, 4, 1, 2, 4)),
        (64, 8, 8, 3, True, None),
    ],
)
def test_fused_block_matches_the_reference(channels, height, width, number, routed, tiles, monkeypatch) -> None:
    if DEVICE.type == "cpu" and channels > 16:  # the interpreter takes as long for a small program as for a large one
        monkeypatch.setattr(fused_block, "ADDED", 256)
    torch.manual_seed(0)
    block = _block(channels, torch.channels_last if routed else torch.contiguous_format)
    x = torch.randn(number, channels, height, width, device=DEVICE).requires_grad_()
    run = torch.rand(number, device=DEVICE).requires_grad_() if routed else None
    expected = _results(plain_routed_block, x, run, block)
    got = _results(lambda *args: routed_block(*args, tiles=tiles), x, run, block)
    assert {name: _relative(got[name], expected[name]) for name in expected} == pytest.approx(
        dict.fromkeys(expected, 0.0), abs=1e-5
    )
    assert got["weight1"].stride() == block.weight1.stride()


def test_decisions_0_and_1_return_exactly_the_input_or_the_block() -> None:
    torch.manual_seed(0)
    block = _block(16, torch.contiguous_format)
    x = torch.randn(2, 16, 8, 8, device=DEVICE)
    out, _ = routed_block(x, torch.tensor([0.0, 1.0], device=DEVICE), block)
    static, _ = routed_block(x, None, block)
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], static[1])


def test_an_unused_mean_has_no_gradient() -> None:
    torch.manual_seed(0)
    block = _block(16, torch.contiguous_format)
    x = torch.randn(2, 16, 8, 8, device=DEVICE).requires_grad_()
    run = torch.rand(2, device=DEVICE).requires_grad_()
    expected = _results(plain_routed_block, x, run, block, pooled=False)
    got = _results(routed_block, x, run, block, pooled=False)
    assert max(_relative(got[name], expected[name]) for name in expected) < 1e-5


@pytest.mark.skipif(DEVICE.type == "cpu", reason="Triton's interpreter multiplies bfloat16 incorrectly")
@pytest.mark.parametrize(("channels", "size"), [(16, 32), (32, 16), (64, 8)])
def test_the_bfloat16_error_is_no_larger_than_the_references(channels, size) -> None:
    torch.manual_seed(0)
    block = _block(channels, torch.channels_last)
    x = torch.randn(100, channels, size, size, device=DEVICE).bfloat16()
    run = torch.rand(100, device=DEVICE).requires_grad_()
    exact = _results(plain_routed_block, x.float().requires_grad_(), run, block)
    plain = _results(plain_routed_block, x.requires_grad_(), run, block)
    fused = _results(routed_block, x, run, block)
    for name, value in exact.items():
        assert _relative(fused[name], value) <= 1.2 * _relative(plain[name], value) + 1e-3, name


def test_supported_shapes() -> None:
    assert fits(16, 32, 32)
    assert fits(64, 8, 8)
    assert not fits(16, 28, 28)  # not a power of two
    assert not fits(24, 32, 32)
    for channels, size in ((16, 32), (32, 16), (64, 8), (16, 64), (64, 16)):
        tiles = choose(channels, size, size)
        assert size % tiles.rows == 0
        assert tiles.images >= 1
