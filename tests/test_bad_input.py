"""Whatever is wrong with what the user gives: exit code 2, one line on stderr with the cause and the way out."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from codinet.cli import main

Said = pytest.CaptureFixture[str]


@dataclass
class Place:
    """A folder to make a mess in, and the words of a training that would work."""

    folder: Path
    finished: Path
    npz: Path
    words: Callable[..., list[str]]

    def train(self, *more: str, source: Path | str | None = None, out: Path | None = None) -> list[str]:
        words = "--start", "none", *more  # without a note about few images
        return self.words(out or self.folder / "out", *words, source=source or self.npz)

    def run(self) -> Path:
        """A copy of a finished run."""
        return shutil.copytree(self.finished, self.folder / "run")

    def arrays(self, **arrays: Any) -> Path:
        """An .npz file with some arrays replaced."""
        with np.load(self.npz) as file:
            np.savez(self.folder / "mine.npz", **{**file, **arrays})
        return self.folder / "mine.npz"

    def pictures(self, *classes: str) -> Path:
        """A folder of five images a class."""
        for name in classes:
            (self.folder / "pictures" / name).mkdir(parents=True)
            for number in range(5):
                Image.new("L", (8, 8), number).save(self.folder / "pictures" / name / f"{number}.png")
        return self.folder / "pictures"


@pytest.fixture
def place(tmp_path: Path, finished_run: Path, digits_npz: Path, train_words: Callable[..., list[str]]) -> Place:
    return Place(tmp_path, finished_run, digits_npz, train_words)


def refused(words: list[str], capsys: Said) -> str:
    """The one line that a command ends with."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("codinet: ")
    assert said.err.count("\n") == 1, said.err
    assert said.err.endswith((".\n", "?\n"))
    assert "Traceback" not in said.err
    return said.err


COMMANDS = [
    # what is given, what is said of it, the way out
    (["trian"], "Unknown command 'trian'", "perhaps you meant train"),
    (["train", "digits", "--badflag"], "Unrecognized options: --badflag", "codinet train --help"),
    (["train", "digits", "--epoch", "3"], "Unrecognized options: --epoch", "perhaps you meant --epochs"),
    (["train", "digits", "--epochs", "few"], "--epochs must be a whole number, got 'few'", "codinet train --help"),
    (["train"], "SOURCE is required", "codinet train --help"),
    (["train", "cifar11"], "Unknown data set 'cifar11'", "perhaps you meant cifar10"),
    (["train", "digits", "--preset", "papre"], "Unknown preset 'papre'", "perhaps you meant paper"),
    (["train", "digits", "--device", "gpu"], "Device 'gpu' is not available", "use --device cpu"),
    (["eval", "no/such/run"], "There is no run folder no/such/run", "codinet train"),
    (["predict", "no/such/run", "a.png"], "There is no run folder", "codinet train"),
    (["eval"], "Missing from codinet eval", "codinet eval --help"),
    (["data", "download", "cifr10"], "Unknown data set 'cifr10'", "perhaps you meant cifar10"),
    (["data", "verify"], "verify requires a data set", "codinet data verify cifar10"),
]


@pytest.mark.parametrize(("words", "cause", "way_out"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS])
def test_words_that_are_no_command(words: list[str], cause: str, way_out: str, capsys: Said) -> None:
    sentence = refused(words, capsys)
    assert cause in sentence
    assert way_out in sentence


