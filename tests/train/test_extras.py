import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from codinet.config import ExtraConfig, LossConfig
from codinet.create import create_model
from codinet.data import Dataset
from codinet.data.batches import Resident
from codinet.data.views import normalise, random_views
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.run_reader import DataInfo
from codinet.train.averaging import Average
from codinet.train.step import Step
from codinet.train.teaching import Teacher, distillation

CPU = torch.device("cpu")
Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]


@pytest.fixture
def teacher(two_blocks: Network, few: Dataset) -> Teacher:
    """One that never saw the images, which nobody asks."""
    return Teacher(two_blocks(7), DataInfo.of(few), few, CPU)


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
    known = replace(DataInfo.of(few), mean=(90.0,), std=(40.0,))
    teacher = Teacher(two_blocks(7), known, few, CPU)
    ours_BCHW, _ = Resident.of(few.train, few, CPU).take(torch.arange(4))
    theirs_BCHW = normalise(few.train.images_NCHW[:4], torch.tensor([90.0]), torch.tensor([40.0]))
    assert not torch.allclose(ours_BCHW, theirs_BCHW, atol=1e-2)
    assert torch.allclose(teacher.prepare(ours_BCHW), theirs_BCHW, atol=1e-5)


def test_a_teacher_may_be_of_another_kind(few: Dataset) -> None:
    model = create_model("resnet32", in_channels=1, routed=False)
    teacher = Teacher(model, DataInfo.of(few), few, CPU)
    images_BCHW, _ = Resident.of(few.train, few, CPU).take(torch.arange(4))
    assert teacher.prepare(images_BCHW) is images_BCHW
    assert not model.training


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ("a", "b")}, r"trained on 2 classes of images of shape \(1, 8, 8\), and few has 10"),
        ({"image_shape": (3, 8, 8)}, r"shape \(3, 8, 8\), and few"),
        ({"classes": tuple("abcdefghij")}, r"with other names, and few"),
    ],
)
def test_a_teacher_of_other_things_is_refused(
    two_blocks: Network, few: Dataset, change: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Teacher(two_blocks(7), replace(DataInfo.of(few), **change), few, CPU)  # type: ignore[arg-type]


def test_two_updates_worked_by_hand(two_blocks: Network) -> None:
    model = two_blocks(0)
    bias, mean = model.get_parameter("fc.bias"), model.get_buffer("body.0.bn1.running_mean")
    with torch.no_grad():
        bias.fill_(1.0)
    average = Average(model, 0.999)
    with torch.no_grad():
        bias.fill_(2.0)
        mean.fill_(10.0)
    average.update()  # d = 1/10: 0.1 · 1 + 0.9 · 2, and 0.1 · 0 + 0.9 · 10
    assert average.model.get_parameter("fc.bias").tolist() == pytest.approx([1.9] * 3)
    assert average.model.get_buffer("body.0.bn1.running_mean").tolist() == pytest.approx([9.0] * 4)
    with torch.no_grad():
        bias.fill_(4.0)
    average.update()  # d = 2/11: 2/11 · 1.9 + 9/11 · 4
    assert average.model.get_parameter("fc.bias").tolist() == pytest.approx([39.8 / 11] * 3)
    assert average.updates == 2


def test_the_decay_asked_for_is_the_highest(two_blocks: Network) -> None:
    model = two_blocks(0)
    average = Average(model, 0.25)
    average.updates.fill_(2)  # where the limit would be 3/12, just as much
    for updates, expected in ((2, 0.25), (3, 0.25), (1000, 0.25), (1, 2 / 11)):
        average.updates.fill_(updates)
        with torch.no_grad():
            model.get_parameter("fc.bias").fill_(0.0)
            average.model.get_parameter("fc.bias").fill_(1.0)
        average.update()
        assert average.model.get_parameter("fc.bias")[0].item() == pytest.approx(expected)


def test_a_step_takes_its_weights_and_statistics_in(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), extra=ExtraConfig(ema=0.9))
    assert step.average is not None
    expected = {name: each.clone() for name, each in step.model.state_dict().items()}
    for number in range(3):
        step()
        decay = min(0.9, (1 + number) / (10 + number))
        for name, each in step.model.state_dict().items():
            if each.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * each
    for name, each in step.average.model.state_dict().items():
        assert torch.allclose(each, expected[name], atol=1e-6), name
    assert not torch.equal(expected["body.0.bn1.running_mean"], step.model.get_buffer("body.0.bn1.running_mean"))
    assert step.eval_model is step.average.model
    assert not any(weight.requires_grad for weight in step.eval_model.parameters())


def test_training_does_not_depend_on_whether_it_is_averaged(two_blocks: Network, make_step: MakeStep) -> None:
    steps = [make_step(two_blocks(0), extra=ExtraConfig(ema=ema)) for ema in (0.0, 0.9)]
    for step in steps:
        torch.manual_seed(1)
        step()
        step()
    plain, averaged = (step.model.state_dict() for step in steps)
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)
    assert steps[0].eval_model is steps[0].model
    assert steps[0].averaged() == {}


def test_fixed_routers_stay_the_same_in_both_to_the_bit(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), stage=1, extra=ExtraConfig(ema=0.9))
    step()
    for network in (step.model, step.eval_model):
        assert network.routers is not None
        network.routers.shift(0.3)
    step()
    for name, weight in step.model.named_parameters():
        assert torch.equal(weight, step.eval_model.get_parameter(name)) == ("router" in name), name


def test_the_network_adopts_the_average_in_place(two_blocks: Network) -> None:
    model = two_blocks(0)
    average = Average(model, 0.9)
    places = {name: each.data_ptr() for name, each in model.state_dict().items()}
    with torch.no_grad():
        for number in (*model.parameters(), *model.buffers()):
            number.add_(1)
    average.adopt()
    for name, each in model.state_dict().items():
        assert torch.equal(each, average.model.state_dict()[name]) == each.is_floating_point(), name
        assert each.data_ptr() == places[name]
    assert model.get_buffer("body.0.bn1.num_batches_tracked") == 1  # a count, which has no average
