"""Residual blocks, their shortcuts, and torchvision's parameter names."""

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from codinet import UserError, block_costs, create_model
from codinet.backbones import ARCHITECTURES, Architecture, BasicBlock, Block, Bottleneck, StrideOn

quick = settings(deadline=None, derandomize=True, max_examples=15)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def torchvision_resnet50_shapes(num_classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's resnet50 state dict, by its rule."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (out, into, kernel, kernel)
        shapes.update({f"{norm}.{part}": (out,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    convolution("conv1", "bn1", 64, 3, 7)
    channels = 64
    for group, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for position in range(count):
            block = f"layer{group}.{position}"
            convolution(f"{block}.conv1", f"{block}.bn1", width, channels, 1)
            convolution(f"{block}.conv2", f"{block}.bn2", width, width, 3)
            convolution(f"{block}.conv3", f"{block}.bn3", 4 * width, width, 1)
            if position == 0:
                convolution(f"{block}.downsample.0", f"{block}.downsample.1", 4 * width, channels, 1)
            channels = 4 * width
    return {**shapes, "fc.weight": (num_classes, channels), "fc.bias": (num_classes,)}


# --- blocks


def test_the_parameter_free_shortcut_worked_by_hand() -> None:
    """Every second pixel, and a channel of zeros on either side."""
    block = BasicBlock(1, 3, stride=2, stride_on="3x3")
    x_BCHW = torch.arange(16.0).view(1, 1, 4, 4)
    skipped = block.shortcut(x_BCHW)
    assert skipped[0, 1].tolist() == [[0, 2], [8, 10]]
    assert not skipped[0, [0, 2]].any()


def test_a_block_that_keeps_the_shape_is_skipped_by_doing_nothing() -> None:
    x_BCHW = images(2, 16, 4, 4)
    assert BasicBlock(16, 16, stride=1, stride_on="3x3").shortcut(x_BCHW) is x_BCHW
    assert Bottleneck(16, 4, stride=1, stride_on="3x3").shortcut(x_BCHW) is x_BCHW


def test_a_bottleneck_projects_where_the_shape_changes() -> None:
    block = Bottleneck(8, 4, stride=2, stride_on="3x3").eval()
    x_BCHW = images(2, 8, 6, 6)
    expected = F.conv2d(x_BCHW, block.get_parameter("downsample.0.weight"), stride=2) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(block.shortcut(x_BCHW), expected)


def test_a_block_is_the_relu_of_residual_plus_shortcut() -> None:
    """With one-pixel kernels of 2 and then 3, BatchNorm at rest: F(x) = relu(3·relu(2x) + x)."""
    block = BasicBlock(1, 1, stride=1, stride_on="3x3").eval()
    with torch.no_grad():
        for convolution, factor in ((block.conv1, 2.0), (block.conv2, 3.0)):
            convolution.weight.zero_()
            convolution.weight[0, 0, 1, 1] = factor
    x_BCHW = torch.tensor([[[[1.0, -1.0], [0.5, 0.0]]]])
    torch.testing.assert_close(block(x_BCHW), torch.tensor([[[[7.0, 0.0], [3.5, 0.0]]]]), atol=1e-4, rtol=0)


@quick
@given(height=st.integers(1, 9), width=st.integers(1, 9), stride=st.integers(1, 2), kind=st.integers(0, 2))
def test_shortcut_and_block_have_one_shape_at_any_size(height: int, width: int, stride: int, kind: int) -> None:
    on: StrideOn = "1x1" if kind == 2 else "3x3"
    block: Block = BasicBlock(4, 8, stride, on) if kind == 0 else Bottleneck(4, 3, stride, on)
    x_BCHW = images(2, 4, height, width)
    shortcut = block.eval().shortcut(x_BCHW)
    assert block(x_BCHW).shape == shortcut.shape
    assert torch.equal(block.run(x_BCHW, shortcut), block(x_BCHW))


@pytest.mark.parametrize(("stride_on", "strides"), [("3x3", (1, 2)), ("1x1", (2, 1))])
def test_a_bottleneck_strides_where_it_is_told(stride_on: StrideOn, strides: tuple[int, int]) -> None:
    block = Bottleneck(8, 4, stride=2, stride_on=stride_on)
    assert (block.conv1.stride[0], block.conv2.stride[0]) == strides


# --- networks


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_follow_the_published_counts_widths_and_strides(name: str) -> None:
    shape = ARCHITECTURES[name]
    with torch.device("meta"):
        model = create_model(name, routed=False)
        x = model.stem(torch.empty(1, 3, shape.image_size, shape.image_size))
        size, position = x.shape[-1], 0
        for group, (count, width) in enumerate(zip(shape.counts, shape.widths, strict=True)):
            for _ in range(count):
                x = model.blocks[position](x)
                position += 1
                assert x.shape[1:] == (width * shape.block.expansion, size >> group, size >> group)
    assert position == len(model.blocks) == shape.blocks


@pytest.mark.parametrize("depth", [14, 20, 26, 32, 44, 56, 62, 74, 110])
def test_the_depth_in_a_small_nets_name_counts_its_layers(depth: int) -> None:
    with torch.device("meta"):
        model = create_model(f"resnet{depth}", routed=False)
    assert sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in model.modules()) == depth


@pytest.mark.parametrize(
    ("name", "macs"), [("resnet14", 26_395_264), ("resnet26", 54_706_816), ("resnet62", 139_641_472)]
)
def test_six_more_layers_are_one_more_block_per_group(name: str, macs: int) -> None:
    """From ResNet-32 on: 2 · 9 · 16² · 32² MACs per block in each of the three groups."""
    steps = ARCHITECTURES[name].counts[0] - 5
    assert macs == 68_862_592 + steps * 3 * 2 * 9 * 16**2 * 32**2
    with torch.device("meta"):
        assert block_costs(create_model(name, routed=False), (3, 32, 32)).static_macs == macs


@pytest.mark.parametrize("widening", [2, 4])
def test_the_cost_of_blocks_grows_with_the_square_of_the_width(widening: int) -> None:
    with torch.device("meta"):
        narrow, wide = (
            block_costs(create_model(name, routed=False), (3, 32, 32)) for name in ("resnet32", f"resnet32x{widening}")
        )
    assert wide.run_N == tuple(widening**2 * macs for macs in narrow.run_N)
    assert wide.fixed == widening * narrow.fixed  # the first convolution and the classifier


def test_small_nets_have_no_projection_parameters() -> None:
    assert not any("downsample" in name for name in create_model("resnet20").state_dict())


def test_resnet50_has_torchvisions_names_and_shapes() -> None:
    with torch.device("meta"):
        model = create_model("resnet50", num_classes=1000, routed=False)
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == torchvision_resnet50_shapes()


@pytest.mark.parametrize("library", ["torchvision.models"], indirect=True)
def test_resnet50_agrees_with_the_installed_torchvision(library: ModuleType) -> None:
    torch.manual_seed(0)
    theirs, ours = library.resnet50().eval(), create_model("resnet50", num_classes=1000, routed=False).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x_BCHW = images(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x_BCHW).logits_BK, theirs(x_BCHW), rtol=1e-4, atol=1e-4)


def test_a_torchvision_state_dict_loads_strictly_into_a_static_resnet50() -> None:
    shapes = torchvision_resnet50_shapes(num_classes=5)
    state = {name: torch.full(shape, 0.25 * (k % 4)) for k, (name, shape) in enumerate(shapes.items())}
    with torch.device("meta"):
        model = create_model("resnet50", num_classes=5, routed=False)
    model.load_state_dict(state, strict=True, assign=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_torchvision_state_dict_misses_only_routers_in_a_routed_resnet50() -> None:
    with torch.device("meta"):
        model = create_model("resnet50", num_classes=1000)
    missing, unexpected = model.load_state_dict(
        {name: torch.empty(shape, device="meta") for name, shape in torchvision_resnet50_shapes().items()},
        strict=False,
    )
    assert unexpected == []
    assert missing
    assert all(name.startswith("routers.") for name in missing)


def test_a_networks_weights_follow_the_seed() -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(create_model("resnet20").state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["conv1.weight"], states[2]["conv1.weight"])


# --- what they refuse


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((0, 4, 1, "3x3"), "in_channels must be a whole number from 1"),
        ((4, 4.0, 1, "3x3"), "width must be a whole number from 1"),
        ((4, 4, 0, "3x3"), "stride must be a whole number from 1"),
        ((4, 4, 1, "zz"), "Unknown stride_on 'zz'; choose from 3x3, 1x1"),
        ((4, 4, 1, None), "The stride_on must be one of 3x3, 1x1, got None"),
    ],
)
def test_a_block_of_impossible_sizes_is_refused(kind: Any, sizes: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        kind(*sizes)


def test_a_basic_block_does_not_lose_channels() -> None:
    with pytest.raises(UserError, match=r"width must be at least in_channels \(8\), got 4"):
        BasicBlock(8, 4, 1, "3x3")


@pytest.mark.parametrize(("counts", "widths"), [((1, 1), (4,)), ((), ()), ((0,), (4,)), ((1,), (0,))])
def test_every_group_of_an_architecture_has_blocks_and_a_width(counts: Any, widths: Any) -> None:
    with pytest.raises(UserError, match="group"):
        Architecture(BasicBlock, counts, widths, image_size=32, paper_unit=1)
