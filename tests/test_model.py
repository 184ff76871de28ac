"""Routed networks over the whole registry: Eq. 1, 2 and 7."""

import functools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codinet import CoDiNet, ModelConfig, RoutedOutput, UserError, create_model, list_models
from codinet.backbones import ARCHITECTURES, Block
from codinet.model import RoutedNetwork, routed_step, train_only
from codinet.relaxation import Decide, gumbel, hard, run_probability, straight_through
from codinet.routers import ROUTERS

quick = settings(deadline=None, derandomize=True, max_examples=20)
MODELS = [name for name in list_models() if name != "resnet101"]  # which is resnet50 with a longer third stage


def images(name: str, batch: int = 2, seed: int = 0) -> torch.Tensor:
    size = 16 if ARCHITECTURES[name].image_size == 32 else 64
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


@functools.cache
def built(name: str, router: str = "fc") -> CoDiNet:
    """A routed network in evaluation mode; shared between tests, which leave it as it is."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=7, router=router).eval()
    assert isinstance(model, CoDiNet)
    return model


def random_path(batch: int, blocks: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2, (batch, blocks), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def classify(model: RoutedNetwork, x_BCHW: torch.Tensor, **options: torch.Tensor) -> RoutedOutput:
    return model(x_BCHW, **options)


# --- Eq. 1, 2, 7 on a network small enough to work by hand


class Doubling(Block):
    """F(x) = relu(x + x), which is 2x for the positive x used here; skipping leaves x."""

    in_channels = 1

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW

    def residual(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW


class Doubler(RoutedNetwork):
    """Pixels through n doubling blocks; router k says (0, scores[k])."""

    paper_unit = 1

    def __init__(self, scores: Sequence[float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Doubling() for _ in scores)
        self.routers = ROUTERS["fc"]([1] * len(scores))
        with torch.no_grad():
            for k, score in enumerate(scores):
                self.routers.get_parameter(f"each.{k}.out.weight").zero_()
                self.routers.get_parameter(f"each.{k}.out.bias").copy_(torch.tensor([0.0, score]))

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW

    @property
    def blocks(self) -> list[Block]:
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW.flatten(1)


def test_eq1_eq2_worked_by_hand() -> None:
    """Run, skip, run: the pixel 3 is doubled twice."""
    output = classify(Doubler([1.0, -0.5, 0.0]), torch.full((2, 1, 1, 1), 3.0))
    assert output.path_BN.tolist() == [[1, 0, 1]] * 2
    assert output.logits_BK.tolist() == [[12.0]] * 2
    assert output.scores_BN2.tolist() == [[[0, 1], [0, -0.5], [0, 0]]] * 2


def test_eq7_worked_by_hand() -> None:
    """v = (¾, ½): 3·(¾·2 + ¼)·(½·2 + ½) = 3 · 1.75 · 1.5."""
    model = Doubler([math.log(3), 0.0])
    with torch.no_grad():
        output = model(torch.full((1, 1, 1, 1), 3.0), decide=run_probability)
    torch.testing.assert_close(output.path_BN, torch.tensor([[0.75, 0.5]]))
    torch.testing.assert_close(output.logits_BK, torch.tensor([[3 * 1.75 * 1.5]]))


@quick
@given(path=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6), pixel=st.floats(0, 10, width=32))
def test_eq2_eq7_each_block_mixes_by_its_decision(path: list[float], pixel: float) -> None:
    output = classify(Doubler([0.0] * len(path)), torch.full((1, 1, 1, 1), pixel), force=torch.tensor(path))
    assert output.logits_BK.item() == pytest.approx(pixel * math.prod(1 + v for v in path), rel=1e-5)
    assert output.path_BN[0].tolist() == path


@quick
@given(scores=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=8))
def test_eq1_the_path_is_the_hard_decision_of_each_router(scores: list[float]) -> None:
    output = classify(Doubler(scores), torch.ones(1, 1, 2, 2))
    assert output.path_BN[0].tolist() == [float(score >= 0) for score in scores]
    assert torch.equal(output.path_BN, hard(output.scores_BN2))


# --- the registry


@pytest.mark.parametrize("name", list_models())
def test_output_shapes(name: str) -> None:
    model = built(name) if name in MODELS else create_model(name, num_classes=7).eval()
    output = classify(model, images(name, batch=2 if name in MODELS else 1))
    batch, blocks = len(output.logits_BK), ARCHITECTURES[name].blocks
    assert output.logits_BK.shape == (batch, 7)
    assert output.scores_BN2.shape == (batch, blocks, 2)
    assert output.path_BN.shape == (batch, blocks)
    assert all(part.dtype == torch.float32 and part.isfinite().all() for part in output)


@pytest.mark.parametrize("name", MODELS)
def test_all_run_is_exactly_the_static_network(name: str) -> None:
    routed, static = built(name), create_model(name, num_classes=7, routed=False).eval()
    static.load_state_dict({key: v for key, v in routed.state_dict().items() if not key.startswith("routers.")})
    x_BCHW, ones_N = images(name), torch.ones(len(routed.blocks))
    expected = classify(static, x_BCHW)
    assert torch.equal(classify(routed, x_BCHW, force=ones_N).logits_BK, expected.logits_BK)
    assert expected.path_BN.eq(1).all()
    assert not expected.scores_BN2.any()


@pytest.mark.parametrize("name", MODELS)
def test_all_skip_is_exactly_stem_shortcuts_head(name: str) -> None:
    model, x_BCHW = built(name), images(name)
    with torch.no_grad():
        features = model.stem(x_BCHW)
        for block in model.blocks:
            features = block.shortcut(features)
        expected = model.head(features)
    assert torch.equal(classify(model, x_BCHW, force=torch.zeros(len(model.blocks))).logits_BK, expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_mixed_batch_is_its_images_one_by_one(name: str) -> None:
    model, x_BCHW = built(name), images(name, batch=3)
    path_BN = random_path(3, len(model.blocks))
    together = classify(model, x_BCHW, force=path_BN)
    assert torch.equal(together.path_BN, path_BN.float())
    for x_CHW, path_N, logits_K in zip(x_BCHW, path_BN, together.logits_BK, strict=True):
        with torch.no_grad():
            features = model.stem(x_CHW[None])
            for block, runs in zip(model.blocks, path_N.tolist(), strict=True):
                features = block(features) if runs else block.shortcut(features)
            torch.testing.assert_close(model.head(features)[0], logits_K, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_hard_is_deterministic_and_the_default(name: str) -> None:
    model, x_BCHW = built(name), images(name)
    first = classify(model, x_BCHW)
    with torch.no_grad():
        second = model(x_BCHW, decide=hard)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(first.path_BN, hard(first.scores_BN2))


# --- routing


@pytest.mark.parametrize("router", ROUTERS)
def test_images_of_one_batch_take_different_paths(router: str) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", num_classes=7, router=router).eval()
    x_BCHW = images("resnet20", batch=16) * torch.linspace(0.1, 4, 16)[:, None, None, None]
    scores_BN2 = classify(model, x_BCHW).scores_BN2
    assert model.routers is not None
    model.routers.shift(-(scores_BN2[..., 1] - scores_BN2[..., 0]).median().item())
    output = classify(model, x_BCHW)
    assert len(output.path_BN.unique(dim=0)) > 1
    forced = classify(model, x_BCHW, force=output.path_BN)
    assert all(torch.equal(a, b) for a, b in zip(output, forced, strict=True))
    alone = classify(model, x_BCHW[5:6])
    torch.testing.assert_close(alone.scores_BN2[0], output.scores_BN2[5], rtol=1e-4, atol=1e-4)


def test_routers_see_the_output_of_earlier_decisions() -> None:
    model, x_BCHW = built("resnet20"), images("resnet20")
    ones_N = torch.ones(9)
    other_N = ones_N.clone()
    other_N[4] = 0
    one, other = (classify(model, x_BCHW, force=path).scores_BN2 for path in (ones_N, other_N))
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.equal(one[:, 5:], other[:, 5:])


def test_a_forced_path_may_be_shared_or_per_image() -> None:
    model, x_BCHW = built("resnet20"), images("resnet20", batch=3)
    path_N = random_path(1, 9)[0]
    one, each = (classify(model, x_BCHW, force=path) for path in (path_N, path_N.expand(3, 9)))
    assert all(torch.equal(a, b) for a, b in zip(one, each, strict=True))
    assert torch.equal(one.path_BN, path_N.float().expand(3, 9))


@pytest.mark.parametrize("shape", [(), (1,), (8,), (10,), (2, 9), (3, 1), (3, 8), (1, 3, 9)])
def test_a_forced_path_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="must have 9 decisions, or 3×9 with one row per image"):
        classify(built("resnet20"), images("resnet20", batch=3), force=torch.ones(shape))


def test_a_static_network_can_be_forced_too() -> None:
    model = create_model("resnet20", routed=False).eval()
    output = classify(model, images("resnet20"), force=torch.zeros(9))
    assert not output.path_BN.any()
    assert not torch.equal(output.logits_BK, classify(model, images("resnet20")).logits_BK)


@pytest.mark.parametrize("decide", [gumbel, straight_through])
def test_gradients_reach_every_router_through_relaxed_decisions(decide: Decide) -> None:
    for router in ROUTERS:
        torch.manual_seed(0)
        model = create_model("resnet20", router=router).train()
        model(images("resnet20", batch=8), decide=decide).logits_BK.square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            if "router" in name and "out." in name:
                assert parameter.grad.abs().sum() > 0, name


def test_gradients_never_reach_routers_through_hard_decisions() -> None:
    model = create_model("resnet20").train()
    output = model(images("resnet20", batch=4))
    assert not output.path_BN.requires_grad
    output.logits_BK.sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == ("router" in name), name


@pytest.mark.parametrize("routers", [False, True])
@pytest.mark.parametrize("backbone", [False, True])
def test_train_only_selects_parameters(routers: bool, backbone: bool) -> None:
    model = create_model("resnet20")
    train_only(model, routers=routers, backbone=backbone)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (routers if "router" in name else backbone)


def test_step_may_be_replaced() -> None:
    model, x_BCHW = built("resnet20"), images("resnet20")
    seen = []

    def watched(block: Block, *args: Any) -> Any:
        seen.append(block)
        return routed_step(block, *args)

    with torch.no_grad():
        output = model(x_BCHW, step=watched)
    assert seen == list(model.blocks)
    assert torch.equal(output.logits_BK, classify(model, x_BCHW).logits_BK)


# --- inputs


@quick
@given(height=st.integers(5, 40), width=st.integers(5, 40), channels=st.sampled_from([1, 3, 4]))
def test_any_image_size_and_channel_count_works(height: int, width: int, channels: int) -> None:
    model = create_model("resnet20", in_channels=channels).eval()
    output = classify(model, torch.randn(2, channels, height, width), force=random_path(2, 9))
    assert output.logits_BK.shape == (2, 10)
    assert output.logits_BK.isfinite().all()


def test_odd_sizes_and_one_channel_work_for_imagenet_nets() -> None:
    model = create_model("resnet50", in_channels=1, num_classes=3).eval()
    for path in (torch.ones(16), torch.zeros(16)):
        assert classify(model, torch.randn(1, 1, 37, 51), force=path).logits_BK.shape == (1, 3)


# --- building and storing


def test_list_models_lists_what_create_model_accepts() -> None:
    assert list_models() == [f"resnet{name}" for name in (14, 20, 26, 32, 44, 56, 62, 74, 110, "32x2", "32x4", 50, 101)]


@pytest.mark.parametrize(
    ("arch", "router", "meant"),
    [("resnet23", "fc", "perhaps you meant resnet"), ("resnet20", "rn", "perhaps you meant rnn")],
)
def test_an_unknown_name_ends_in_a_hint(arch: str, router: str, meant: str) -> None:
    with pytest.raises(UserError, match=meant):
        create_model(arch, router=router)


def test_an_unknown_name_without_a_hint_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"Unknown architecture 'vit'; choose from resnet14, .*resnet101"):
        create_model("vit")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"num_classes": 0}, "num_classes must be a whole number from 1 to 1000000, got 0"),
        ({"num_classes": 10**5000}, "num_classes must be a whole number .*, got a value of type int"),
        ({"num_classes": True}, "num_classes must be a whole number .*, got True"),
        ({"in_channels": 0}, "in_channels must be a whole number from 1 to 65536, got 0"),
        ({"in_channels": 3.0}, "in_channels must be a whole number"),
        ({"routed": "yes"}, "routed must be True or False, got 'yes'"),
        ({"stride_on": "zz"}, "Unknown stride_on 'zz'; choose from 3x3, 1x1"),
        ({"stride_on": None}, "The stride_on must be one of 3x3, 1x1, got None"),
        ({"router": 7}, "The router must be one of fc, cnn, rnn, narrow, policy, hash, bias, halting, spatial, got 7"),
        ({"pretrained": 5}, "pretrained must be a name of the zoo"),
    ],
)
@pytest.mark.parametrize("arch", ["resnet20", "resnet50"])
def test_wrong_arguments_of_a_network_are_refused(arch: str, words: dict[str, Any], sentence: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=sentence):
        create_model(arch, **words)


@pytest.mark.parametrize("arch", [None, 20, ["resnet20"], "", "resnet20\n"])
def test_unknown_architectures_are_refused(arch: Any) -> None:
    with pytest.raises(UserError, match=r"choose from resnet14|must be a name as text"):
        create_model(arch)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda x: x[0], "must be a batch, B×C×H×W, got a tensor of 3×16×16"),
        (lambda x: x[:0], "must be a batch"),
        (lambda x: x[:, :, :0], "must be a batch"),
        (lambda x: x.tolist(), "must be a batch"),
        (lambda x: x.byte(), "must be normalised floats, got a tensor of 2×3×16×16 .uint8 on cpu."),
        (lambda x: x[:, :1], "must have 3 channels, got a tensor of 2×1×16×16"),
        (lambda x: x.double(), r"images in torch.float64 and a network in torch.float32; convert one"),
        (lambda x: x.to("meta"), "images on meta and a network on cpu; move one"),
    ],
)
def test_invalid_images_are_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        classify(built("resnet20"), wrong(images("resnet20")))


def test_an_empty_batch_is_refused_and_leaves_the_statistics() -> None:
    model = create_model("resnet20").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match="must be a batch"):
        model(images("resnet20")[:0])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_images_of_another_dtype_are_fine_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert classify(built("resnet20"), images("resnet20").bfloat16()).logits_BK.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5, 1.5, 7])
def test_a_forced_decision_is_from_0_to_1(value: float) -> None:
    path = torch.ones(9)
    path[4] = value
    with pytest.raises(UserError, match=r"decisions of a forced path must be from 0 \(skip\) to 1 \(run\)"):
        classify(built("resnet20"), images("resnet20"), force=path)


@pytest.mark.parametrize(
    "decide", [None, lambda scores: scores, lambda scores: 1, lambda scores: torch.ones(7)], ids=range(4)
)
def test_decide_must_give_a_decision_per_image(decide: Any) -> None:
    with torch.no_grad(), pytest.raises(UserError, match="decide must"):
        built("resnet20")(images("resnet20"), decide=decide)


def test_nan_in_images_is_refused_in_evaluation() -> None:
    x_BCHW = images("resnet20")
    x_BCHW[1, 0, 3, 3] = math.nan
    with pytest.raises(UserError, match="Router scores must be finite numbers, got NaN; check the images"):
        classify(built("resnet20"), x_BCHW)


@pytest.mark.parametrize("shape", [(3, 8), (1, 8, 8), "3x8", (3, 8, 0)])
def test_an_image_shape_that_does_not_fit_is_refused(shape: Any) -> None:
    with pytest.raises(UserError, match="image_shape"):
        CoDiNet(ModelConfig("resnet14", image_shape=shape))


def test_creating_a_network_does_not_import_huggingface_hub() -> None:
    code = "import sys, codinet; codinet.create_model('resnet14'); sys.exit('huggingface_hub' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
