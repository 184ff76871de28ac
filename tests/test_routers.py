"""Routers: Eq. 3, 4 and the appendix's two others."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet import UserError, create_model
from codinet.relaxation import hard
from codinet.routers import ROUTERS, CNNRouter, FCRouter, RNNRouters, Routers, SeparateRouters, fc_routers, pool

quick = settings(deadline=None, derandomize=True, max_examples=20)
WIDTHS = (4, 4, 6)


def build(kind: str, seed: int = 0) -> Routers:
    torch.manual_seed(seed)
    return ROUTERS[kind](WIDTHS)


def features(k: int, seed: int = 0, batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, WIDTHS[k], 5, 7, generator=torch.Generator().manual_seed(seed))


def score(router: Routers, k: int, x_BCHW: torch.Tensor) -> torch.Tensor:
    """What the router of block k says, were it the first to be asked."""
    return router.router(k)(x_BCHW, router.start(x_BCHW))[0]


def hand_set_router() -> FCRouter:
    """W₁ = [[1, −1], [0, 2]], b₁ = (0, −1); W₂ = [[1, 0], [3, 1]], b₂ = (0.5, −2)."""
    router = FCRouter(2)
    router.load_state_dict(
        {
            "hidden.weight": torch.tensor([[1.0, -1.0], [0.0, 2.0]]),
            "hidden.bias": torch.tensor([0.0, -1.0]),
            "out.weight": torch.tensor([[1.0, 0.0], [3.0, 1.0]]),
            "out.bias": torch.tensor([0.5, -2.0]),
        }
    )
    return router


def test_eq3_eq4_worked_by_hand() -> None:
    """Channel means z = (3, 1): W₁z + b₁ = (2, 1), σ keeps it, W₂· + b₂ = (2.5, 5)."""
    x_BCHW = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[0.0, 4.0], [-1.0, 1.0]]]])
    scores_B2, state = hand_set_router()(x_BCHW, ())
    assert scores_B2.tolist() == [[2.5, 5.0]]
    assert state == ()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_eq3_gradients_lie_in_memory_as_features_do(layout: torch.memory_format) -> None:
    features = torch.randn(3, 4, 5, 6).contiguous(memory_format=layout).requires_grad_()
    (gradient,) = torch.autograd.grad(pool(features).square().sum(), features)
    (expected,) = torch.autograd.grad(features.mean(dim=(2, 3)).square().sum(), features)
    assert torch.equal(pool(features), features.mean(dim=(2, 3)))
    assert torch.equal(gradient, expected)
    assert gradient.is_contiguous(memory_format=layout)


def test_eq4_sigma_is_a_relu() -> None:
    """z = (1, 3): W₁z + b₁ = (−2, 5), σ makes it (0, 5), W₂· + b₂ = (0.5, 3)."""
    x_BCHW = torch.tensor([1.0, 3.0])[None, :, None, None].expand(1, 2, 4, 4)
    scores_B2, _ = hand_set_router()(x_BCHW, ())
    assert scores_B2.tolist() == [[0.5, 3.0]]


@quick
@given(seed=st.integers(0, 10_000))
def test_eq3_pooling_forgets_where_things_are(seed: int) -> None:
    router, x_BCHW = build("fc", seed), features(0, seed)
    shuffled = x_BCHW.flatten(2)[:, :, torch.randperm(35)].view_as(x_BCHW)
    torch.testing.assert_close(score(router, 0, x_BCHW), score(router, 0, shuffled))


@quick
@given(seed=st.integers(0, 10_000), k=st.integers(0, 2))
def test_eq4_is_two_linear_maps_with_a_relu_between(seed: int, k: int) -> None:
    router, x_BCHW = build("fc", seed), features(k, seed)
    p = {name: value.double() for name, value in router.state_dict().items()}
    z_BC = x_BCHW.double().sum(dim=(2, 3)) / 35
    hidden_BC = (z_BC @ p[f"each.{k}.hidden.weight"].T + p[f"each.{k}.hidden.bias"]).clamp(min=0)
    expected_B2 = hidden_BC @ p[f"each.{k}.out.weight"].T + p[f"each.{k}.out.bias"]
    torch.testing.assert_close(score(router, k, x_BCHW).double(), expected_B2, atol=1e-5, rtol=1e-5)


def test_cnn_router_worked_by_hand() -> None:
    """A kernel of ones on 3×3 ones, stride 2: 4 in each corner; bias −3; σ; mean 1; weights (0, 2), bias 1."""
    router = CNNRouter(1)
    ones = torch.ones(1, 1, 3, 3)
    router.conv.load_state_dict({"weight": ones, "bias": torch.tensor([-3.0])})
    router.out.load_state_dict({"weight": torch.tensor([[0.0], [2.0]]), "bias": torch.ones(2)})
    assert router(ones, ())[0].tolist() == [[1.0, 3.0]]


@pytest.mark.parametrize("kind", ROUTERS)
def test_routers_start_open(kind: str) -> None:
    """The run score starts one above the skip score: with no features to speak of, every block runs."""
    router = build(kind)
    state = router.start(torch.zeros(2, 3, 8, 8))
    for k in range(len(WIDTHS)):
        scores_B2, state = router.router(k)(torch.zeros_like(features(k, batch=2)), state)
        assert hard(scores_B2).tolist() == [1, 1]
    for name, value in router.named_parameters():
        if name.endswith("out.bias"):
            assert value.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ROUTERS)
def test_shift_adds_to_every_run_score_and_to_no_skip_score(kind: str) -> None:
    before, after = build(kind), build(kind)
    after.shift(-0.75)
    for k in range(len(WIDTHS)):
        x_BCHW = features(k)
        moved_B2 = score(after, k, x_BCHW) - score(before, k, x_BCHW)
        torch.testing.assert_close(moved_B2, torch.tensor([0.0, -0.75]).expand(3, 2))


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_score_depends_on_its_own_image_only(kind: str) -> None:
    router = build(kind)
    x_BCHW = features(0)
    alone = [score(router, 0, x[None]) for x in x_BCHW]
    torch.testing.assert_close(score(router, 0, x_BCHW), torch.cat(alone))


@pytest.mark.parametrize("kind", ROUTERS)
def test_every_score_can_train_its_router(kind: str) -> None:
    router = build(kind)
    state = router.start(features(0))
    total = torch.zeros(())
    for k in range(len(WIDTHS)):
        scores_B2, state = router.router(k)(features(k), state)
        total = total + scores_B2.square().sum()
    total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in router.parameters())


# --- widths


def test_fc_routers_are_as_wide_as_the_block_input_also_between_groups() -> None:
    model = create_model("resnet20")
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for k, width in enumerate([16, 16, 16, 16, 32, 32, 32, 64, 64]):
        assert shapes[f"routers.each.{k}.hidden.weight"] == (width, width)
        assert shapes[f"routers.each.{k}.out.weight"] == (2, width)


def test_resnet50_routers_see_the_wide_outputs_of_bottlenecks() -> None:
    with torch.device("meta"):
        model = create_model("resnet50")
    widths = [64, *[256] * 3, *[512] * 4, *[1024] * 6, *[2048] * 2]
    assert [block.in_channels for block in model.blocks] == widths


@pytest.mark.parametrize("kind", ROUTERS)
def test_router_parameters_have_router_in_their_names_and_no_others_do(kind: str) -> None:
    model = create_model("resnet20", router=kind)
    assert model.routers is not None
    of_routers = {id(p) for p in model.routers.parameters()}
    assert of_routers
    assert {id(p) for name, p in model.named_parameters() if "router" in name} == of_routers
    static = create_model("resnet20", routed=False)
    assert not any("router" in name for name in static.state_dict())


def test_who_has_fc_routers_alone() -> None:
    class Other(FCRouter):
        """Which may compute something else."""

    separate = build("fc")
    assert isinstance(separate, SeparateRouters)
    assert fc_routers(separate) == list(separate.each)
    separate.each[1] = Other(4)
    for routers in (separate, build("cnn"), build("rnn"), None):
        assert fc_routers(routers) is None


# --- the LSTM


def test_the_lstm_shares_its_parameters_along_the_depth() -> None:
    """One embedding for each width; the cell and the output layer once, whatever the depth."""
    names = {name for name, _ in RNNRouters([4, 4, 4, 6, 6]).named_parameters()}
    assert names == {
        *(f"embed.{width}.{part}" for width in (4, 6) for part in ("weight", "bias")),
        *(f"lstm.{part}_{gate}" for part in ("weight", "bias") for gate in ("ih", "hh")),
        *("out.weight", "out.bias"),
    }


def test_the_lstm_carries_its_state_from_block_to_block() -> None:
    router = build("rnn")
    x_BCHW = features(0)
    zero = router.start(x_BCHW)
    assert all(part.shape == (3, RNNRouters.HIDDEN) and not part.any() for part in zero)
    first, state = router.router(0)(x_BCHW, zero)
    second, later = router.router(1)(x_BCHW, state)
    assert not torch.equal(first, second)  # same features, same weights: only the state differs
    assert not torch.equal(state[0], later[0])
    assert torch.equal(router.router(1)(x_BCHW, zero)[0], first)


def test_the_lstm_scores_match_torch_lstm_over_the_whole_depth() -> None:
    router = RNNRouters([4] * 5)
    inputs = [features(0, seed=k) for k in range(5)]
    whole = torch.nn.LSTM(RNNRouters.HIDDEN, RNNRouters.HIDDEN)
    whole.load_state_dict({f"{name}_l0": value for name, value in router.lstm.state_dict().items()})
    embedded_NBH = torch.stack([router.embed["4"](x.mean(dim=(2, 3))).relu() for x in inputs])
    expected_NB2 = router.out(whole(embedded_NBH)[0])
    state, scores = router.start(inputs[0]), []
    for k, x_BCHW in enumerate(inputs):
        scores_B2, state = router.router(k)(x_BCHW, state)
        scores.append(scores_B2)
    torch.testing.assert_close(torch.stack(scores), expected_NB2)


# --- what they refuse


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("widths", [(), [0], [4, -1], [4.0], "44", None, 4, [10**9]])
def test_widths_are_whole_numbers_of_one_or_more(kind: str, widths: Any) -> None:
    with pytest.raises(UserError, match="width"):
        ROUTERS[kind](widths)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("k", [-1, 3, 1.0, None, "0"])
def test_there_is_a_router_for_each_block_and_no_other(kind: str, k: Any) -> None:
    with pytest.raises(UserError, match="The block index must be a whole number from 0 to 2, got"):
        build(kind).router(k)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("x", [torch.zeros(2, 5, 3, 3), torch.zeros(2, 4), None])
def test_features_of_another_shape_are_refused(kind: str, x: Any) -> None:
    routers = build(kind)
    with pytest.raises(UserError, match="This router requires features of B×4×H×W, got"):
        routers.router(0)(x, routers.start(torch.zeros(2, 3, 3, 3)))


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("amount", [float("nan"), float("inf"), "1", None])
def test_a_shift_is_a_finite_number(kind: str, amount: Any) -> None:
    routers = build(kind)
    before = {name: value.clone() for name, value in routers.state_dict().items()}
    with pytest.raises(UserError, match="amount must be a finite number, got"):
        routers.shift(amount)
    assert all(torch.equal(value, before[name]) for name, value in routers.state_dict().items())
