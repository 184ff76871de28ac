import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from codinet.config import ExtraConfig, LossConfig
from codinet.data import Dataset
from codinet.data.resident import Resident
from codinet.data.views import normalise, random_views
from codinet.errors import UserError
from codinet.model import RoutedNetwork, create_model
from codinet.runs import DataBrief
from codinet.train.distillation import Teacher, distillation
from codinet.train.step import Step

CPU = torch.device("cpu")
Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]


@pytest.fixture
def teacher(two_blocks: Network, few: Dataset) -> Teacher:
    """One that never saw the images, which nobody asks."""
    return Teacher(two_blocks(7), DataBrief.of(few), few, CPU)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_formula(temperature: float) -> None:
    torch.manual_seed(0)
    ours_BK, theirs_BK = torch.randn(5, 7), torch.randn(5, 7)
    expected = 0.0
    for ours_K, theirs_K in zip(ours_BK / temperature, theirs_BK / temperature, strict=True):
        p_K, q_K = theirs_K.exp() / theirs_K.exp().sum(), ours_K.exp() / ours_K.exp().sum()
        expected += sum(p * (p / q).log() for p, q in zip(p_K, q_K, strict=True)).item() / 5
    found = distillation(ours_BK, theirs_BK, temperature=temperature)
    assert found.item() == pytest.approx(temperature**2 * expected, rel=1e-5)


def test_equal_answers_cost_nothing_whatever_is_added_to_all() -> None:
    logits_BK = torch.randn(5, 7)
    assert distillation(logits_BK, logits_BK + 3, temperature=2.0).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_learns_from_labels_and_teacher(
    two_blocks: Network, make_step: MakeStep, teacher: Teacher, stage: int, smoothing: float
) -> None:
    extra = ExtraConfig(label_smoothing=smoothing, teacher="t", distill=0.3, distill_temperature=2.0)
    losses = LossConfig(gamma=0.0, alpha=0.0, beta=0.0, score_decay=0.0)
    step = make_step(two_blocks(0), losses, stage=stage, extra=extra, teacher=teacher)
    twin = copy.deepcopy(step.model)
    torch.manual_seed(5)
    step()
    torch.manual_seed(5)
    images_LCHW, labels_L = step.data.take(step.index_L)
    images_BCHW = random_views(images_LCHW, 2, pad=1, flip=True)
    output = twin(images_BCHW, decide=step.stage.decide)
    with torch.no_grad():
        taught_BK = teacher.model(images_BCHW).logits_BK
    own = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(output.logits_BK, labels_L.repeat_interleave(2))
    soft_BK, answer_BK = (taught_BK / 2).softmax(dim=1), (output.logits_BK / 2).softmax(dim=1)
    kl = (soft_BK * (soft_BK / answer_BK).log()).sum(dim=1).mean()
    found = step.means()
    assert found["classification"] == pytest.approx(own.item(), rel=1e-5)
    assert found["distillation"] == pytest.approx(4 * kl.item(), rel=1e-4)
    assert found["loss"] == pytest.approx((0.7 * own + 0.3 * 4 * kl).item(), rel=1e-5)


def test_the_teacher_learns_nothing(two_blocks: Network, make_step: MakeStep, teacher: Teacher) -> None:
    before = {name: each.clone() for name, each in teacher.model.state_dict().items()}
    step = make_step(two_blocks(0), extra=ExtraConfig(teacher="t", distill=1.0), teacher=teacher)
    step()
    assert step.means()["distillation"] > 0
    assert all(torch.equal(each, before[name]) for name, each in teacher.model.state_dict().items())
    assert all(weight.grad is None for weight in teacher.model.parameters())


def test_without_a_teacher_there_is_no_such_loss(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0))
    step()
    assert step.means()["distillation"] == 0


def test_a_teacher_that_knows_other_statistics_sees_images_as_it_did(two_blocks: Network, few: Dataset) -> None:
    known = replace(DataBrief.of(few), mean=(90.0,), std=(40.0,))
    teacher = Teacher(two_blocks(7), known, few, CPU)
    ours_BCHW, _ = Resident.of(few.train, few, CPU).take(torch.arange(4))
    theirs_BCHW = normalise(few.train.images_NCHW[:4], torch.tensor([90.0]), torch.tensor([40.0]))
    assert not torch.allclose(ours_BCHW, theirs_BCHW, atol=1e-2)
    assert torch.allclose(teacher.prepare(ours_BCHW), theirs_BCHW, atol=1e-5)


def test_a_teacher_may_be_of_another_kind(few: Dataset) -> None:
    model = create_model("resnet32", in_channels=1, routed=False)
    teacher = Teacher(model, DataBrief.of(few), few, CPU)
    images_BCHW, _ = Resident.of(few.train, few, CPU).take(torch.arange(4))
    assert teacher.prepare(images_BCHW) is images_BCHW
    assert not model.training


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ("a", "b")}, r"knows 2 classes of images of shape \(1, 8, 8\), and few has 10"),
        ({"image_shape": (3, 8, 8)}, r"shape \(3, 8, 8\), and few"),
        ({"classes": tuple("abcdefghij")}, r"by other names, and few"),
    ],
)
def test_a_teacher_of_other_things_is_refused(
    two_blocks: Network, few: Dataset, change: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Teacher(two_blocks(7), replace(DataBrief.of(few), **change), few, CPU)  # type: ignore[arg-type]
