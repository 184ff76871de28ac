import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from codinet.config import ExtraConfig, LossConfig
from codinet.cost import CostTable, block_costs
from codinet.data import random_views
from codinet.data.batches import Resident
from codinet.losses import Terms, consistency, diversity, expected_cost, total
from codinet.methods.blockdrop import PolicyRouters
from codinet.model import RoutedNetwork
from codinet.relaxation import hard, run_probability
from codinet.train.step import SUMS, Step, share_of_blocks

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]
LOSSES = LossConfig(gamma=0.05, alpha=0.3, beta=0.7, m_c=0.0, m_d=2.0, score_decay=0.0)


def terms_by_hand(model: RoutedNetwork, step: Step, *, noised: bool = False) -> Terms:
    """The losses of the step's batch, drawing the same random numbers in the same order."""
    images_LCHW, labels_L = step.data.take(step.index_L)
    output = model(random_views(images_LCHW, 2, pad=1, flip=True), decide=step.stage.decide)
    paths_BN = output.path_BN if noised else run_probability(output.scores_BN2)
    # Rows 2i and 2i + 1 are the two views of image i.
    paths_LMN = torch.stack([paths_BN[0::2], paths_BN[1::2]], dim=1)
    return Terms(
        F.cross_entropy(output.logits_BK, torch.stack([labels_L, labels_L], dim=1).flatten()),
        consistency(paths_LMN, margin=0.0),
        diversity(paths_LMN, margin=2.0),
        expected_cost(paths_BN, block_costs(model, (1, 6, 6)).loss_weights()),
    )


@pytest.mark.parametrize("paths", ["noise-free", "noised"])
def test_the_loss_is_the_sum_of_eq_12(two_blocks: Network, make_step: MakeStep, paths: str) -> None:
    model = two_blocks(0)
    twin = copy.deepcopy(model)
    step = make_step(model, replace(LOSSES, paths=paths))  # type: ignore[arg-type]
    torch.manual_seed(5)
    step()
    torch.manual_seed(5)
    terms = terms_by_hand(twin, step, noised=paths == "noised")
    assert all(term > 0 for term in terms)
    found = step.means()
    assert [found[name] for name in Terms._fields] == pytest.approx([term.item() for term in terms], rel=1e-5)
    assert found["loss"] == pytest.approx(total(terms, alpha=0.3, beta=0.7, gamma=0.05).item(), rel=1e-5)


def test_the_routers_margins_decay_on_top_of_it(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), replace(LOSSES, score_decay=0.5))
    step()
    found = step.means()
    rest = found["classification"] + 0.3 * found["consistency"] + 0.7 * found["diversity"] + 0.05 * found["cost"]
    assert found["decay"] > 0
    assert found["loss"] == pytest.approx(rest + 0.5 * found["decay"], rel=1e-5)


def test_two_steps_are_sgd_written_by_hand(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    twin = copy.deepcopy(model)
    step = make_step(model, LOSSES)
    momentum = {name: torch.zeros_like(weight) for name, weight in twin.named_parameters()}
    for number in range(2):
        step.index_L.copy_(torch.arange(4) + 4 * number)
        step.lr.fill_(0.1 / (1 + number))
        torch.manual_seed(number)
        step()
        torch.manual_seed(number)
        loss = total(terms_by_hand(twin, step), alpha=0.3, beta=0.7, gamma=0.05)
        weights = dict(twin.named_parameters())
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                momentum[name] = 0.9 * momentum[name] + gradient + 0.01 * weight
                weight.sub_(0.1 / (1 + number) * momentum[name])
    for name, weight in model.named_parameters():
        assert torch.allclose(weight, twin.get_parameter(name), rtol=1e-4, atol=1e-6), name
        assert torch.allclose(step.optimizer_state()[f"momentum.{name}"], momentum[name], rtol=1e-4, atol=1e-6), name


def test_the_second_stage_trains_all_but_the_routers(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    step = make_step(model, stage=1)
    for _ in range(3):
        step()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) == ("router" in name), name
    assert not any("router" in name for name in step.optimizer_state())


def test_the_second_stage_has_the_classification_loss_alone(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), LOSSES, stage=1)
    step()
    found = step.means()
    assert found["loss"] == found["classification"]
    assert [found[name] for name in ("consistency", "diversity", "cost", "decay", "gamma")] == [0] * 5


