import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codinet import files
from codinet.cli import main
from codinet.records import PathTable
from codinet.runs import RunFolder

Said = pytest.CaptureFixture[str]
Words = Callable[..., list[str]]
KEYS = {"accuracy", "macs", "paper_gmaccs", "cost_share", "mean_blocks", "distinct_paths", "path_entropy", "n"}


def evaluated(capsys: Said, run: Path, *words: str) -> dict[str, Any]:
    assert main(["eval", str(run), "--device", "cpu", "--json", *words]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def test_the_stable_keys_and_what_training_found(finished_run: Path, capsys: Said) -> None:
    found = evaluated(capsys, finished_run)
    assert set(found) >= KEYS
    assert found == RunFolder.open(finished_run).load_evaluation()


def test_twice_is_the_same_to_the_letter(finished_run: Path, capsys: Said) -> None:
    said = []
    for words in (["--json"], ["--json"], [], []):
        assert main(["eval", str(finished_run), "--device", "cpu", *words]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[2] == said[3]
    assert f"{json.loads(said[0])['accuracy']:.2f} %" in said[2]


def test_the_path_table_is_written_into_the_run(own_run: Path, capsys: Said) -> None:
    before = (own_run / "paths.safetensors").read_bytes()
    (own_run / "paths.safetensors").unlink()
    evaluated(capsys, own_run)
    assert (own_run / "paths.safetensors").read_bytes() == before


def test_the_path_table_can_go_elsewhere(own_run: Path, tmp_path: Path, capsys: Said) -> None:
    before = (own_run / "paths.safetensors").read_bytes()
    evaluated(capsys, own_run, "--threshold", "0", "--paths", str(tmp_path / "table.safetensors"))
    table = PathTable(**files.load_tensors(tmp_path / "table.safetensors")[0])
    assert bool((table.path_TN == 1).all())
    assert (own_run / "paths.safetensors").read_bytes() == before


def test_another_threshold_does_not_replace_the_runs_table(own_run: Path, capsys: Said) -> None:
    before = (own_run / "paths.safetensors").read_bytes()
    assert evaluated(capsys, own_run, "--threshold", "1")["mean_blocks"] == 0
    assert (own_run / "paths.safetensors").read_bytes() == before


def test_a_higher_threshold_never_costs_more_at_the_first_block(own_run: Path, tmp_path: Path, capsys: Said) -> None:
    first = []
    for threshold in ("0.2", "0.5", "0.8"):
        evaluated(capsys, own_run, "--threshold", threshold, "--paths", str(tmp_path / threshold))
        first.append(files.load_tensors(tmp_path / threshold)[0]["path_TN"][:, 0].sum().item())
    assert first == sorted(first, reverse=True)


@pytest.mark.parametrize("batch", ["1", "7", "1000"])
def test_the_batch_does_not_matter(finished_run: Path, batch: str, capsys: Said) -> None:
    whole, parts = evaluated(capsys, finished_run), evaluated(capsys, finished_run, "--batch", batch)
    assert parts == pytest.approx(whole, rel=1e-5)


def test_other_data_under_the_same_name_is_refused(own_run: Path, tmp_path: Path, capsys: Said) -> None:
    config = json.loads((own_run / "config.json").read_text())
    config["data"]["classes"] = ["cat", "dog"]
    (own_run / "config.json").write_text(json.dumps(config))
    tensors, about = files.load_tensors(own_run / "model.safetensors")
    tensors |= {name: tensors[name][:2] for name in ("fc.weight", "fc.bias")}
    files.save_tensors(own_run / "model.safetensors", tensors, about)
    assert main(["eval", str(own_run)]) == 2
    assert "was trained on other data than few holds now" in capsys.readouterr().err


def test_other_images_do_not_replace_the_path_table(
    own_run: Path, digits_npz: Path, tmp_path: Path, capsys: Said
) -> None:
    with np.load(digits_npz) as arrays:  # darker images to train on, and the same to test on
        np.savez(tmp_path / "few.npz", **{**arrays, "x_train": arrays["x_train"] // 2})
    config = json.loads((own_run / "config.json").read_text())
    config["config"]["source"] = str(tmp_path / "few.npz")
    (own_run / "config.json").write_text(json.dumps(config))
    (own_run / "paths.safetensors").unlink()
    words = ["eval", str(own_run), "--device", "cpu", "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == RunFolder.open(own_run).load_evaluation()
    assert f"few has other images now than {own_run} was trained on" in said.err
    assert not (own_run / "paths.safetensors").exists()
    assert main([*words, "--paths", str(tmp_path / "table")]) == 0
    assert (tmp_path / "table").exists()


def test_a_read_only_run_is_evaluated(own_run: Path, capsys: Said) -> None:
    (own_run / "paths.safetensors").unlink()
    (own_run / "paths.safetensors").mkdir()  # which no file can replace
    words = ["eval", str(own_run), "--device", "cpu", "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == RunFolder.open(own_run).load_evaluation()
    assert said.err.startswith("codinet: the path table is not saved: Could not write ")
    assert said.err.count("\n") == 1
    assert main([*words, "--paths", str(own_run / "paths.safetensors")]) == 2
    assert capsys.readouterr().out == ""


def test_the_path_table_holds_the_decisions_of_the_network(finished_run: Path) -> None:
    folder = RunFolder.open(finished_run)
    paths, found = folder.load_paths(), folder.load_evaluation()
    assert paths.path_TN.sum(dim=1).double().mean().item() == pytest.approx(found["mean_blocks"])
    assert paths.macs_T.mean().item() == pytest.approx(found["macs"])
    assert len(torch.unique(paths.path_TN, dim=0)) == found["distinct_paths"]


def test_a_curve_evaluates_one_network_at_several_thresholds(own_run: Path, tmp_path: Path, capsys: Said) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.png"
    found = evaluated(capsys, own_run, "--curve", "1", "0", "--plot", str(picture))
    low, middle, high = found["curve"]
    assert [point["threshold"] for point in found["curve"]] == [0, 0.5, 1]
    assert low["cost_share"] > middle["cost_share"] > high["cost_share"]
    assert low["mean_blocks"] == 9
    assert middle["accuracy"] == found["accuracy"] == RunFolder.open(own_run).load_evaluation()["accuracy"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [point["threshold"] for point in evaluated(capsys, own_run, "--curve")["curve"]] == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert main(["eval", str(own_run), "--device", "cpu", "--curve", "0.4"]) == 0
    assert "threshold" in capsys.readouterr().out


def test_a_budget_is_met_without_training(own_run: Path, capsys: Said) -> None:
    assert main(["eval", str(own_run), "--device", "cpu", "--json", "--budget", "0.45", "0.8"]) == 0
    said = capsys.readouterr()
    high, middle, low = sorted(json.loads(said.out)["curve"], key=lambda point: point["threshold"])[::-1]
    assert (low["budgets"], middle["budgets"], high["budgets"]) == ([0.8], [], [0.45])
    for point, budget in ((low, 0.8), (high, 0.45)):
        assert point["cost_share"] == pytest.approx(budget, abs=0.06)  # found on training images; of these there are 40
        assert (f"a budget of {budget:g} is missed" in said.err) == (abs(point["cost_share"] - budget) > 0.02)
    again = evaluated(capsys, own_run, "--threshold", repr(low["threshold"]))  # which is told, for every other verb
    assert {key: again[key] for key in ("accuracy", "macs")} == {key: low[key] for key in ("accuracy", "macs")}
    assert main(["eval", str(own_run), "--device", "cpu", "--budget", "0.8"]) == 0
    assert "budget" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--budget", "0.5", "0"], "codinet: --budget must be a finite number above 0 and of at most 1, got 0.0"),
        (["--budget"], "--budget requires a value, such as 0.6."),
        (["--curve", "--budget"], "--budget requires a value, such as 0.6."),
        (["--curve", "0.5", "2"], "--curve must be a number from 0 to 1, got 2"),
        (["--plot", "curve.png"], "--plot requires --curve or --budget"),
    ],
)
def test_an_invalid_curve_is_refused(finished_run: Path, capsys: Said, words: list[str], sentence: str) -> None:
    assert main(["eval", str(finished_run), *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "values"), [("--curve", []), ("--curve", ["0.4"]), ("--budget", ["0.5"])])
@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--no-routed", "--finetune", "0"], "routed networks only, and {run} is static."),
        (["--method", "fixed"], "networks that route images, and {run} runs the same blocks for all images."),
    ],
)
def test_one_path_for_all_images_has_no_curve(
    tmp_path: Path, train_words: Words, more: list[str], why: str, flag: str, values: list[str], capsys: Said
) -> None:
    run = tmp_path / "run"
    assert main(train_words(run, *more)) == 0
    capsys.readouterr()
    assert main(["eval", str(run), flag, *values]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"codinet: {flag} applies to {why.format(run=run)}\n")


def test_images_that_are_gone(own_run: Path, tmp_path: Path, capsys: Said) -> None:
    config = json.loads((own_run / "config.json").read_text())
    source, config["config"]["source"] = config["config"]["source"], "/gone/photos"
    (own_run / "config.json").write_text(json.dumps(config))
    assert main(["eval", str(own_run)]) == 2
    assert capsys.readouterr().err == (
        f"codinet: The images of {own_run} were in /gone/photos, which does not exist; move them back, or set "
        "--data-root to the folder that contains photos.\n"
    )
    config["config"]["source"] = f"/gone/{Path(source).name}"
    (own_run / "config.json").write_text(json.dumps(config))
    assert main(["eval", str(own_run), "--data-root", str(Path(source).parent)]) == 0
