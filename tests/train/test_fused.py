"""The whole network through fused kernels against the same network through plain torch."""

import pytest
import torch

pytest.importorskip("triton")

from codinet.backbones import ARCHITECTURES, Architecture, BasicBlock, Bottleneck
from codinet.create import create_model
from codinet.kernels.block import fused_block
from codinet.model import routed_step, without_statistics
from codinet.relaxation import hard
from codinet.train import fused

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_it_takes_bottlenecks_and_narrow_blocks_that_keep_their_shape_in_half_precision() -> None:
    model = create_model("resnet20")
    x = torch.zeros(2, 16, 32, 32, dtype=torch.bfloat16)
    first, grows = model.blocks[0], model.blocks[3]
    assert fused.supports(first, x, static=True)
    assert not fused.supports(grows, x, static=False)
    assert not fused.supports(first, x.float(), static=False)
    assert not fused.supports(first.eval(), x, static=False)
    bottleneck, x = Bottleneck(64, 64, 2, "3x3"), torch.zeros(2, 64, 9, 9, dtype=torch.bfloat16)
    assert fused.supports(bottleneck, x, static=False)
    assert not fused.supports(bottleneck, x, static=True)
    assert not fused.supports(bottleneck, x.float(), static=False)
    assert not fused.supports(bottleneck.eval(), x, static=False)
    assert not fused.supports(Bottleneck(64, 10, 1, "3x3"), x, static=False)  # 40 channels
    bottleneck.train().bn3 = torch.nn.SyncBatchNorm(256)  # type: ignore[assignment]
    assert not fused.supports(bottleneck, x, static=False)


@pytest.mark.parametrize(
    ("arch", "router", "routed", "rest"),
    [
        ("resnet14", "fc", True, 3),  # the two that grow, and the last group, whose maps are too small
        ("resnet14", "cnn", True, 3),
        ("resnet14", "narrow", True, 3),
        ("resnet14", "rnn", True, 3),
        ("resnet14", "halting", True, 3),
        ("resnet14", "spatial", True, 3),
        ("resnet14", "fc", False, 3),
        ("bottlenecks", "fc", True, 0),
        ("bottlenecks", "rnn", True, 0),
        ("bottlenecks", "fc", False, 4),
    ],
)
def test_a_network_through_fused_blocks_gives_the_same_output_and_gradients(
    monkeypatch, arch, router, routed, rest
) -> None:
    """In float32, which training leaves to the framework: here it is what can be compared closely."""
    monkeypatch.setitem(ARCHITECTURES, "bottlenecks", Architecture(Bottleneck, (2, 2), (16, 32), 64, 1))
    if DEVICE.type == "cpu":  # the interpreter takes as long for a small program as for a large one
        monkeypatch.setattr(fused_block, "ADDED", 256)
    torch.manual_seed(0)
    usual = fused.supports
    monkeypatch.setattr(fused, "supports", lambda block, x, **more: usual(block, x.bfloat16(), **more))
    plain = create_model(arch, router=router, routed=routed).to(DEVICE).train()
    twin = create_model(arch, router=router, routed=routed).to(DEVICE).train()
    twin.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, *((16, 16) if arch == "resnet14" else (36, 28)), device=DEVICE)
    taken = []

    def counted(*args):
        taken.append(args)
        return routed_step(*args)

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # else the plain one rounds to TF32 on a GPU
        outputs = [plain(images, decide=hard), twin(images, decide=hard, step=fused.FusedStep(counted))]
        assert len(taken) == rest
        for output in outputs:
            (output.logits_BK.sum() + output.scores_BN2.pow(2).sum()).backward()
    for expected, got in zip(*outputs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for (name, expected), got in zip(plain.named_parameters(), twin.parameters(), strict=True):
        if expected.grad is not None and expected.grad.norm() > 1e-5:
            found = got.grad
            assert found is not None
            # Not closer, because a ReLU at its kink may tip.
            assert ((found - expected.grad).norm() / expected.grad.norm()).item() < 1e-2, name
    for (name, expected), got in zip(plain.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("block", [BasicBlock(16, 16, 1, "3x3"), Bottleneck(64, 16, 1, "3x3")])
def test_fused_blocks_can_leave_the_statistics(monkeypatch, block) -> None:
    """As for the hard decisions that BlockDrop compares with."""
    usual = fused.supports
    monkeypatch.setattr(fused, "supports", lambda block, x, **more: usual(block, x.bfloat16(), **more))
    block = block.to(DEVICE).train()
    x_BCHW = 3 + torch.randn(2, 16 if isinstance(block, BasicBlock) else 64, 16, 16, device=DEVICE)
    step, decisions_B = fused.FusedStep(pytest.fail), torch.ones(2, device=DEVICE)
    arguments = block, None, x_BCHW, (), hard, decisions_B
    before = {name: buffer.clone() for name, buffer in block.named_buffers()}
    with torch.no_grad(), without_statistics(block):
        alone_BCHW, *_ = step(*arguments)
    for name, buffer in block.named_buffers():
        assert torch.equal(buffer, before[name]), name
    trained_BCHW, *_ = step(*arguments)
    assert torch.equal(alone_BCHW, trained_BCHW)
    assert not any(torch.equal(buffer, before[name]) for name, buffer in block.named_buffers())
