from collections.abc import Callable

import pytest
import torch

from codinet.config import ExtraConfig
from codinet.model import RoutedNetwork
from codinet.train.averaging import Average
from codinet.train.step import Step

Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]


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
    average.updates.fill_(2)  # of which 3/12 would come, just as much
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
    assert step.judged is step.average.model
    assert not any(weight.requires_grad for weight in step.judged.parameters())


def test_training_does_not_depend_on_whether_it_is_averaged(two_blocks: Network, make_step: MakeStep) -> None:
    steps = [make_step(two_blocks(0), extra=ExtraConfig(ema=ema)) for ema in (0.0, 0.9)]
    for step in steps:
        torch.manual_seed(1)
        step()
        step()
    plain, averaged = (step.model.state_dict() for step in steps)
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)
    assert steps[0].judged is steps[0].model
    assert steps[0].averaged() == {}


def test_fixed_routers_stay_the_same_in_both_to_the_bit(two_blocks: Network, make_step: MakeStep) -> None:
    step = make_step(two_blocks(0), stage=1, extra=ExtraConfig(ema=0.9))
    step()
    for network in (step.model, step.judged):
        assert network.routers is not None
        network.routers.shift(0.3)
    step()
    for name, weight in step.model.named_parameters():
        assert torch.equal(weight, step.judged.get_parameter(name)) == ("router" in name), name


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