SETTINGS = [
    (["--arch", "resnet21"], "Unknown architecture 'resnet21'", "perhaps you meant resnet"),
    (["--router", "fcc"], "--router must be one of 'fc', 'cnn', 'rnn'", "codinet train --help"),
    (["--budget", "0"], "--budget must be above 0", "at most 1 (the cost of the static network), got 0"),
    (["--budget", "1.5"], "--budget must be above 0", "at most 1 (the cost of the static network), got 1.5"),
    (["--budget", "0.001"], "The budget must be at least 0.0090", "with every block skipped, got 0.001"),
    (["--budget", "0.5", "--gamma", "0.1"], "--budget and --gamma exclude each other", "leave one out"),
    (["--budget", "nan"], "--budget must be", "a finite number, got nan"),
    (["--batch", "1"], "--batch must be", "2 or more, got 1"),
    (["--batch", "65"], "--batch must be at most 64", "the number of training images, got 65"),
    (["--views", "1"], "compares views of an image", "use --views 2 or more, or --alpha 0"),
    (["--epochs", "0"], "--epochs must be", "1 or more, got 0"),
    (["--finetune", "-1"], "--finetune must be 0 or more, got -1", "0 leaves stage 2 out"),
    (["--lr", "-0.1"], "--lr must be", "above 0, got -0.1"),
    (["--lr", "inf"], "--lr must be", "a finite number, got inf"),
    (["--momentum", "1"], "--momentum must be", "at least 0 and below 1, got 1"),
    (["--tau", "0"], "--tau must be", "at least 1e-06, got 0"),
    (["--alpha", "-1"], "Loss weights", "must not be negative"),
    (["--holdout", "64"], "--holdout must be below 64", "the number of training images"),
    (["--image-size", "16"], "few has images of 8×8", "omit the image size"),
    (["--seed", "-1"], "--seed must be a whole number", "from 0 to 4294967295, got -1"),
    (["--no-routed", "--budget", "0.5"], "--budget requires routers", "leave one of the two out"),
    (["--milestones", "30", "60"], "--milestones must be rising numbers between 0 and 1", "such as 0.6 0.8"),
    (["--milestones", "0.5", "--schedule", "cosine"], "--milestones requires", "--schedule multistep, got cosine"),
    (["--label-smoothing", "1"], "--label-smoothing must be", "at least 0 and below 1, got 1"),
    (["--ema", "1"], "--ema must be", "at least 0 and below 1, got 1"),
    (["--distill", "0.5"], "--distill requires --teacher", "a run folder or zoo:NAME"),
    (["--teacher", "no/run", "--distill", "0"], "--teacher requires", "--distill above 0, got 0"),
    (["--teacher", "no/run"], "--teacher no/run cannot be used: There is no", "codinet train"),
    (["--start", "no/run"], "--start no/run cannot be used: There is no run folder", "codinet train"),
    (["--device", "cuda:99"], "Device 'cuda:99' is not available", "use --device cpu"),
]


@pytest.mark.parametrize(("words", "cause", "way_out"), SETTINGS, ids=[" ".join(words) for words, *_ in SETTINGS])
def test_settings_that_cannot_work(words: list[str], cause: str, way_out: str, place: Place, capsys: Said) -> None:
    sentence = refused(place.train(*words), capsys)
    assert cause in sentence
    assert way_out in sentence
    assert not (place.folder / "out").exists()  # nothing stands in the way of the next try


# --- data


def missing_folder(place: Place) -> Path:
    return place.folder / "nowhere"


def missing_npz(place: Place) -> Path:
    return place.folder / "nothing.npz"


def empty_folder(place: Place) -> Path:
    (place.folder / "pictures").mkdir()
    return place.folder / "pictures"


def class_without_images(place: Place) -> Path:
    folder = place.pictures("cat", "dog")
    (folder / "fox").mkdir()
    return folder


def one_class_only(place: Place) -> Path:
    return place.pictures("cat")


def unreadable_image(place: Place) -> Path:
    folder = place.pictures("cat", "dog")
    (folder / "dog" / "torn.png").write_bytes((folder / "dog" / "0.png").read_bytes()[:45])
    return folder


def no_image(place: Place) -> Path:
    folder = place.pictures("cat", "dog")
    (folder / "dog" / "song.png").write_bytes(b"ID3 this is music")
    return folder


def another_kind_of_file(place: Place) -> Path:
    (place.folder / "table.csv").write_text("1,2")
    return place.folder / "table.csv"


def torn_npz(place: Place) -> Path:
    file = place.arrays()
    file.write_bytes(file.read_bytes()[:1000])
    return file


def labels_below_zero(place: Place) -> Path:
    return place.arrays(y_train=np.full(64, -1))


def labels_beyond_the_classes(place: Place) -> Path:
    return place.arrays(classes=np.array(["a", "b"]))


def objects_in_npz(place: Place) -> Path:
    return place.arrays(y_train=np.array([{}] * 64, dtype=object))


def fewer_labels_than_images(place: Place) -> Path:
    return place.arrays(y_train=np.zeros(63, dtype=np.int64))


def floats_out_of_range(place: Place) -> Path:
    return place.arrays(x_train=np.full((64, 8, 8), 7.5))


def images_of_another_size(place: Place) -> Path:
    return place.arrays(x_test=np.zeros((40, 9, 9), np.uint8))


def arrays_of_other_names(place: Place) -> Path:
    np.savez(place.folder / "mine.npz", pictures=np.zeros(3))
    return place.folder / "mine.npz"


