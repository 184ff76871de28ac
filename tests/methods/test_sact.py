from functools import partial

import pytest
import torch
from torch import nn

from codinet.adopt import import_vision
from codinet.backbones import Block
from codinet.bench.run_rate import settle
from codinet.config import ScheduleConfig
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.engines.branch import BranchEngine
from codinet.engines.gather import GatherEngine
from codinet.errors import UserError
from codinet.methods.act import mass_left, ponder_cost
from codinet.methods.method import StageStart, main_stage
from codinet.methods.router_kinds import build_routers
from codinet.methods.sact import METHOD, SpatialRouter
from codinet.model import RoutedNetwork, routed_step
from codinet.relaxation import hard
from codinet.routers import EPSILON, SCALE, HaltingRouter, HaltingRouters, of_image
from codinet.thresholds import mean_cost, threshold_for


def reads_a_channel(k: int, width: int) -> SpatialRouter:
    """A router whose halting score at a position is the sigmoid of channel k there."""
    router = SpatialRouter(width)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.zero_()
        router.conv.weight[0, k, 1, 1] = 1
    return router


class Fills(Block):
    """Replaces the features by a number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x_BCHW, self.value)


def halting_at(*rows: list[float]) -> torch.Tensor:
    """Features of one image with two positions. Channel k has the logits of the k-th halting scores."""
    return torch.tensor(rows).logit()[None, :, None]


FEATURES = halting_at([0.25, 0.7], [0.5, 0.6])
ROUTERS = build_routers("spatial", [2, 2, 2], 3)
assert isinstance(ROUTERS, HaltingRouters)
ROUTERS.each = nn.ModuleList([ROUTERS.each[0], reads_a_channel(0, 2), reads_a_channel(1, 2)])


@torch.no_grad()
def test_positions_by_hand() -> None:
    """Sums of 0.25 and 0.75 at one position, of 0.7 and 1.3 at the other, which halts before the third block."""
    first_B2, state = ROUTERS.router(0)(FEATURES, ())
    second, state = ROUTERS.router(1)(FEATURES, state)
    third, state = ROUTERS.router(2)(FEATURES, state)
    assert (first_B2.shape, second.shape, third.shape) == ((1, 2), (1, 1, 2, 2), (1, 1, 2, 2))
    assert mass_left(second).flatten().tolist() == pytest.approx([0.75, 0.3])
    assert mass_left(third).flatten().tolist() == pytest.approx([0.25, 0], abs=1e-6)
    assert hard(third).flatten().tolist() == [1, 0]
    scores_BN2 = torch.stack([first_B2, of_image(second), of_image(third)], dim=1)
    assert hard(scores_BN2).tolist() == [[1, 1, 1]]
    # N + R is 3 + 0.25 at one position and 2 + 0.3 at the other.
    assert ponder_cost(scores_BN2, torch.ones(3)).item() == pytest.approx((3.25 + 2.3) / 2)
    margin_BN = scores_BN2[..., 1] - scores_BN2[..., 0]
    assert margin_BN[0, 2].item() == pytest.approx(SCALE * (1 - EPSILON - 0.75), abs=1e-5)


def test_the_ponder_cost_of_a_position_has_the_gradient_of_its_remainder() -> None:
    features = FEATURES.clone().requires_grad_()
    state, scores = ROUTERS.start(features), []
    for k in range(3):
        given, state = ROUTERS.router(k)(features, state)
        scores.append(given if k == 0 else of_image(given))
    ponder_cost(torch.stack(scores, dim=1), torch.ones(3)).backward()
    assert features.grad is not None
    slope = features.detach().sigmoid() * (1 - features.detach().sigmoid())
    wanted = -torch.tensor([[1.0, 1.0], [1.0, 0.0]]) / 2  # halting scores × positions
    assert torch.allclose(features.grad[0, :, 0] / slope[0, :, 0], wanted, atol=1e-5)


@torch.no_grad()
def test_positions_that_halted_keep_their_features() -> None:
    _, state = ROUTERS.router(1)(FEATURES, (torch.zeros(1, 1, 1),))
    y_BCHW, scores_B2, path_B, _ = routed_step(Fills(7.0), ROUTERS.router(2), FEATURES, state, hard, None)
    assert torch.equal(y_BCHW[..., 0], torch.full((1, 2, 1), 7.0))
    assert torch.equal(y_BCHW[..., 1], FEATURES[..., 1])
    assert (scores_B2.shape, path_B.tolist()) == ((1, 2), [1])
    y_BCHW, _, path_B, _ = routed_step(Fills(7.0), ROUTERS.router(2), FEATURES, state, mass_left, None)
    assert torch.allclose(y_BCHW[..., 0], FEATURES[..., 0].lerp(torch.tensor(7.0), 0.25))
    assert path_B.tolist() == pytest.approx([0.25])
    for decision in (0.0, 1.0):  # a forced path holds for all positions
        y_BCHW, _, path_B, _ = routed_step(
            Fills(7.0), ROUTERS.router(2), FEATURES, state, hard, torch.tensor([decision])
        )
        assert torch.equal(y_BCHW, torch.full_like(FEATURES, 7.0) if decision else FEATURES)
        assert path_B.tolist() == [decision]


@torch.no_grad()
def test_a_step_has_no_branch_on_values() -> None:
    """The compiler refuses to trace what would wait for the device."""
    _, state = ROUTERS.router(1)(FEATURES, (torch.zeros(1, 1, 1),))
    compiled = torch.compile(routed_step, fullgraph=True, backend="eager")
    for decide in (hard, mass_left):
        arguments = Fills(7.0), ROUTERS.router(2), FEATURES, state, decide, None
        for ours, theirs in zip(compiled(*arguments)[:3], routed_step(*arguments)[:3], strict=True):
            assert torch.equal(ours, theirs)


IMAGES = torch.randn(6, 1, 12, 10, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def network(kind: str, spread: float) -> RoutedNetwork:
    torch.manual_seed(0)
    model = settle(create_model("resnet20", router=kind, in_channels=1, num_classes=5), IMAGES)
    generator = torch.Generator().manual_seed(1)
    assert isinstance(model.routers, HaltingRouters)
    for router in model.routers.each:
        if isinstance(router, HaltingRouter):
            router.halt.weight.normal_(generator=generator)
            router.halt.bias.fill_(-1.0)
        if isinstance(router, SpatialRouter):
            router.conv.weight.normal_(0, spread)
    return model


@torch.no_grad()
def test_without_the_convolution_it_is_act() -> None:
    """All positions of an image then have the same halting score."""
    act, sact = network("halting", 0), network("spatial", 0)
    for decide in (hard, mass_left, partial(hard, threshold=0.3)):
        for ours, theirs in zip(sact(IMAGES, decide=decide), act(IMAGES, decide=decide), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)
    assert len(act(IMAGES).path_BN.unique(dim=0)) > 1


@torch.no_grad()
def test_engines_agree_where_images_halt_in_part() -> None:
    model = network("spatial", 0.3)
    assert model.routers is not None
    parts: list[float] = []
    hooks = [
        router.register_forward_hook(
            lambda _m, _x, y: parts.append(hard(y[0]).mean().item()) if y[0].ndim == 4 else None
        )
        for router in model.routers.each  # type: ignore[union-attr]
    ]
    for threshold in (0.2, 0.5, 0.9):
        expected = model(IMAGES, decide=partial(hard, threshold=threshold))
        for engine in (BranchEngine, GatherEngine):
            found = engine(model)(IMAGES, threshold=threshold)
            assert torch.equal(found.path_BN, expected.path_BN)
            assert (found.logits_BK - expected.logits_BK).abs().max() < 1e-4
        path_BN = expected.path_BN.roll(1, 0)
        expected = model(IMAGES, force=path_BN)
        for engine in (BranchEngine, GatherEngine):
            assert (engine(model)(IMAGES, force=path_BN).logits_BK - expected.logits_BK).abs().max() < 1e-4
    assert any(0.1 < part < 0.9 for part in parts)
    for hook in hooks:
        hook.remove()


def saturated(budget: float | None) -> RoutedNetwork:
    """A network whose halting scores are 0 or 1 in float32, as training with large steps makes them."""
    model = network("spatial", 0)
    assert isinstance(model.routers, HaltingRouters)
    with torch.no_grad():
        for k, router in enumerate(model.routers.each):
            if isinstance(router, SpatialRouter):
                sign = 1 if k in (4, 7, 8) else -1
                router.halt.weight.abs_().mul_(sign * 100 / router.halt.in_features)
    start = StageStart(model.routers, torch.full((9,), 0.1), 0.1, budget, lambda: 0.0)
    METHOD.begin_stage(
        main_stage("joint", ScheduleConfig(), decide=mass_left, train_routers=True, path_losses=True)[0], start
    )
    return model


@torch.no_grad()
def test_a_budget_is_met_where_halting_scores_are_saturated() -> None:
    """Without gentle units all images have the same margins, and the cost jumps over the budgets."""
    images = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for model, is_met in ((saturated(0.4), True), (saturated(None), False)):
        table = block_costs(model, (1, 8, 8))
        for budget in (0.4, 0.65):
            cost = mean_cost(model, table, images, threshold_for(model, images, budget), batch=50)
            assert (abs(cost - budget) < 0.01) == is_met


def test_saturated_halting_scores_have_a_gradient() -> None:
    for budget in (0.5, None):
        model = saturated(budget)
        ponder_cost(model(IMAGES, decide=mass_left).scores_BN2, torch.ones(9)).backward()
        assert model.routers is not None
        router = model.routers.get_submodule("each.1")
        assert isinstance(router, SpatialRouter)
        assert router.halt.bias.grad is not None
        assert (router.halt.bias.grad.abs().item() > 1e-6) == (budget is not None)


@torch.no_grad()
def test_halting_scores_are_those_of_the_paper_without_a_budget() -> None:
    model = saturated(None)
    assert model.routers is not None
    router, x_BCHW = model.routers.get_submodule("each.1"), torch.randn(3, 16, 4, 4)
    assert isinstance(router, SpatialRouter)
    logits_BHW = router.conv(x_BCHW)[:, 0] + router.halt(x_BCHW.mean(dim=(2, 3)))[:, :, None]
    assert torch.equal(router.halting(x_BCHW), logits_BHW.sigmoid())
    router.gentle.fill_(1)
    assert not torch.equal(router.halting(x_BCHW), logits_BHW.sigmoid())


def test_a_group_must_keep_its_size() -> None:
    router = SpatialRouter(4)
    _, state = router(torch.randn(2, 4, 6, 6), (torch.zeros(2, 1, 1),))
    with pytest.raises(UserError, match="requires blocks that keep the size"):
        router(torch.randn(2, 4, 3, 3), state)

    class Halves(Fills):
        def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
            return x_BCHW[..., ::2, ::2]

        def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
            return shortcut_BCHW

    with pytest.raises(UserError, match="only of a block that keeps the size"):
        routed_step(Halves(0.0), router, torch.randn(2, 4, 6, 6), state, hard, None)


@pytest.mark.filterwarnings("ignore")  # of timm, when it is imported
@pytest.mark.parametrize(("arch", "side"), [("timm:test_convnext", 64), ("timm:test_vit", 160)])
@torch.no_grad()
def test_other_layouts_of_features(arch: str, side: int) -> None:
    """Channels last, and tokens, which are positions of one column."""
    try:
        import_vision("timm")
    except Exception as error:
        pytest.skip(str(error))
    pytest.importorskip("onnxruntime")
    from codinet.engines.onnx import OnnxEngine

    torch.manual_seed(0)
    model = create_model(arch, router="spatial").eval()
    assert model.routers is not None
    for name, parameter in model.routers.named_parameters():
        if name.endswith("weight"):
            parameter.normal_(0, 0.1 if "conv" in name else 0.5)
        else:
            parameter.fill_(0.5)
    images = torch.randn(4, 3, side, side)
    expected = model(images)
    assert 0 < expected.path_BN.mean() < 1
    for engine in (GatherEngine(model), OnnxEngine.of(model, (3, side, side))):
        found = engine(images)
        assert torch.equal(found.path_BN, expected.path_BN)
        assert (found.logits_BK - expected.logits_BK).abs().max() < 1e-4
