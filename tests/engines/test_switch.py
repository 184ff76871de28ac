"""The switch engine. Without a GPU the host decides, and all else is the same."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from codinet.backbones import Bottleneck
from codinet.bench.run_rate import settle, with_run_rate
from codinet.create import create_model
from codinet.cuda_switch import SIZES, Decisions, why_no_switch
from codinet.engines import switch
from codinet.engines.folded_network import fold
from codinet.engines.folding import Conv, FoldedBottleneck
from codinet.engines.partial_batch import BlockedStem, BottleneckRows, CompiledRows, PooledHead
from codinet.engines.reference import MaskedEngine
from codinet.engines.switch import HostSwitch, SwitchEngine, why_not
from codinet.errors import UserError
from codinet.kernels import available
from codinet.kernels.rows import Listed
from codinet.methods.router_kinds import build_routers
from codinet.model import RoutedNetwork

CPU = torch.device("cpu")


@pytest.mark.parametrize("batch", [1, SIZES, SIZES + 1, 100, 257, 1024])
def test_sizes_cover_the_batch(batch: int) -> None:
    decisions = Decisions(batch, 3, CPU)
    assert decisions.sizes[-1] >= batch > decisions.sizes[-1] - decisions.step
    assert len(decisions.sizes) <= SIZES
    assert decisions.spare == (decisions.step > 1)


def test_the_list_has_the_images_that_run_and_is_filled_up_with_the_spare_row() -> None:
    decisions, seen = Decisions(2 * SIZES, 2, CPU), []
    parts_PB2 = torch.zeros(2, 2 * SIZES, 2)
    parts_PB2[0, [3, 7, 8], 1] = 1.0
    parts_PB2[1, 7, 1] = -2.0  # the sum of the parts counts: image 7 is skipped
    parts_PB2[0, :, 0] = 0.5
    decisions.forced_BN[5, 1] = 1
    HostSwitch().switch(1, parts_PB2, decisions, lambda listed: seen.append(listed.index_R.tolist()))
    assert seen == [[3, 5, 8, decisions.batch]]
    assert decisions.path_BN.nonzero().tolist() == [[3, 1], [5, 1], [8, 1]]
    assert decisions.scores_BN2[7, 1].tolist() == [0.5, -1.0]


def test_a_block_that_no_image_runs_is_not_called() -> None:
    decisions = Decisions(4, 1, CPU)
    decisions.forced_BN.fill_(0)
    HostSwitch().switch(0, torch.ones(1, 4, 2), decisions, lambda _index: pytest.fail("called"))


def test_a_batch_larger_than_the_number_of_sizes(network: Callable[..., RoutedNetwork]) -> None:
    model, images = network(), torch.randn(2 * SIZES + 3, 3, 32, 32)
    engine, reference = SwitchEngine(model), MaskedEngine(model)
    path = (torch.rand(len(images), len(model.blocks)) < 0.5).float()
    for force in (path, None, path):
        output, expected = engine(images, force=force), reference(images, force=force)
        assert torch.equal(output.path_BN, expected.path_BN)
        torch.testing.assert_close(output.logits_BK, expected.logits_BK, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_blocked_stem_is_the_7x7_convolution(channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    conv = Conv(
        torch.randn(8, channels, 7, 7, generator=generator), torch.randn(8, generator=generator), (2, 2), (3, 3)
    )
    images = torch.randn(2, channels, 12, 18, generator=generator)
    assert BlockedStem.supports(conv, images)
    assert not BlockedStem.supports(conv, images[..., :-1])
    stem = BlockedStem(conv, nn.MaxPool2d(3, 2, 1), images, 3)
    stem.fill(images)
    assert torch.equal(stem.images(2), images)
    torch.testing.assert_close(stem()[0][:2], nn.MaxPool2d(3, 2, 1)(conv(images).relu()), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not available(CPU), reason="needs Triton")
@pytest.mark.parametrize("number", [0, 1, 3])  # a shortcut by projection, by identity, and with stride 2
def test_a_bottleneck_of_listed_images(number: int) -> None:
    block = fold(create_model("resnet50")).blocks[number]
    assert isinstance(block, FoldedBottleneck)
    channels = block.convs[0].weight.shape[1]
    x_BCHW = torch.rand(4, channels, 4, 4).contiguous(memory_format=torch.channels_last)
    assert BottleneckRows.supports(block, x_BCHW)
    found, listed = [], Listed(torch.tensor([0, 2]))
    for rows in (BottleneckRows(block), CompiledRows(block, lambda function: function)):
        y_BCHW = (x_BCHW if rows.keeps else rows.skip(x_BCHW)[0]).clone(memory_format=torch.channels_last)
        pooled_BC = torch.zeros(y_BCHW.shape[:2])
        rows.run(x_BCHW, y_BCHW, pooled_BC, listed)
        found.append((y_BCHW, pooled_BC))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_what_it_does_not_support_is_one_sentence() -> None:
    assert why_no_switch(CPU) == "Switches in CUDA graphs need a CUDA device."
    with pytest.raises(UserError, match="needs a network with routers"):
        SwitchEngine(create_model("resnet14", routed=False))
    positions = create_model("resnet14", router="spatial")
    assert "about positions" in str(why_not(positions, CPU))
    with pytest.raises(UserError, match="about positions"):
        SwitchEngine(positions)


class Bottlenecks(RoutedNetwork):
    """Four narrow bottlenecks: with a projection, without one, with stride 2, without one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 2, 1)
        shapes = (32, 16, 1), (64, 16, 1), (64, 32, 2), (128, 32, 1)
        self.all_blocks = nn.ModuleList(Bottleneck(*shape, "3x3") for shape in shapes)
        self.routers = build_routers("fc", [shape[0] for shape in shapes], 3)
        self.last = nn.Linear(128, 7)

    stem = property(lambda self: self.first)
    blocks = property(lambda self: self.all_blocks)

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.last(x_BCHW.mean(dim=(2, 3)))


@pytest.mark.skipif(not available(CPU), reason="needs Triton")
@pytest.mark.parametrize("batch", [1, 3])
def test_lists_with_a_number(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for small batches: kernels decide, and programs for other images than the listed ones end."""
    monkeypatch.setattr(switch, "_counts", lambda _images: True)
    torch.manual_seed(0)
    images = torch.randn(3, 3, 18, 18)
    model = with_run_rate(settle(Bottlenecks(), images), images, 0.5)
    images = images[:batch]
    engine, reference = SwitchEngine(model), MaskedEngine(model)
    path = torch.tensor([[1.0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 1]])[:batch]
    for force in (None, path, None):
        output, expected = engine(images, force=force), reference(images, force=force)
        assert torch.equal(output.path_BN, expected.path_BN)
        torch.testing.assert_close(output.logits_BK, expected.logits_BK, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(output.scores_BN2, expected.scores_BN2, atol=1e-4, rtol=1e-4)
    assert engine.ready[tuple(images.shape)].listing is not None


@pytest.mark.skipif(not available(CPU), reason="needs Triton")
def test_a_head_of_pooled_features() -> None:
    from codinet.kernels.rows.conv_rows import zero_counters

    layer, pooled_BC = nn.Linear(128, 10), torch.randn(5, 128)
    counters = zero_counters(pooled_BC)
    logits_BK = PooledHead(layer, counters)(pooled_BC, pooled_BC, 3)
    torch.testing.assert_close(logits_BK, layer(pooled_BC[:3]), atol=1e-4, rtol=1e-4)
    assert not counters.any()