DATA = [
    (missing_folder, "does not exist", "set --data-root to the folder that contains it"),
    (missing_npz, "does not exist", "check the path"),
    (empty_folder, "has no class folders", "a separate folder"),
    (class_without_images, "fox has no images", "or remove it"),
    (one_class_only, "one class folder only (cat)", "at least two"),
    (unreadable_image, "torn.png is damaged or truncated", "replace or remove it"),
    (no_image, "song.png is not an image", "use one of PNG"),
    (another_kind_of_file, "table.csv is neither an image folder nor an .npz file", "give one of these"),
    (torn_npz, "mine.npz is damaged", "write it again"),
    (labels_below_zero, "runs from -1 to -1", "integers from 0"),
    (labels_beyond_the_classes, "labels from 0 to 9 but 2 classes", "between 0 and 1"),
    (objects_in_npz, "has Python objects in 'y_train'", "save numbers"),
    (fewer_labels_than_images, "64 images in 'x_train' but 63 labels", "each image needs one label"),
    (floats_out_of_range, "floats from 7.5", "scale them to 0 to 1"),
    (images_of_another_size, "test images of shape (1, 9, 9)", "make them the same"),
    (arrays_of_other_names, "has nothing", "it needs x_train"),
]


@pytest.mark.parametrize(("make", "cause", "way_out"), DATA, ids=[make.__name__ for make, *_ in DATA])
def test_data_that_cannot_be_used(
    make: Callable[[Place], Path], cause: str, way_out: str, place: Place, capsys: Said
) -> None:
    sentence = refused(place.train(source=make(place)), capsys)
    assert cause in sentence
    assert way_out in sentence
    assert not (place.folder / "out").exists()


def test_data_that_has_a_name_and_is_not_there(place: Place, capsys: Said) -> None:
    sentence = refused(place.train("--data-root", str(place.folder), source="cifar10"), capsys)
    assert "CIFAR-10 was not found under" in sentence
    assert "or set --data-root or CODINET_DATA to its folder" in sentence
    assert "codinet data download cifar10" in sentence


def test_an_official_file_cut_short(place: Place, capsys: Said) -> None:
    folder = place.folder / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(bytes(3073))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    (folder / "data_batch_4.bin").write_bytes(bytes(3000))
    sentence = refused(place.train("--data-root", str(place.folder), source="cifar10"), capsys)
    assert "data_batch_4.bin is truncated: it has 3,000 bytes" in sentence
    assert "codinet data download cifar10" in sentence


# --- run folders


def damaged_weights(run: Path) -> None:
    content = bytearray((run / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (run / "model.safetensors").write_bytes(content)


def torn_weights(run: Path) -> None:
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:5000])


def foreign_weights(run: Path) -> None:
    save_file({"weight": torch.zeros(3)}, run / "model.safetensors")


def no_weights(run: Path) -> None:
    (run / "model.safetensors").unlink()


def damaged_config(run: Path) -> None:
    (run / "config.json").write_text((run / "config.json").read_text()[:100])


def config_of_another_kind(run: Path) -> None:
    (run / "config.json").write_text("{}")


def config_with_another_network(run: Path) -> None:
    content = json.loads((run / "config.json").read_text())
    content["config"]["network"]["arch"] = "resnet32"
    (run / "config.json").write_text(json.dumps(content))


def no_config(run: Path) -> None:
    (run / "config.json").unlink()


def data_moved_away(run: Path) -> None:
    content = json.loads((run / "config.json").read_text())
    content["config"]["source"] = "gone/few.npz"
    (run / "config.json").write_text(json.dumps(content))


RUNS = [
    (damaged_weights, "model.safetensors is damaged: its contents do not match", "restore it or train again"),
    (torn_weights, "model.safetensors is damaged", "restore it or train again"),
    (foreign_weights, "was not written by codinet", "restore it or train again"),
    (no_weights, "model.safetensors is missing", "restore it with codinet train … --resume"),
    (damaged_config, "config.json cannot be read as JSON", "restore it or train again"),
    (config_of_another_kind, "config.json is not a run's config", "restore it or train again"),
    (
        config_with_another_network,
        "holds the weights of another network than resnet32",
        "restore the file or train again",
    ),
    (no_config, "config.json does not exist", "a run folder"),
    (
        data_moved_away,
        "were in gone/few.npz, which does not exist",
        "set --data-root to the folder that contains few.npz",
    ),
]


@pytest.mark.parametrize(("spoil", "cause", "way_out"), RUNS, ids=[spoil.__name__ for spoil, *_ in RUNS])
def test_run_folders_that_cannot_be_used(
    spoil: Callable[[Path], None], cause: str, way_out: str, place: Place, capsys: Said
) -> None:
    run = place.run()
    spoil(run)
    sentence = refused(["eval", str(run)], capsys)
    assert cause in sentence
    assert way_out in sentence


SOURCES = [case for case in RUNS if case[0] not in (config_with_another_network, data_moved_away)]


