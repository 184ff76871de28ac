from math import log
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.config import ExtraConfig, LossConfig, RunConfig, ScheduleConfig
from codinet.cost import block_costs
from codinet.create import create_model
from codinet.methods.blockdrop import CERTAIN, METHOD, PolicyRouters, bounded, free_decay, reward, sample_bounded
from codinet.methods.method import PathBatch
from codinet.records import RoutedOutput
from codinet.resolving import resolve
from codinet.train.stages import stages_of


def test_the_reward_by_hand() -> None:
    path_BN = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    correct_B = torch.tensor([True, False, True])
    assert reward(correct_B, path_BN, penalty=5.0).tolist() == [0.75, -5.0, 0.0]


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.floats(0, 10))
def test_a_correct_answer_is_worth_more_with_fewer_blocks_and_never_less_than_a_wrong_one(
    path: list[bool], penalty: float
) -> None:
    path_BN = torch.tensor([path, [False] * len(path)]).float()
    right_B = reward(torch.tensor([True, True]), path_BN, penalty=penalty)
    wrong_B = reward(torch.tensor([False, False]), path_BN, penalty=penalty)
    assert right_B[1] >= right_B[0] >= 0 >= wrong_B.max()


def test_probabilities_are_bounded_unless_a_block_is_held() -> None:
    scores_B2 = torch.tensor([[0.0, 0.0], [0.0, log(3.0)], [30.0, 0.0], [0.0, CERTAIN - 1], [0.0, 2 * CERTAIN]])
    assert bounded(scores_B2).tolist() == pytest.approx([0.5, 0.65, 0.2, 0.8, 1.0])
    torch.manual_seed(0)
    many_B = sample_bounded(scores_B2[1].repeat(4000, 1))
    assert many_B.mean().item() == pytest.approx(0.65, abs=0.03)


def batch_of(output: RoutedOutput, greedy: RoutedOutput, **losses: Any) -> PathBatch:
    return PathBatch(
        *(output, torch.tensor([1]), 1, LossConfig(**losses), torch.tensor(0.5), torch.tensor(1.0)),
        *(torch.tensor([1.0, 1.0]), torch.tensor([0.4, 0.4]), 0.2, lambda rows: rows, greedy),
    )


def test_the_loss_by_hand() -> None:
    right, wrong = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    scores_BN2 = torch.tensor([[[0.0, 0.0], [0.0, log(3.0)]]])  # ½ and ¾, bounded ½ and 0.65
    output = RoutedOutput(right, scores_BN2, torch.tensor([[0.0, 1.0]]))  # reward 1 − ¼
    greedy = RoutedOutput(wrong, scores_BN2, torch.tensor([[1.0, 1.0]]))  # reward −2
    losses = {"penalty": 2.0, "policy_weight": 0.1, "score_decay": 0.01}
    found = METHOD.loss(torch.tensor(3.0), batch_of(output, greedy, **losses))
    policy = -(0.75 + 2) * (log(0.5) + log(0.65))
    assert found.loss.item() == pytest.approx(3 + 0.5 * 1.25 + 0.1 * policy + 0.01 * log(3.0) ** 2)
    assert found.cost.item() == pytest.approx(1.25)
    assert found.decay.item() == pytest.approx(log(3.0) ** 2)
    same = METHOD.loss(torch.tensor(3.0), batch_of(output, output, penalty=2.0, score_decay=0.0))  # no advantage
    assert same.loss.item() == pytest.approx(3 + 0.5 * 1.25)


def test_the_decay_by_hand() -> None:
    scores_BN2 = torch.tensor([[[0.0, 3.0], [1.0, -1.0], [0.0, 2 * CERTAIN]]])  # 3, −2, held
    assert free_decay(scores_BN2).item() == 9 + 4


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9))
def test_the_decay_lowers_every_free_margin_and_no_other(margins: list[float]) -> None:
    """Also where the probability is 0 or 1, so that no policy is stuck."""
    margin_BN = torch.tensor([margins], requires_grad=True)
    free_decay(torch.stack([torch.zeros_like(margin_BN), margin_BN], dim=-1)).backward()
    assert margin_BN.grad is not None
    expected_BN = torch.where(margin_BN > CERTAIN, 0.0, 2 * margin_BN.detach())
    torch.testing.assert_close(margin_BN.grad, expected_BN)


