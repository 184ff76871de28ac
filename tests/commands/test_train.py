import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codinet.cli import main, parse
from codinet.commands.train import Args, defaults
from codinet.data import memory
from codinet.runs import RunFolder

Said = pytest.CaptureFixture[str]
Words = Callable[..., list[str]]
EVAL_KEYS = {"accuracy", "macs", "paper_gmaccs", "cost_share", "mean_blocks", "distinct_paths", "path_entropy", "n"}


def flags(*words: str) -> Args:
    return parse(Args, list(words), prog="codinet train", default=defaults(list(words)))


def test_json_is_one_document_on_stdout_and_progress_goes_to_stderr(
    tmp_path: Path, train_words: Words, capsys: Said
) -> None:
    assert main(train_words(tmp_path / "run", "--json")) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["run"] == str(tmp_path / "run")
    assert set(result) >= EVAL_KEYS
    assert "Training resnet20 on few" in said.err


def test_people_get_a_table(tmp_path: Path, train_words: Words, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that the folder's name is short and is not broken in two
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


def test_without_a_folder_the_run_is_named_after_what_it_is(
    tmp_path: Path, train_words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = train_words(Path("x"), "--no-routed", "--seed", "3")
    place = words.index("--out")
    assert main(words[:place] + words[place + 2 :]) == 0
    assert RunFolder.open(Path("runs/few-resnet20-static-seed3")).finished


def test_flags_replace_a_presets_values_one_by_one() -> None:
    args = flags("digits", "--preset", "demo", "--epochs", "3")
    assert (args.network.arch, args.losses.budget) == ("resnet20", 0.6)
    assert (args.schedule.epochs, args.schedule.finetune) == (3, 6)
    assert flags("digits", "--preset=quick").losses.alpha == 1.0
    assert flags("digits").schedule.epochs == 250


@pytest.mark.parametrize("word", ["--no-routed", "--no_routed"])
def test_the_static_form_of_a_preset_has_no_budget_unless_it_is_stated(word: str) -> None:
    args = flags("digits", "--preset", "demo", word)
    assert (args.network.routed, args.network.arch, args.losses.budget) == (False, "resnet20", None)
    assert flags("digits", "--preset", "demo", word, "--budget", "0.5").losses.budget == 0.5


@pytest.mark.parametrize(
    ("words", "compile", "amp"),
    [([], False, False), (["--compile"], True, False), (["--amp"], False, True)],
)
def test_nothing_is_compiled_on_a_cpu_unless_asked(words: list[str], compile: bool, amp: bool) -> None:
    args = flags("digits", "--device", "cpu", *words)
    assert (args.compile, args.amp) == (compile, amp)


def test_a_run_goes_on_with_the_same_words_and_resume(
    tmp_path: Path, train_words: Words, finished_run: Path, capsys: Said
) -> None:
    assert main(train_words(finished_run, "--resume")) == 0
    said = capsys.readouterr()
    assert "already finished" in said.err
    assert main(train_words(tmp_path / "new", "--resume")) == 0  # where there is none, it is begun


def test_a_run_on_own_data_is_measured_and_goes_on_from_anywhere(
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
    # All of it is moved.
    project.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "run"
    monkeypatch.chdir(tmp_path / "moved")
    assert main(["eval", "run", "--device", "cpu"]) == 0
    assert main(train_words(Path("run"), "--resume", source="mine.npz")) == 0
    monkeypatch.chdir("/")
    capsys.readouterr()
    assert main(["eval", str(run), "--device", "cpu"]) == 2
    assert "mine.npz here or under data; check the path, or point --data-root" in capsys.readouterr().err
    assert main(["eval", str(run), "--device", "cpu", "--data-root", str(tmp_path / "moved")]) == 0


def test_a_run_from_before_paths_were_absolute_goes_on(
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


def test_data_that_are_found_elsewhere_are_told_of(
    tmp_path: Path, train_words: Words, digits_npz: Path, capsys: Said
) -> None:
    assert main(train_words(tmp_path / "run", "--data-root", str(digits_npz.parent), source="gone/few.npz")) == 0
    assert f"codinet: there is no gone/few.npz; the images are those of {digits_npz}.\n" in capsys.readouterr().err
    assert RunFolder.open(tmp_path / "run").config.source == str(digits_npz)


def test_images_in_folders_inside_a_class_are_told_of(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    folder = picture_folder(tmp_path / "pictures")
    for name in ("dark", "light"):
        shutil.copytree(folder / name, tmp_path / "copy")
        (tmp_path / "copy").rename(folder / name / "more")
    assert main(train_words(tmp_path / "run", "--batch", "8", source=folder)) == 0
    said = capsys.readouterr().err
    assert f"codinet: images in {folder / 'dark' / 'more'} and 1 folder more are not read; " in said
    assert RunFolder.open(tmp_path / "run").load_evaluation()["n"] == 4


@pytest.mark.parametrize("side", ["8", "16"])
def test_a_square_that_would_blank_whole_images_is_refused(
    tmp_path: Path, train_words: Words, capsys: Said, side: str
) -> None:
    assert main(train_words(tmp_path / "run", "--cutout", side)) == 2
    said = capsys.readouterr().err
    assert f"--cutout {side} is a square as large as the images of few, which are 8×8; use less than 8." in said
    assert not (tmp_path / "run").exists()
    assert main(train_words(tmp_path / "run", "--cutout", "7")) == 0


def test_steps_that_no_memory_holds_are_refused(
    tmp_path: Path, train_words: Words, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    folder = picture_folder(tmp_path / "pictures")
    assert main(train_words(tmp_path / "run", "--image-size", "1024", source=folder)) == 2
    assert (
        "A step on 32 views of 1024×1024 would take 4.4 GiB of memory and 1.0 GiB are free" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_flags_that_only_routing_uses_are_told_of_without_it(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    assert main(train_words(tmp_path / "run", "--no-routed", "--router", "cnn", "--m-d", "0.7")) == 0
    assert "--no-routed leaves no routers, so --router, --m-d will change nothing.\n" in capsys.readouterr().err
    assert main(train_words(tmp_path / "preset", "--no-routed", "--preset", "quick")) == 0
    assert "change nothing" not in capsys.readouterr().err
