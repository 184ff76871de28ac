"""The registry and what configs, commands and reports make of a method."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.cli import main
from codinet.config import LossConfig, NetworkConfig, RunConfig, ScheduleConfig, from_dict, to_dict
from codinet.errors import UserError
from codinet.methods import DEFAULT, NAMES, method_named
from codinet.methods.method import PathBatch, rate_for
from codinet.methods.router_kinds import ROUTER_KINDS
from codinet.presets import as_static
from codinet.records import RoutedOutput
from codinet.relaxation import hard
from codinet.resolving import resolve
from codinet.runs import RunFolder
from codinet.sweep.plan import Grid, canonical, method_of, plan
from codinet.train.stages import path_progress, stages_of

ROUTED = [name for name in NAMES if method_named(name).routed]


def run_of(name: str, **losses: Any) -> RunConfig:
    return resolve(RunConfig("digits", method=name, losses=LossConfig(**losses)))


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_found_by_its_name(name: str) -> None:
    method = method_named(name)
    assert method.name == name
    assert method.title
    assert set(method.routers) <= set(ROUTER_KINDS)
    config = run_of(name)
    assert config.network.routed == method.routed
    assert config.network.router == method.routers[0]
    assert config.losses.budget == (0.6 if method.routed else None)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UserError, match="Unknown method 'gating'; choose from codinet, vanilla"):
        method_named("gating")


@pytest.mark.parametrize("name", ROUTED)
def test_stages_take_the_epochs_of_the_schedule_and_end_with_stage_2(name: str) -> None:
    stages = stages_of(run_of(name))
    assert sum(stage.epochs for stage in stages[:-1]) == 250
    last = stages[-1]
    assert (last.name, last.epochs, last.decide, last.train_routers) == ("finetune", 20, hard, False)
    assert stages[0].warmup > 0


@pytest.mark.parametrize("name", ROUTED)
def test_one_epoch_suffices(name: str) -> None:
    config = RunConfig("digits", method=name, schedule=ScheduleConfig(epochs=1, finetune=0))
    (stage,) = stages_of(resolve(config))
    assert stage.epochs == 1


def test_a_method_survives_json_and_old_configs_have_the_default() -> None:
    config = run_of("blockdrop")
    assert from_dict(to_dict(config)) == config
    old = to_dict(run_of(DEFAULT))
    del old["method"], old["losses"]["penalty"]
    assert from_dict(old) == run_of(DEFAULT)


def test_losses_that_a_method_does_not_have_are_off() -> None:
    losses = run_of("vanilla").losses
    assert (losses.alpha, losses.beta, losses.score_decay) == (0, 0, LossConfig().score_decay)
    losses = run_of("convaig").losses
    assert (losses.alpha, losses.beta, losses.score_decay) == (0, 0, 0)
    assert run_of(DEFAULT).losses == LossConfig(budget=0.6)


def test_progress_counts_the_stages_with_a_target_for_the_cost() -> None:
    stages = stages_of(run_of("blockdrop"))  # 125 static, 62 curriculum, 63 joint
    assert [stage.path_losses for stage in stages] == [False, True, True, False]
    assert [stage.has_target for stage in stages] == [False, False, True, False]
    assert path_progress(stages, 1, 31) == 0
    assert path_progress(stages, 2, 21) == 21 / 63
    assert path_progress(stages, 3, 1) == 1
    assert path_progress(stages_of(run_of(DEFAULT)), 0, 100) == 100 / 250
    assert path_progress(stages_of(run_of("random")), 0, 1) == 1  # no stage has path losses


def test_the_rate_of_a_budget() -> None:
    shares_N = torch.tensor([0.2, 0.3, 0.4])
    assert rate_for(0.55, shares_N, 0.1).item() == pytest.approx(0.5)
    assert rate_for(0.05, shares_N, 0.1).item() == 0
    assert rate_for(1.0, shares_N, 0.05).item() == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "codi"], "--method must be one of 'codinet', 'vanilla', "),
        (["--method", "static", "--budget", "0.6"], "--budget requires routers, and --method static has none;"),
        (["--method", "convaig", "--router", "fc"], "--method convaig requires --router narrow, got fc."),
        (["--method", "skipnet", "--router", "narrow"], "--method skipnet requires --router rnn or cnn, got narrow."),
        (["--router", "policy"], "--method codinet requires --router fc or cnn or rnn, got policy."),
        (["--method", "random", "--gamma", "0.1"], "--method random has no --gamma; use --budget."),
        (["--method", "fixed", "--gamma", "0.1"], "--method fixed has no --gamma; use --budget."),
        (["--target-rate", "0.5"], "--method codinet has no --target-rate; use --budget."),
        (
            ["--method", "convaig", "--target-rate", "0.5", "--budget", "0.5"],
            "--budget and --target-rate exclude each other; leave one out.",
        ),
        (["--method", "convaig", "--target-rate", "2"], "--target-rate must be between 0 and 1, got 2."),
        (["--method", "blockdrop", "--penalty", "-1"], "Loss weights and margins must not be negative, got -1."),
        (["--method", "blockdrop", "--budget", "0.1"], "The budget must be at least 0."),
        (["--method", "act", "--budget", "0.2"], "The budget must be at least 0."),
        (["--method", "sact", "--router", "halting"], "--method sact requires --router spatial, got halting."),
    ],
)
def test_bad_combinations_are_one_sentence(
    words: list[str], sentence: str, digits_npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run"), "--start", "none", "--arch", "resnet20", "--device", "cpu"]
    assert main(["train", str(digits_npz), *out, *words]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"codinet: {sentence}")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_records_its_method_and_a_file_can_name_another(
    digits_npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--epochs", "2", "--finetune", "0", "--batch", "32", "--device", "cpu", "--start", "none"]
    one, other, whole = (str(tmp_path / name) for name in ("one", "other", "whole"))
    words = ["train", str(digits_npz), "--method", "random", "--arch", "resnet20", "--m-d", "1", "--out", one, *short]
    assert main(words) == 0
    assert "these flags have no effect with --method random: --m-d." in capsys.readouterr().err
    assert main(["train", "--config", one, "--method", "fixed", "--out", other, "--device", "cpu"]) == 0
    assert main(["train", "--config", one, "--method", "static", "--out", whole, "--device", "cpu"]) == 0
    configs = [RunFolder.open(Path(out)).config for out in (one, other, whole)]
    assert [config.method for config in configs] == ["random", "fixed", "static"]
    assert [config.network.router for config in configs] == ["hash", "bias", "fc"]
    assert [config.losses.budget for config in configs] == [0.6, 0.6, None]
    assert json.loads((tmp_path / "one" / "config.json").read_text())["config"]["method"] == "random"
    assert "the routing has collapsed" not in capsys.readouterr().err
    titles = [method_named(config.method).title_of(config) for config in configs]
    assert titles == ["random skipping", "best fixed path", "static"]


def test_without_routers_all_methods_are_the_static_network() -> None:
    static = resolve(as_static(run_of(DEFAULT)))
    for name in ROUTED:
        config = resolve(RunConfig("digits", method=name, network=NetworkConfig(routed=False)))
        assert method_named(config.method).title_of(config) == "static"
        assert canonical(config) == canonical(static)
        assert canonical(as_static(run_of(name))) == canonical(static)


def test_a_sweep_over_methods() -> None:
    base = RunConfig("digits", network=NetworkConfig(arch="resnet20"))
    planned = plan(base, Grid(method=("codinet", "vanilla", "static", "convaig", "random"), budget=(0.5,)))
    assert [run.name for run in planned] == [
        "resnet20-codinet-budget0.5-seed0",
        "resnet20-vanilla-budget0.5-seed0",
        "resnet20-static-seed0",
        "resnet20-convaig-budget0.5-seed0",
        "resnet20-random-budget0.5-seed0",
    ]
    assert [method_of(run.config) for run in planned] == ["codinet", "vanilla", "static", "convaig", "random"]


@pytest.mark.parametrize("name", [name for name in ROUTED if any(s.path_losses for s in stages_of(run_of(name)))])
def test_a_loss_reads_no_value_on_the_host_and_reaches_the_scores(name: str) -> None:
    """A step is captured as a CUDA graph. The compiler refuses to trace whatever would wait for the device."""
    torch.manual_seed(0)
    method, config = method_named(name), run_of(name)
    stage = next(stage for stage in stages_of(config) if stage.path_losses)
    scores_BN2 = torch.randn(6, 3, 2, requires_grad=True)
    logits_BK, labels_B = torch.randn(6, 4), torch.arange(6) // 2

    def loss_of(scores_BN2: torch.Tensor) -> torch.Tensor:
        path_BN = torch.stack([stage.decide(scores_BN2[:, k]) for k in range(3)], dim=1)
        greedy = RoutedOutput(logits_BK.roll(1, 0), scores_BN2.detach(), hard(scores_BN2.detach()))
        gamma, one, shares_N = torch.tensor(0.1), torch.tensor(1.0), torch.tensor([0.3, 0.3, 0.3])
        batch = PathBatch(
            *(RoutedOutput(logits_BK, scores_BN2, path_BN), labels_B, 2, config.losses, gamma, one),
            *(torch.ones(3), shares_N, 0.1, lambda rows: rows, greedy),
        )
        found = method.loss(torch.tensor(1.0), batch)
        return torch.stack(found)

    compiled = torch.compile(loss_of, fullgraph=True, backend="eager")
    loss, *terms = compiled(scores_BN2)
    loss.backward()
    assert scores_BN2.grad is not None
    assert scores_BN2.grad.abs().sum() > 0
    assert all(term.isfinite() for term in terms)
