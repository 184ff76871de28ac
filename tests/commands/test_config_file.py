"""`codinet train --config`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.cli import main, parse
from codinet.commands.config_file import with_file
from codinet.commands.train import Args, config_from
from codinet.config import flat, to_dict
from codinet.presets import PRESETS
from codinet.runs import RunFolder

Said = pytest.CaptureFixture[str]

FLAT = """
source: digits
preset: quick
arch: resnet20   # a remark
image-size: 16
lr: 1e-3
budget: 0.5
milestones: []
schedule: multistep
start: null
seed: 3
amp: false
out: runs/mine
"""
NESTED = {
    "source": "digits",
    "preset": "quick",
    "seed": 3,
    "amp": False,
    "out": "runs/mine",
    "network": {"arch": "resnet20"},
    "data": {"image_size": 16},
    "losses": {"budget": 0.5},
    "schedule": {"lr": 1e-3, "milestones": [], "schedule": "multistep"},
    "extra": {"start": None},
}


def args_of(*words: str) -> Args:
    args = parse(Args, list(words), prog="codinet train")
    assert isinstance(args, Args)
    return with_file(args)


@pytest.mark.parametrize(("name", "text"), [("a.yaml", FLAT), ("a.yml", FLAT), ("a.json", json.dumps(NESTED))])
def test_a_file_has_flags_and_the_command_line_replaces_them(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    args = args_of("--config", str(file))
    assert (args.source, args.seed, args.amp, args.out, args.kernels) == ("digits", 3, False, Path("runs/mine"), None)
    changes: dict[str, Any] = {"arch": "resnet20", "image_size": 16, "lr": 1e-3, "budget": 0.5, "milestones": []}
    changes |= {"schedule": "multistep", "seed": 3}
    expected = flat(to_dict(PRESETS["quick"]("digits"))) | changes
    assert flat(to_dict(config_from(args))) == expected
    assert "start" in args.extra
    args = args_of("cifar10", "--config", str(file), "--lr", "0.2", "--seed", "0", "--amp", "--gamma", "0.1")
    assert (args.source, args.seed, args.amp) == ("cifar10", 0, True)
    expected |= {"source": "cifar10", "lr": 0.2, "seed": 0, "gamma": 0.1, "budget": None}
    assert flat(to_dict(config_from(args))) == expected
    static = config_from(args_of("--config", str(file), "--no-routed", "--preset", "paper"))
    assert (static.network.routed, static.losses.budget, static.schedule.epochs) == (False, None, 250)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", "epoch: 3", "has an unknown setting 'epoch' (perhaps you meant epochs); see codinet train --help."),
        ("a.yaml", "network: {lr: 3}", "has an unknown setting 'lr'"),
        ("a.yaml", "resume: true", "has an unknown setting 'resume'"),
        ("a.yaml", "3: 4", "has an unknown setting 3"),
        ("a.yaml", "epochs: &n 3\nfinetune: *n", "a.yaml cannot be read (aliases are not supported)."),
        ("a.yaml", "epochs: many", "a.yaml: --epochs must be a whole number, got 'many'"),
        ("a.yaml", "epochs: 2.5", "a.yaml: --epochs must be a whole number, got '2.5'"),
        ("a.yaml", "epochs: null", "a.yaml: --epochs must be a whole number, got 'None'"),
        ("a.yaml", "routed: maybe", "a.yaml: routed must be true or false."),
        ("a.yaml", "amp: 1", "a.yaml: amp must be true or false."),
        ("a.yaml", "epochs: false", "a.yaml: Unrecognized options: --no-epochs"),
        ("a.yaml", "router: mlp", "'narrow', 'policy', 'hash', 'bias', 'halting', 'spatial', got 'mlp'"),
        ("a.yaml", "lr: {a: 1}", "a.yaml: lr must be a number, text, true or false, or a list of numbers."),
        ("a.yaml", "lr: 2026-01-01", "a.yaml: lr must be a number"),
        ("a.yaml", "lr: [[1]]", "a.yaml: lr must be a number"),
        ("a.yaml", "losses: 3", "losses must have settings with names"),
        ("a.yaml", "source: [1]", "a.yaml: source must be text."),
        ("a.yaml", "lr: 1\nschedule: {lr: 2}", "has the setting lr twice."),
        ("a.yaml", "- 1", "must have settings with names, such as epochs: 30."),
        ("a.yaml", "", "must have settings with names"),
        ("a.yaml", "a: [", "cannot be read (expected the node content, but found '<stream end>' in line 1)."),
        ("a.yaml", "lr: !!python/object/apply:os.getcwd []", "cannot be read (could not determine a constructor"),
        ("a.yaml", "a: " + 1100 * "[", "cannot be read (expected the node content"),
        ("a.yaml", "a: " + 1100 * "[" + 1100 * "]", "cannot be read (it is not valid YAML)."),
        ("a.yaml", "seed: " + 5000 * "1", "cannot be read (Exceeds the limit"),
        ("a.yaml", "#" * (2**20 + 1), "cannot be read (larger than 1 MiB)"),
        ("a.json", "{", "cannot be read ("),
        ("a.json", '{"lr": NaN}', "cannot be read (it contains nan)."),
        ("a.txt", "lr: 1", "--config must be a .yaml or .json file, or a run folder"),
        ("gone.yaml", None, "No such file or directory"),
        ("a.yaml", "budget: 0.5\nroutd: false", "perhaps you meant routed"),
        ("a.yaml", "budget: 7\nsource: digits", "--budget must be above 0 and at most 1"),
    ],
)
def test_a_bad_file_is_one_sentence(
    name: str, text: str | None, sentence: str, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    assert main(["train", "--config", name]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert len(said) < 400


def test_aliases_are_not_expanded(tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "bomb.yaml"
    levels = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9 if k else ['x'] * 9)}]" for k in range(20)]
    file.write_text("\n".join(levels).replace("a19:", "lr:"))
    assert main(["train", "--config", str(file)]) == 2
    assert "cannot be read (aliases are not supported)." in capsys.readouterr().err


def test_without_pyyaml_json_still_works(tmp_path: Path, capsys: Said, hide_package: Callable[[str], None]) -> None:
    hide_package("yaml")
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1")
    assert main(["train", "--config", str(file)]) == 2
    assert "YAML files require pyyaml" in capsys.readouterr().err


def test_the_config_of_a_run_repeats_it_and_makes_its_static_network(
    finished_run: Path, tmp_path: Path, assert_same_run: Callable[[Path, Path], None], capsys: Said
) -> None:
    run, static = tmp_path / "run", tmp_path / "run-static"
    assert main(["train", "--config", str(finished_run), "--device", "cpu", "--out", str(run)]) == 0
    assert_same_run(finished_run, run)
    assert RunFolder.open(run).config == RunFolder.open(finished_run).config
    said = capsys.readouterr()
    assert "no effect" not in said.err
    assert "accuracy of the static network" not in said.out
    (line,) = (line for line in said.err.splitlines() if "for the static network's accuracy" in line)
    words = line.partition("accuracy: codinet ")[2].split()
    assert words == ["train", "--config", str(run), "--no-routed", "--out", str(static)]
    assert main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "no effect" not in said.err
    assert "accuracy of the static network" not in said.out
    again = ["train", "--config", str(run / "config.json"), "--out", str(run), "--resume", "--device", "cpu"]
    assert main(again) == 0
    assert "accuracy of the static network" in capsys.readouterr().out
    assert main([*again, "--json"]) == 0
    accuracy = RunFolder.open(static).load_evaluation()["accuracy"]
    assert json.loads(capsys.readouterr().out)["static_accuracy"] == accuracy


def test_another_network_does_not_start_from_the_weights_of_a_file(tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("source: digits\narch: resnet20\nstart: runs/x\n")
    words = ["train", "--config", str(file), "--arch", "resnet32"]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"codinet: The settings of {file} start from runs/x, which is not a resnet32; add --start none.\n"
    )
    for more in (["--start", "none"], ["--start", "runs/y"], ["--arch", "resnet20"]):
        assert with_file(args_of(*words[1:], *more)).network["arch"] == (more[1] if "--arch" in more else "resnet32")
