import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from codinet.cli import main, parse
from codinet.commands.train import Args, config_from
from codinet.config import RunConfig, ScheduleConfig, flag_of, flat, to_dict
from codinet.data import free_memory
from codinet.presets import PRESETS
from codinet.resolving import resolve
from codinet.runs import RunFolder
from codinet.train.distributed import WAIT_MINUTES

Said = pytest.CaptureFixture[str]
Words = Callable[..., list[str]]
EVAL_KEYS = {"accuracy", "macs", "paper_gmaccs", "cost_share", "mean_blocks", "distinct_paths", "path_entropy", "n"}


def config_of(*words: str) -> RunConfig:
    return config_from(parse(Args, list(words), prog="codinet train"))


def test_json_is_one_document_on_stdout_and_progress_goes_to_stderr(
    tmp_path: Path, train_words: Words, capsys: Said
) -> None:
    assert main(train_words(tmp_path / "run", "--json")) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["run"] == str(tmp_path / "run")
    assert set(result) >= EVAL_KEYS
    assert "Training resnet20 on few" in said.err


def test_without_json_a_table_is_printed(
    tmp_path: Path, train_words: Words, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that the folder's name is short
    assert main(train_words(Path("run [1]"))) == 0
    said = capsys.readouterr().out
    assert "run [1] on the 40 test images" in " ".join(said.split())
    assert "accuracy" in said
    assert "share of the static network" in said


def picture_folder(root: Path) -> Path:
    """Grey, palette, transparent and coloured images of two classes, of differing sizes."""
    for label, name in enumerate(("dark", "light")):
        (root / name).mkdir(parents=True)
        for number, mode in enumerate(["L", "RGBA", "RGB", "LA", "P", "L", "RGB", "RGBA", "RGB", "L"]):
            picture = Image.new("RGB", (32 + number, 40), (200 * label + number,) * 3)
            picture.convert(mode).save(root / name / f"{number}.png")
    return root


def cifar_files(root: Path) -> Path:
    """CIFAR-10's official binary files with eight images each."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        labels, pixels = np.arange(8, dtype=np.uint8)[:, None], random.integers(0, 256, (8, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.hstack([labels, pixels]).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class{number}" for number in range(10)))
    return root


def test_training_on_a_folder_of_mixed_images(tmp_path: Path, train_words: Words) -> None:
    words = train_words(tmp_path / "run", "--batch", "8", source=picture_folder(tmp_path / "pictures"))
    assert main(words) == 0
    folder = RunFolder.open(tmp_path / "run")
    assert folder.data.classes == ("dark", "light")
    assert folder.data.image_shape == (3, 32, 32)
    assert folder.finished


def test_training_on_official_cifar_files(tmp_path: Path, train_words: Words) -> None:
    words = train_words(tmp_path / "run", "--batch", "8", "--data-root", str(cifar_files(tmp_path)), source="cifar10")
    assert main(words) == 0
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.data.name, folder.data.image_shape, len(folder.data.classes)) == ("cifar10", (3, 32, 32), 10)
    assert folder.load_evaluation()["n"] == 8


@pytest.mark.parametrize("router", ["cnn", "rnn"])
def test_every_router_trains_and_resumes(tmp_path: Path, train_words: Words, router: str) -> None:
    words = train_words(tmp_path / "run", "--router", router)
    assert main(words) == 0
    assert main([*words, "--resume"]) == 0


def test_the_default_run_folder(tmp_path: Path, train_words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = train_words(Path("x"), "--no-routed", "--seed", "3")
    place = words.index("--out")
    assert main(words[:place] + words[place + 2 :]) == 0
    assert RunFolder.open(Path("runs/few-resnet20-static-seed3")).finished


def test_another_schedule_drops_the_milestones_of_the_preset() -> None:
    def schedule(*words: str) -> ScheduleConfig:
        args = parse(Args, ["photos", "--preset", "imagenet", *words], prog="codinet train")
        assert args is not None
        return resolve(config_from(args)).schedule

    assert schedule().milestones == (0.3, 0.6, 0.9)
    assert schedule("--schedule", "cosine").schedule == "cosine"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("", {}),
        ("--epochs 3 --arch resnet110 --seed 7", {"epochs": 3, "arch": "resnet110", "seed": 7}),
        ("--epochs 3 --epochs 4", {"epochs": 4}),
        ("--budget 0.4 --m-d=0.7", {"budget": 0.4, "m_d": 0.7}),
        ("--gamma 1e-3 --budget None", {"gamma": 1e-3, "budget": None}),
        ("--batch None --finetune None", {"batch": None, "finetune": None}),
        ("--milestones 0.2 0.5 --schedule multistep", {"milestones": [0.2, 0.5], "schedule": "multistep"}),
        ("--milestones", {"milestones": []}),
        (
            "--teacher t --distill 0.7 --start s --start-sha256 1f",
            {"teacher": "t", "distill": 0.7, "start": "s", "start_sha256": "1f"},
        ),
        ("--watch train --holdout 5 --image-size 64", {"watch": "train", "holdout": 5, "image_size": 64}),
        ("--no-routed", {"routed": False, "budget": None, "gamma": None}),
        ("--no_routed --budget 0.5", {"routed": False, "budget": 0.5}),
        ("--no-routed --routed", {}),
    ],
)
@pytest.mark.parametrize("preset", PRESETS)
def test_flags_replace_values_of_the_preset(preset: str, words: str, changes: dict[str, Any]) -> None:
    config = config_of("digits", "--preset", preset, *words.split())
    assert flat(to_dict(config)) == flat(to_dict(PRESETS[preset]("digits"))) | changes


def test_the_default_preset_is_the_papers() -> None:
    assert config_of("digits") == PRESETS["paper"]("digits")
    assert config_of("digits", "--preset", "demo", "--preset=quick") == PRESETS["quick"]("digits")


def test_an_unknown_preset_is_refused(capsys: Said) -> None:
    assert main(["train", "digits", "--preset", "bst"]) == 2
    assert "Unknown preset 'bst' (perhaps you meant best)" in capsys.readouterr().err


def test_help_shows_the_defaults_of_every_preset(capsys: Said) -> None:
    assert main(["train", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: 250; best: 40; quick, demo, pretrained: 30; small: 15; modern, imagenet: 100)" in words
    assert "(default: 0.6 0.8; imagenet: 0.3 0.6 0.9)" in words
    assert "elsewhere. (best: 512; small: 32; imagenet: 256)" in words


def test_every_setting_is_a_documented_flag(capsys: Said) -> None:
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    settings = set(flat(to_dict(RunConfig("")))) - {"source"}
    assert [name for name in settings if f" {flag_of(name)} " not in text.replace(",", " ")] == []


@pytest.mark.parametrize(("words", "expected"), [([], (None, None)), (["--compile", "--no-amp"], (True, False))])
def test_flags_that_depend_on_the_device_are_undecided_unless_given(
    words: list[str], expected: tuple[bool | None, bool | None]
) -> None:
    args = parse(Args, ["digits", *words], prog="codinet train")
    assert (args.compile, args.amp) == expected


def test_the_help_states_how_long_processes_wait() -> None:
    assert Args.wait_minutes == WAIT_MINUTES


def test_resume_continues_a_run_or_starts_it(
    tmp_path: Path, train_words: Words, finished_run: Path, capsys: Said
) -> None:
    assert main(train_words(finished_run, "--resume")) == 0
    said = capsys.readouterr()
    assert "already finished" in said.err
    assert main(train_words(tmp_path / "new", "--resume")) == 0  # a run that does not exist is started


def test_a_run_on_own_data_works_from_any_folder(
    tmp_path: Path, train_words: Words, digits_npz: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, run = tmp_path / "project", tmp_path / "project" / "run"
    project.mkdir()
    shutil.copy(digits_npz, project / "mine.npz")
    monkeypatch.chdir(project)
    assert main(train_words(Path("run"), source="mine.npz")) == 0
    assert RunFolder.open(run).config.source == str(project / "mine.npz")
    assert str(tmp_path) not in json.dumps(RunFolder.open(run).recipe())
    monkeypatch.chdir("/")
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    # Move run and data.
    project.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "run"
    monkeypatch.chdir(tmp_path / "moved")
    assert main(["eval", "run", "--device", "cpu"]) == 0
    assert main(train_words(Path("run"), "--resume", source="mine.npz")) == 0
    monkeypatch.chdir("/")
    capsys.readouterr()
    assert main(["eval", str(run), "--device", "cpu"]) == 2
    assert "or set --data-root to the folder that contains mine.npz" in capsys.readouterr().err
    assert main(["eval", str(run), "--device", "cpu", "--data-root", str(tmp_path / "moved")]) == 0


def test_a_run_with_a_relative_path_to_its_data_continues(
    own_run: Path, train_words: Words, digits_npz: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((own_run / "config.json").read_text())
    content["config"]["source"] = "few.npz"
    (own_run / "config.json").write_text(json.dumps(content))
    monkeypatch.chdir(digits_npz.parent)
    assert main(train_words(own_run, "--resume", source="few.npz")) == 0
    with np.load("few.npz") as file:
        np.savez(own_run.parent / "other.npz", **{**file, "x_train": 255 - file["x_train"]})
    assert main(train_words(own_run, "--resume", source=own_run.parent / "other.npz")) == 2
    assert "was started on other data than other holds now" in capsys.readouterr().err
    assert main(train_words(own_run, "--resume", source="digits")) == 2
    assert "source was few.npz, now digits" in capsys.readouterr().err


def test_data_found_elsewhere_are_reported(tmp_path: Path, train_words: Words, digits_npz: Path, capsys: Said) -> None:
    assert main(train_words(tmp_path / "run", "--data-root", str(digits_npz.parent), source="gone/few.npz")) == 0
    assert f"codinet: gone/few.npz does not exist; using {digits_npz}.\n" in capsys.readouterr().err
    assert RunFolder.open(tmp_path / "run").config.source == str(digits_npz)


def test_images_in_folders_inside_a_class_are_reported(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    folder = picture_folder(tmp_path / "pictures")
    for name in ("dark", "light"):
        shutil.copytree(folder / name, tmp_path / "copy")
        (tmp_path / "copy").rename(folder / name / "more")
    assert main(train_words(tmp_path / "run", "--batch", "8", source=folder)) == 0
    said = capsys.readouterr().err
    assert f"codinet: images in {folder / 'dark' / 'more'} and 1 more folder are not read; " in said
    assert RunFolder.open(tmp_path / "run").load_evaluation()["n"] == 4


@pytest.mark.parametrize("side", ["8", "16"])
def test_a_cutout_as_large_as_the_images_is_refused(
    tmp_path: Path, train_words: Words, capsys: Said, side: str
) -> None:
    assert main(train_words(tmp_path / "run", "--cutout", side)) == 2
    said = capsys.readouterr().err
    assert f"--cutout must be below 8 for the images of few, which are 8×8, got {side}." in said
    assert not (tmp_path / "run").exists()
    assert main(train_words(tmp_path / "run", "--cutout", "7")) == 0


def test_steps_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, train_words: Words, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 2**30)
    folder = picture_folder(tmp_path / "pictures")
    assert main(train_words(tmp_path / "run", "--image-size", "1024", source=folder)) == 2
    assert (
        "A step on 32 views of 1024×1024 would take 4.4 GiB of memory and 1.0 GiB are free" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_flags_without_effect_are_reported(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    assert main(train_words(tmp_path / "run", "--no-routed", "--router", "cnn", "--m-d", "0.7")) == 0
    assert "these flags have no effect with --no-routed: --router, --m-d, --finetune.\n" in capsys.readouterr().err
    assert main(train_words(tmp_path / "preset", "--no-routed", "--preset", "quick", "--finetune", "0")) == 0
    assert "no effect" not in capsys.readouterr().err


def test_the_default_batch_fits_few_images(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    folder = picture_folder(tmp_path / "pictures")
    words = train_words(tmp_path / "run", "--preset", "quick", "--holdout", "4", source=folder)
    place = words.index("--batch")
    words = words[:place] + words[place + 2 :]
    assert main([*words, "--accumulate", "2"]) == 0  # 12 of 16 images are left
    assert RunFolder.open(tmp_path / "run").config.schedule.batch == 2
    capsys.readouterr()
    assert main([*words, "--batch", "13", "--out", str(tmp_path / "other")]) == 2
    assert "--batch must be at most 12, the number of training images, got 13" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_network(
    tmp_path: Path, train_words: Words, finished_run: Path, capsys: Said
) -> None:
    words = train_words(tmp_path / "run", "--start", str(finished_run))
    assert main(words) == 0
    capsys.readouterr()
    for more in (["--arch", "resnet32"], ["--arch", "resnet32", "--start", "none"]):
        assert main([*words, *more, "--resume"]) == 2
        assert capsys.readouterr().err == (
            f"codinet: {tmp_path / 'run'} was started with other settings (arch was resnet20, now resnet32); repeat "
            "them or choose another --out.\n"
        )