@pytest.mark.parametrize("flag", ["--start", "--teacher"])
@pytest.mark.parametrize(("spoil", "cause", "way_out"), SOURCES, ids=[spoil.__name__ for spoil, *_ in SOURCES])
def test_runs_that_cannot_be_learnt_from(
    flag: str, spoil: Callable[[Path], None], cause: str, way_out: str, place: Place, capsys: Said
) -> None:
    run = place.run()
    spoil(run)
    sentence = refused(place.train(flag, str(run), *(["--distill", "0.5"] if flag == "--teacher" else [])), capsys)
    assert f"{flag} {run} cannot be used: " in sentence
    assert cause in sentence
    assert way_out in sentence
    assert not (place.folder / "out").exists()


def test_a_start_from_another_network(place: Place, capsys: Said) -> None:
    sentence = refused(place.train("--start", str(place.finished), "--arch", "resnet32"), capsys)
    assert "a resnet20, does not fit this network" in sentence
    assert "use a run of the same architecture" in sentence
    assert not (place.folder / "out").exists()


def test_a_teacher_of_other_classes(place: Place, capsys: Said) -> None:
    source = place.arrays(y_train=np.arange(64) % 3, y_test=np.arange(40) % 3)
    words = place.train("--teacher", str(place.finished), "--distill", "0.5", source=source)
    sentence = refused(words, capsys)
    assert "The teacher must be trained on the classes and the image size" in sentence
    assert "mine has 3 classes" in sentence
    assert not (place.folder / "out").exists()


@pytest.mark.parametrize(
    ("words", "cause", "way_out"),
    [
        (["--threshold", "1.5"], "--threshold must be a number from 0 to 1, got 1.5", "from 0 to 1"),
        (["--threshold", "nan"], "--threshold must be a number from 0 to 1, got nan", "from 0 to 1"),
        (["--batch", "0"], "--batch must be 1 or more", "got 0"),
        (["--device", "meta"], "Device 'meta' is not available", "use --device cpu"),
        (["--paths", "/dev/null/table"], "Could not write /dev/null/table", "choose another folder"),
    ],
)
def test_evaluations_that_cannot_be_made(
    words: list[str], cause: str, way_out: str, finished_run: Path, capsys: Said
) -> None:
    sentence = refused(["eval", str(finished_run), *words], capsys)
    assert cause in sentence
    assert way_out in sentence


def test_a_run_that_is_there_already(place: Place, capsys: Said) -> None:
    sentence = refused(place.train(out=place.run()), capsys)
    assert "already holds a run" in sentence
    assert "continue it with --resume" in sentence


def test_a_folder_of_other_things(place: Place, capsys: Said) -> None:
    (place.folder / "out").mkdir()
    (place.folder / "out" / "thesis.tex").write_text("precious")
    sentence = refused(place.train(), capsys)
    assert "exists and is not empty; choose another --out" in sentence


def test_a_run_begun_with_other_settings(place: Place, capsys: Said) -> None:
    sentence = refused(place.words(place.run(), "--resume", "--lr", "0.2"), capsys)
    assert "started with other settings (lr was 0.1, now 0.2)" in sentence
    assert "repeat them or choose another --out" in sentence


def test_a_run_begun_on_other_data(place: Place, capsys: Said) -> None:
    file = place.arrays()
    assert main(place.train(source=file)) == 0
    capsys.readouterr()
    place.arrays(y_train=np.arange(64) % 10)
    sentence = refused(place.train("--resume", source=file), capsys)
    assert "was started on other data than mine holds now" in sentence
    assert "restore the data or choose another --out" in sentence


def test_a_folder_below_a_file(place: Place, capsys: Said) -> None:
    sentence = refused(place.train(out=place.npz / "run"), capsys)
    assert "Cannot write to the folder" in sentence
    assert "choose another --out" in sentence


def test_a_file_where_the_folder_should_be(place: Place, capsys: Said) -> None:
    sentence = refused(place.train(out=place.npz), capsys)
    assert "is a file, not a folder; choose another --out" in sentence


def test_a_name_that_no_system_takes(place: Place, capsys: Said) -> None:
    sentence = refused(place.train(out=place.folder / ("x" * 300)), capsys)
    assert "File name too long; check the path" in sentence


def test_no_space_left(place: Place, disk_of: Callable[[int], AbstractContextManager[None]], capsys: Said) -> None:
    with disk_of(100):
        sentence = refused(place.train(), capsys)
    assert "Could not write" in sentence
    assert "config.json" in sentence
    assert "free some space" in sentence


def test_a_learning_rate_that_breaks_the_losses(place: Place, capsys: Said) -> None:
    assert main(place.train("--lr", "1e9")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    sentence = said.err.splitlines()[-1]
    assert re.search(r"The \w+ loss was not finite at step \d of epoch 1 of the joint stage", sentence)
    assert "start again with a lower --lr" in sentence
    assert not list((place.folder / "out" / "checkpoints").glob("*.safetensors"))
