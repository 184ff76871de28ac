"""The switch engine. Without a GPU the host decides, and all else is the same."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from codinet.create import create_model
from codinet.cuda_switch import SIZES, Decisions, why_no_switch
from codinet.engines.folding import Conv, FoldedBottleneck, fold
from codinet.engines.reference import MaskedEngine
from codinet.engines.switch import BlockedStem, BottleneckRows, CompiledRows, HostSwitch, SwitchEngine, why_not
from codinet.errors import UserError
from codinet.kernels import available
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
    HostSwitch().switch(1, parts_PB2, decisions, lambda index_R: seen.append(index_R.tolist()))
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
    torch.testing.assert_close(stem()[:2], nn.MaxPool2d(3, 2, 1)(conv(images).relu()), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not available(CPU), reason="needs Triton")
@pytest.mark.parametrize("number", [0, 1, 3])  # a shortcut by projection, by identity, and with stride 2
def test_a_bottleneck_of_listed_images(number: int) -> None:
    block = fold(create_model("resnet50")).blocks[number]
    assert isinstance(block, FoldedBottleneck)
    channels = block.convs[0].weight.shape[1]
    x_BCHW = torch.rand(4, channels, 4, 4).contiguous(memory_format=torch.channels_last)
    assert BottleneckRows.supports(block, x_BCHW)
    found, index_R = [], torch.tensor([0, 2])
    for rows in (BottleneckRows(block), CompiledRows(block, lambda function: function)):
        y_BCHW = rows.skip(x_BCHW).clone(memory_format=torch.channels_last)
        pooled_BC = torch.zeros(y_BCHW.shape[:2])
        rows.run(x_BCHW, y_BCHW, pooled_BC, index_R)
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