def test_views_of_an_image_stand_side_by_side(two_blocks: Network, make_step: MakeStep) -> None:
    # Without crops, mirrors and noise the views of an image are equal, and so are their paths; images differ.
    step = make_step(two_blocks(0), LossConfig(gamma=0.0, m_c=0.0, m_d=0.5), views=3, pad=0, flip=False)
    step.stage = replace(step.stage, decide=hard)
    step()
    found = step.means()
    assert found["consistency"] == pytest.approx(0, abs=1e-12)
    assert 0 < found["diversity"] < 0.25


def test_a_fixed_gamma_is_used_as_given(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), LossConfig(gamma=0.125))
    for _ in range(3):
        step()
    assert step.controller is None
    assert step.means()["gamma"] == 0.125


def test_the_controller_sees_every_batch_and_gives_gamma(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), LossConfig(budget=0.5))
    assert step.controller is not None
    step.controller.aim(1.0)
    first = step.controller.gamma().item()
    step()
    assert step.means()["gamma"] == pytest.approx(first)
    assert step.controller.gamma().item() != first


def test_the_controller_rests_in_the_second_stage(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), LossConfig(budget=0.5), stage=1)
    assert step.controller is not None
    before = {name: tensor.clone() for name, tensor in step.controller.state().items()}
    step()
    assert step.controller.state() == before


