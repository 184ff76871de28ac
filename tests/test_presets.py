from dataclasses import replace

import pytest
import torch

from codinet.cli import parse
from codinet.commands.train import Args, config_from
from codinet.config import RunConfig, from_dict, to_dict
from codinet.cost import block_costs
from codinet.data import Dataset
from codinet.data.batches import Resident
from codinet.model import CoDiNet
from codinet.presets import PRESETS, as_static, as_vanilla, imagenet
from codinet.resolving import resolve
from codinet.run_reader import DataInfo
from codinet.train.budget import BudgetController
from codinet.train.splits import augmentation_of
from codinet.train.stages import Stage, stages_of
from codinet.train.step import Step, Task

CPU = torch.device("cpu")


def step_once(config: RunConfig, stage: Stage, data: Dataset) -> None:
    torch.manual_seed(0)
    model = CoDiNet(DataInfo.of(data).model_config(config.network))
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    table = block_costs(model, data.image_shape)
    budget = config.losses.budget
    controller = BudgetController(budget, steps=10, device=CPU) if budget else None
    resident = Resident.of(data.train, data, CPU)
    step = Step(Task(model, resident, table, config, augmentation_of(config, data), controller), stage)
    step.lr.fill_(stage.lr)
    step()
    assert step.first_nonfinite() is None
    changed = {name for name, weight in model.named_parameters() if not torch.equal(before[name], weight)}
    assert changed <= step.trained.keys()
    assert {"conv1.weight", "fc.weight", "fc.bias"} <= changed
    assert any("router" in name for name in changed) == stage.train_routers


@pytest.mark.parametrize("variant", [lambda config: config, as_static, as_vanilla], ids=["as is", "static", "vanilla"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_resolved_built_and_stepped_in_each_stage(name: str, variant: type, few: Dataset) -> None:
    config = resolve(variant(PRESETS[name]("digits")))
    assert from_dict(to_dict(config)) == config
    config = replace(config, schedule=replace(config.schedule, batch=4))
    for stage in stages_of(config):
        step_once(config, stage, few)


@pytest.mark.parametrize("name", PRESETS)
def test_the_command_in_a_presets_docstring_can_be_given(name: str) -> None:
    text = PRESETS[name].__doc__ or ""
    (command,) = (line.strip() for line in text.splitlines() if line.strip().startswith("codinet train"))
    words = command.split("  ")[0].split()[2:]  # what follows two spaces is a remark
    args = parse(Args, words, prog="codinet train")
    assert args.preset == name
    resolve(config_from(args))


def test_the_static_form_of_a_run_routes_nothing_and_has_no_budget() -> None:
    config = resolve(as_static(PRESETS["demo"]("digits")))
    assert not config.network.routed
    assert config.losses.budget is None


def test_the_vanilla_form_of_a_run_keeps_its_budget() -> None:
    config = as_vanilla(PRESETS["demo"]("digits"))
    assert (config.losses.alpha, config.losses.beta, config.losses.budget) == (0, 0, 0.6)


def test_imagenet_is_the_papers_recipe() -> None:
    config = resolve(imagenet("photos"), gpu=True)
    assert (config.network.arch, config.network.stride_on) == ("resnet50", "1x1")
    assert (config.data.image_size, config.data.crop, config.data.view, config.data.min_area) == (
        224,
        224 / 256,
        "resized",
        0.08,
    )
    stage = stages_of(config)[0]
    assert [stage.lr_at(epoch) for epoch in (29.9, 30, 60, 90)] == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    assert (stage.epochs, config.schedule.finetune, config.schedule.batch) == (100, 10, 256)