def test_a_held_block_has_no_gradient() -> None:
    routers = PolicyRouters(2, 1)
    routers.free_last(1)
    scores_BN2 = routers.scores(torch.randn(1, 1, 8, 8))
    scores_BN2.retain_grad()
    output = RoutedOutput(torch.tensor([[0.0, 1.0]]), scores_BN2, torch.ones(1, 2))
    greedy = RoutedOutput(torch.tensor([[1.0, 0.0]]), scores_BN2.detach(), torch.ones(1, 2))
    METHOD.loss(torch.tensor(0.0), batch_of(output, greedy)).loss.backward()
    assert scores_BN2.grad is not None
    assert scores_BN2.grad[0, 0].abs().max() < 1e-6
    assert scores_BN2.grad[0, 1].abs().min() > 1e-3


def config_of(epochs: int, start: str | None = None) -> RunConfig:
    schedule = ScheduleConfig(epochs=epochs)
    return resolve(RunConfig("digits", method="blockdrop", schedule=schedule, extra=ExtraConfig(start=start)))


def test_the_curriculum_frees_the_last_blocks_first() -> None:
    stages = {stage.name: stage for stage in stages_of(config_of(16))}
    curriculum, routers = stages["curriculum"], PolicyRouters(9, 3)
    assert (curriculum.epochs, curriculum.train_backbone, curriculum.train_routers) == (4, False, True)
    assert curriculum.lr == stages["joint"].lr == ScheduleConfig().finetune_lr  # small steps for the policy
    assert (curriculum.has_target, stages["joint"].has_target) == (False, True)
    held = []
    for epoch in range(4):
        METHOD.begin_epoch(curriculum, epoch, routers)
        held.append((routers.held_N2[:, 1] > 0).tolist())
    assert [row.count(True) for row in held] == [6, 4, 2, 0]
    assert held[0] == [True] * 6 + [False] * 3
    METHOD.begin_epoch(curriculum, 0, routers)
    METHOD.begin_epoch(stages["joint"], 0, routers)
    assert not routers.held_N2.any()
    METHOD.begin_epoch(stages["static"], 1, routers)  # all blocks run, whatever the policy of a start says
    assert (routers.held_N2[:, 1] > 0).all()


def test_a_trained_network_needs_no_static_stage() -> None:
    assert [stage.name for stage in stages_of(config_of(16))] == ["static", "curriculum", "joint", "finetune"]
    assert [stage.name for stage in stages_of(config_of(16, "run"))] == ["curriculum", "joint", "finetune"]


def test_the_policy_is_a_resnet_8_and_its_cost_counts() -> None:
    model = create_model("resnet32", router="policy")
    table = block_costs(model, (3, 32, 32))
    first = 3 * 16 * 9 * 32 * 32
    blocks = 2 * 16 * 16 * 9 * 32 * 32 + (16 + 32) * 32 * 9 * 16 * 16 + (32 + 64) * 64 * 9 * 8 * 8
    assert table.router_N == (first + blocks + 64 * 2 * 15, *[0] * 14)
    plain = block_costs(create_model("resnet32", routed=False), (3, 32, 32))
    assert table.static_macs == plain.static_macs
    assert table.share(torch.ones(1, 15)).item() == pytest.approx(1 + table.router_N[0] / plain.static_macs)


def test_large_images_are_shrunk_for_the_policy() -> None:
    small, large = (
        block_costs(create_model("resnet20", router="policy"), (3, side, side)).router_N[0] for side in (32, 96)
    )
    assert small == large
