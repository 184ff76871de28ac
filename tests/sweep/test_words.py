from pathlib import Path

import pytest

from codinet.cli import parse
from codinet.commands.train import Args, defaults
from codinet.config import ExtraConfig, RunConfig, ScheduleConfig
from codinet.presets import PRESETS, demo
from codinet.sweep import Grid, from_static, plan
from codinet.sweep.narrowing import plan_paper
from codinet.sweep.words import train_words


def read_back(words: list[str]) -> tuple[RunConfig, Args]:
    assert words[0] == "train"
    args = parse(Args, words[1:], prog="codinet train", default=defaults(words[1:]))
    return RunConfig(args.source, args.data, args.network, args.losses, args.schedule, args.seed, args.extra), args


@pytest.mark.parametrize(
    "name", ["paper-table-tradeoff", "paper-table-ablation", "paper-table-comparison-imagenet", "paper-figure-margin"]
)
def test_a_workers_words_give_back_its_config(name: str) -> None:
    for run in plan_paper(name, data_path="pictures" if "imagenet" in name else None):
        assert read_back(train_words(run.config, Path("out")))[0] == run.config


@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_are_given_in_full(preset: str) -> None:
    grid = Grid(
        method=("static", "con"), router=("rnn",), relaxation=("straight-through",), gamma=(1e-7,), seed=(4000000000,)
    )
    for run in plan(PRESETS[preset]("some where.npz"), grid):
        assert read_back(train_words(run.config, Path("out")))[0] == run.config


@pytest.mark.parametrize("milestones", [(0.25, 0.5, 0.75), ()])
def test_aids_to_training_are_passed_on(milestones: tuple[float, ...]) -> None:
    config = RunConfig(
        "digits",
        schedule=ScheduleConfig(milestones=milestones),
        extra=ExtraConfig(0.1, 0.99, start="a run", start_sha256="1f", teacher="b", teacher_sha256="2e", distill=0.5),
    )
    assert read_back(train_words(config, Path("out")))[0] == config


def test_where_and_on_what_to_train_is_passed_on() -> None:
    _, args = read_back(train_words(plan(demo("digits"))[0].config, Path("a b"), data_root=Path("c"), device="cpu"))
    assert (args.out, args.data_root, args.device, args.resume) == (Path("a b"), Path("c"), "cpu", True)


def test_the_run_that_another_starts_from_is_named_by_its_place() -> None:
    static, routed = from_static(plan(demo("digits")))
    config = routed.trained(Path("a b"))
    assert read_back(train_words(config, Path("out")))[0] == config
    assert config.extra.start == config.extra.teacher == f"a b/{static.name}"
