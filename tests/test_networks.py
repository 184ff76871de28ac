"""Any network from its config: timm's, torchvision's, and those of the user's own functions."""

import importlib.util
import sys
import types

import pytest
import torch
from torch import nn

from codinet import create_model
from codinet.checks import describe_misfits
from codinet.config import ModelConfig
from codinet.errors import UserError
from codinet.networks import build, input_info
from codinet.specs import allow_code, library_versions

if importlib.util.find_spec("timm") is None:
    pytest.skip("requires timm", allow_module_level=True)


@pytest.mark.parametrize(
    ("arch", "groups", "classifier", "shape"),
    [
        ("timm:test_resnet", (1, 1, 1, 1), "fc", (1, 32, 48)),
        ("timm:test_convnext", (1, 2, 4, 2), "module.head.fc", (3, 64, 64)),
        ("timm:vit_tiny_patch16_224", (12,), "module.head", (3, 32, 32)),
        ("torchvision:mobilenet_v3_small", (6,), "module.classifier.3", (1, 64, 64)),
    ],
)
def test_a_network_is_built_for_its_images_and_classes(
    arch: str, groups: tuple[int, ...], classifier: str, shape: tuple[int, int, int]
) -> None:
    config = ModelConfig(arch=arch, num_classes=7, in_channels=shape[0], image_shape=shape)
    model = build(config).eval()
    assert model.config == config
    assert model.training is False
    assert model.groups == groups
    assert sum(model.groups) == len(model.blocks)
    assert model.classifier == classifier
    output = model(torch.randn(2, *shape))
    assert output.logits_BK.shape == (2, 7)
    assert output.path_BN.shape == (2, len(model.blocks))


def test_a_static_network_has_the_same_weights_without_routers() -> None:
    static = build(ModelConfig(arch="timm:test_resnet", routed=False))
    routed = build(ModelConfig(arch="timm:test_resnet"))
    own = [name for name in routed.state_dict() if not name.startswith("routers.")]
    assert list(static.state_dict()) == own
    assert static.routers is None


def test_a_vision_transformer_is_built_for_the_size_of_the_images() -> None:
    model = build(ModelConfig(arch="timm:vit_tiny_patch16_224", image_shape=(3, 48, 32))).eval()
    assert model(torch.randn(1, 3, 48, 32)).logits_BK.shape == (1, 10)


def test_stochastic_depth_rises_to_the_rate_of_the_last_block() -> None:
    swin = create_model("torchvision:swin_t", drop_path=0.3, image_shape=(3, 32, 32))
    rates = [vars(part)["p"] for part in swin.modules() if type(part).__name__ == "StochasticDepth"]
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(0.3)
    assert rates == sorted(rates)


def test_a_network_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_net(num_classes: int, in_channels: int = 3) -> nn.Module:
        layers = [nn.Conv2d(in_channels, 4, 3, padding=1)]
        blocks = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)]
        return nn.Sequential(
            *layers, nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
        )

    module = types.ModuleType("nets_for_this_test")
    module.make_net = make_net  # type: ignore[attr-defined]
    module.broken = lambda num_classes: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nets_for_this_test", module)
    monkeypatch.setattr("codinet.specs._allowed", set())
    config = ModelConfig(arch="nets_for_this_test:make_net", blocks="1.*", num_classes=5, in_channels=1)
    with pytest.raises(UserError, match=r"may run any code"):
        build(config)
    allow_code(config.arch)
    assert len(build(config).blocks) == 3
    assert create_model(config.arch, blocks="1.1, 1.2", num_classes=5).groups == (2,)
    with pytest.raises(UserError, match=r"nets_for_this_test:broken failed: division by zero\."):
        create_model("nets_for_this_test:broken")
    with pytest.raises(UserError, match=r"nets_for_this_test:missing cannot be imported"):
        create_model("nets_for_this_test:missing")


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("timm:convnext_atti", r"timm [\d.]+ has no network 'convnext_atti'.*convnext_atto.*timm.list_models\(\)"),
        ("torchvision:resnet49", r"torchvision [\d.+a-z]+ has no network 'resnet49'.*torchvision.models.list_models"),
        ("torchvision:alexnet", r"torchvision:alexnet cannot be routed: "),
    ],
)
def test_networks_that_cannot_be_built(arch: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(ModelConfig(arch=arch))


def test_flags_of_library_networks_are_not_for_our_own() -> None:
    with pytest.raises(UserError, match=r"resnet20 is one of codinet's own networks"):
        create_model("resnet20", drop_path=0.1)
    with pytest.raises(UserError, match=r"torchvision:resnet18 has no stochastic depth; leave --drop-path out"):
        create_model("torchvision:resnet18", drop_path=0.1)


def test_libraries_state_how_they_prepare_images() -> None:
    info = input_info("timm:convnext_atto")
    assert info is not None
    assert (info.size, info.crop) == (224, 0.875)
    assert info.mean == pytest.approx((123.675, 116.28, 103.53))
    other = input_info("torchvision:resnet50")
    assert other is not None
    assert (other.size, other.crop) == (224, 224 / 232)
    assert input_info("resnet50") is None
    assert set(library_versions("timm:resnet18")) == {"timm"}
    assert library_versions("resnet50") == {}


def test_misfits_name_the_first_tensors_that_differ() -> None:
    ours = {"a": torch.zeros(2, 3), "b": torch.zeros(()), "c": torch.zeros(1)}
    theirs = {"a": torch.zeros(2, 4), "b": torch.zeros(()), "d": torch.zeros(1).half()}
    assert describe_misfits(ours, ours) == ""
    assert describe_misfits(theirs, ours) == (
        "a is float32 2×4 instead of float32 2×3, c is missing, and 1 more differ"
    )