def test_the_first_bad_loss_is_named(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    step = make_step(model)
    step()
    assert step.first_nonfinite() is None
    with torch.no_grad():
        model.get_parameter("fc.weight")[0, 0] = torch.inf
    step()
    step()
    assert step.first_nonfinite() == (1, "classification")


def test_a_bad_router_is_told_from_a_bad_classifier(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    with torch.no_grad():
        model.get_parameter("routers.each.1.out.bias")[1] = torch.nan
    step = make_step(model, stage=1)  # a hard decision of NaN skips the block, and the network goes on
    step()
    assert step.first_nonfinite() is None
    step = make_step(model, LossConfig(gamma=0.0))
    step()
    assert step.first_nonfinite() == (0, "classification")


def test_means_are_over_the_steps_since_the_sums_were_cleared(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0))
    assert set(step.means()) == set(SUMS) - {"steps"}
    seen = []
    for _ in range(3):
        step.sums.zero_()
        step()
        seen.append(step.means()["loss"])
    step.sums.zero_()
    assert step.means()["loss"] == 0
    assert len(set(seen)) == 3


def test_hard_cost_and_accuracy_are_of_the_batch(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    with torch.no_grad():
        model.get_parameter("routers.each.0.out.bias")[1] = 100.0  # always runs
        model.get_parameter("routers.each.1.out.bias")[1] = -100.0  # never does
    step = make_step(model)
    step()
    expected = block_costs(model, (1, 6, 6)).share(torch.tensor([[1.0, 0.0]])).item()
    assert step.means()["cost_share"] == pytest.approx(expected)
    assert 0 <= step.means()["accuracy"] <= 1


def test_shares_of_blocks_add_up_to_the_cost_of_a_path() -> None:
    table = CostTable((10, 20), (0, 5), (1, 1), fixed=100, image_shape=(1, 2, 2), paper_unit=2)
    each_N, base = share_of_blocks(table, torch.device("cpu"))
    assert each_N.tolist() == pytest.approx([10 / 130, 15 / 130])
    assert base == pytest.approx(107 / 130)


def test_bfloat16_keeps_losses_and_weights_in_float32(two_blocks: Network, make_step: MakeStep) -> None:
    model = two_blocks(0)
    step = make_step(model, amp=True)
    step()
    assert step.first_nonfinite() is None
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_images_and_labels_are_those_of_the_index(two_blocks: Network, make_step: MakeStep, dozen: Resident) -> None:
    # A classifier that always says class 1 is right on the images of class 1 alone.
    model = two_blocks(0)
    with torch.no_grad():
        model.get_parameter("fc.weight").zero_()
        model.get_parameter("fc.bias").copy_(torch.tensor([0.0, 9.0, 0.0]))
    step = make_step(model)
    step.index_L.copy_(torch.tensor([1, 4, 7, 0]))
    assert dozen.labels_N[step.index_L].tolist() == [1, 1, 1, 0]
    step()
    assert step.means()["accuracy"] == 0.75


@pytest.mark.parametrize("stage", [0, 1])
def test_smoothed_labels_are_torchs_own(two_blocks: Network, make_step: MakeStep, stage: int) -> None:
    model = two_blocks(0)
    twin = copy.deepcopy(model)
    step = make_step(model, stage=stage, extra=ExtraConfig(label_smoothing=0.2))
    torch.manual_seed(5)
    step()
    torch.manual_seed(5)
    images_LCHW, labels_L = step.data.take(step.index_L)
    output = twin(random_views(images_LCHW, 2, pad=1, flip=True), decide=step.stage.decide)
    labels_B = labels_L.repeat_interleave(2)
    plain, smoothed = (
        torch.nn.CrossEntropyLoss(label_smoothing=share)(output.logits_BK, labels_B) for share in (0, 0.2)
    )
    assert step.means()["classification"] == pytest.approx(smoothed.item(), rel=1e-6)
    assert smoothed.item() != pytest.approx(plain.item(), rel=1e-4)


def with_policy(model: RoutedNetwork) -> RoutedNetwork:
    """The same network with routers that have BatchNorms, and with scores on both sides of 0."""
    torch.manual_seed(1)
    routers = PolicyRouters(2, 1)
    torch.nn.init.normal_(routers.out.weight)
    torch.nn.init.zeros_(routers.out.bias)
    model.routers = routers
    return model


def test_hard_decisions_change_nothing_in_the_network(two_blocks: Network, make_step: MakeStep) -> None:
    """Neither running statistics, nor their counters, nor gradients, nor the random numbers of the sample."""
    found = []
    for greedy in (False, True):
        step = make_step(with_policy(two_blocks(0)), LOSSES)
        step.stage = replace(step.stage, greedy=greedy)  # the loss of this method does not use it
        torch.manual_seed(5)
        step()
        step()
        found.append(step)
    for name, tensor in found[0].model.state_dict().items():
        assert torch.equal(tensor, found[1].model.state_dict()[name]), name
    assert torch.equal(found[0].sums, found[1].sums)
    norms = [part for part in found[1].model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert {(norm.momentum, int(norm.num_batches_tracked or 0)) for norm in norms} == {(0.1, 2)}


@pytest.mark.parametrize("train_backbone", [False, True])
def test_hard_decisions_are_those_of_the_mode_of_the_stage(
    two_blocks: Network, make_step: MakeStep, train_backbone: bool
) -> None:
    step = make_step(with_policy(two_blocks(0)))
    model, images_BCHW = step.model, torch.randn(8, 1, 6, 6)
    assert model.routers is not None
    with torch.no_grad():  # statistics that are wrong for these images
        for part in model.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                assert part.running_mean is not None
                part.running_mean.fill_(3.0)
    twin = copy.deepcopy(model)
    for each in (model, twin):
        assert each.routers is not None
        each.train(train_backbone)
        each.routers.train()
    greedy, sampled = step._greedy_output(images_BCHW), twin(images_BCHW, decide=hard)
    for name, tensor in greedy._asdict().items():
        assert torch.equal(tensor, getattr(sampled, name)), name
        assert not tensor.requires_grad
    assert torch.equal(greedy.path_BN, hard(greedy.scores_BN2))
    assert set(greedy.path_BN.unique().tolist()) == {0.0, 1.0}
    inference = twin.eval()(images_BCHW, force=greedy.path_BN)
    assert torch.allclose(greedy.logits_BK, inference.logits_BK) == (not train_backbone)
    assert [part.training for part in model.modules()] == [
        train_backbone or name.startswith("routers") for name, _ in model.named_modules()
    ]
