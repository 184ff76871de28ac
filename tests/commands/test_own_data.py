"""Small data sets of the user's own start from a network of the zoo."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.drawn_shapes import CLASSES, save_shapes

from codinet.cli import main, parse
from codinet.commands.own_data import SMALL, Adapted, adapt_new, adapt_resumed, matching_card, start_given
from codinet.commands.train import Args, config_from
from codinet.config import RunConfig
from codinet.files import sha256_of
from codinet.presets import PRESETS
from codinet.resolving import resolve
from codinet.runs import RunFolder

Said = pytest.CaptureFixture[str]
Words = Callable[..., list[str]]


def args_of(*words: str) -> Args:
    args = parse(Args, list(words), prog="codinet train")
    assert isinstance(args, Args)
    return args


def adapted(*words: str, images: int = 360, channels: int = 3) -> tuple[RunConfig, Adapted]:
    found = adapt_new(args_of("flowers", *words), images, channels, resizable=True)
    return config_from(found.args), found


@pytest.mark.parametrize(
    ("arch", "channels", "budget", "name"),
    [
        ("resnet32", 3, 0.6, "cifar10-resnet32-065"),
        ("resnet32", 3, 0.4, "cifar10-resnet32-040"),
        ("resnet110", 3, 0.6, "cifar10-resnet110-057"),
        ("resnet32", 1, 0.6, None),
        ("resnet20", 3, 0.6, None),
    ],
)
def test_the_network_to_start_from(arch: str, channels: int, budget: float, name: str | None) -> None:
    card = matching_card(arch, channels, "fc", budget)
    assert (card and card.name) == name


def test_few_images_start_from_the_zoo() -> None:
    config, (_, note) = adapted()
    start = "zoo:cifar10-resnet32-065"
    assert (config.extra.start, config.data.image_size, config.network.arch) == (start, 32, "resnet32")
    assert config.schedule == PRESETS["small"]("").schedule
    assert note == (
        f"360 training images are few: starting from {start} at 32×32 with --preset small; --start none starts from "
        "new weights."
    )


def test_flags_that_are_given_are_kept() -> None:
    config, (_, note) = adapted("--preset", "quick", "--image-size", "64", "--budget", "0.4", "--lr", "0.02")
    assert (config.extra.start, config.data.image_size) == ("zoo:cifar10-resnet32-040", 64)
    assert (config.schedule.epochs, config.schedule.lr, config.schedule.batch) == (30, 0.02, None)
    assert note is not None
    assert "preset" not in note
    assert "32×32" not in note
    static, _ = adapted("--no-routed", "--batch", "8")
    assert (static.extra.start, static.schedule.batch) == ("zoo:cifar10-resnet32-065", 8)
    assert static.losses.budget is None


def test_very_few_images_make_smaller_steps() -> None:
    assert adapted(images=24)[0].schedule.batch == 6
    assert adapted(images=3)[0].schedule.batch == 2


def test_large_data_sets_and_other_libraries_keep_their_flags() -> None:
    for words, images in (((), SMALL), (("--arch", "my.nets:make"), 360)):
        given = args_of("flowers", *words)
        assert adapt_new(given, images, 3, resizable=True) == Adapted(given)


@pytest.mark.parametrize(
    ("arch", "channels", "said"),
    [
        ("resnet32", 1, "no resnet32 for grey images: training from new weights at 32×32 with --preset quick."),
        (
            "resnet20",
            3,
            "no resnet20 for colour images: training from new weights at 32×32 with --preset quick; --arch resnet32 "
            "starts from a trained network.",
        ),
        (
            "resnet50",  # for large images
            3,
            "no resnet50 for colour images: training from new weights with --preset quick; --arch resnet32 starts from "
            "a trained network.",
        ),
    ],
)
def test_without_a_network_in_the_zoo_the_training_is_short(arch: str, channels: int, said: str) -> None:
    config, (_, note) = adapted("--arch", arch, channels=channels)
    assert note == f"360 training images are few, and the zoo has {said}"
    assert (config.extra.start, config.data.image_size) == (None, None if arch == "resnet50" else 32)
    assert config.losses == PRESETS["quick"]("").losses
    assert (config.schedule.epochs, config.schedule.schedule, config.schedule.batch) == (30, "cosine", 32)


def test_new_weights_keep_the_flags_that_are_given() -> None:
    config, (_, note) = adapted("--epochs", "3", "--image-size", "64", "--batch", "9", channels=1)
    assert (config.schedule.epochs, config.data.image_size, config.schedule.batch) == (3, 64, 9)
    assert note is not None
    assert "training from new weights with --preset quick." in note
    args = args_of("flowers", "--preset", "imagenet")
    found = adapt_new(args, 360, 1, resizable=True)
    assert found.args is args
    assert found.note is not None
    assert found.note.endswith("training from new weights.")


@pytest.mark.parametrize("words", [[], ["--epochs", "3", "--lr", "0.2", "--alpha", "0"]])
def test_a_resumed_run_from_new_weights_repeats_its_defaults(words: list[str]) -> None:
    args = args_of("flowers", "--arch", "resnet20", *words)
    new = adapt_new(args, 360, 3, resizable=True).args
    assert adapt_resumed(args, resolve(config_from(new)), 360).args == new
    assert adapt_resumed(args, resolve(config_from(args)), 360).args is args  # of an older version, or --start none


def test_a_resumed_run_keeps_its_start() -> None:
    args = args_of("flowers", "--lr", "0.02")
    old = config_from(args_of("flowers", "--start", "zoo:gone", "--image-size", "48", "--arch", "resnet44"))
    config = config_from(adapt_resumed(args, old, 360).args)
    assert (config.extra.start, config.data.image_size, config.network.arch) == ("zoo:gone", 48, "resnet44")
    assert (config.schedule.epochs, config.schedule.lr) == (15, 0.02)
    for start in ("none", "runs/x"):
        old = config_from(args_of("flowers", "--start", start))
        assert adapt_resumed(args, old, 360).args is args


def test_a_folder_of_drawn_shapes_trains_from_the_zoo(tmp_path: Path, capsys: Said) -> None:
    shapes, out = save_shapes(tmp_path / "shapes", images=9), tmp_path / "run"
    words = ["--epochs", "1", "--finetune", "0", "--batch", "6", "--gamma", "0.1", "--device", "cpu"]
    assert main(["train", str(shapes), *words, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "codinet: 6 training images are few: starting from zoo:cifar10-resnet32-065 at 32×32" in said
    assert "6 training and 3 test images, 3 classes, 32×32\n" in said
    folder = RunFolder.open(out)
    assert (folder.data.classes, folder.data.image_shape) == (CLASSES, (3, 32, 32))
    assert folder.config.extra.start == "zoo:cifar10-resnet32-065"
    assert len(folder.config.extra.start_sha256 or "") == 64


def test_grey_images_train_from_new_weights_and_resume(tmp_path: Path, train_words: Words, capsys: Said) -> None:
    shapes, out = save_shapes(tmp_path / "shapes", images=9), tmp_path / "run"
    for file in shapes.rglob("*.jpg"):
        Image.open(file).convert("L").resize((48, 48)).save(file)
    words = ["train", str(shapes), "--arch", "resnet20", "--epochs", "1", "--finetune", "0", "--gamma", "0.1"]
    words += ["--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    assert "6 training images are few, and the zoo has no resnet20 for grey images" in capsys.readouterr().err
    config = RunFolder.open(out).config
    assert (config.data.image_size, config.schedule.batch, config.losses.m_d) == (32, 2, 1.0)
    assert main([*words, "--resume"]) == 0
    said = capsys.readouterr().err
    assert "already finished" in said
    assert "images are few" not in said


def test_the_start_is_recorded_as_if_it_had_been_given(
    zoo: Path, tmp_path: Path, train_words: Words, assert_same_run: Callable[[Path, Path], None], capsys: Said
) -> None:
    name = "digits-resnet20-06"
    for out, more in (("chosen", []), ("given", ["--start", f"zoo:{name}", "--preset", "small"])):
        assert main(train_words(tmp_path / out, "--finetune", "0", "--gamma", "0.1", *more, start=None)) == 0
        assert ("images are few" in capsys.readouterr().err) == (out == "chosen")
    assert_same_run(tmp_path / "chosen", tmp_path / "given")
    ours, theirs = (json.loads((tmp_path / out / "config.json").read_text())["config"] for out in ("chosen", "given"))
    assert ours == theirs
    assert ours["extra"]["start_sha256"] == sha256_of(zoo / f"{name}.safetensors")
    assert ours["data"]["image_size"] is None  # arrays cannot be resized
    assert main(train_words(tmp_path / "chosen", "--finetune", "0", "--gamma", "0.1", "--resume", start=None)) == 0
    said = capsys.readouterr().err
    assert "already finished" in said
    assert "images are few" not in said


def test_new_weights_can_be_asked_for() -> None:
    for word in ("none", "None", "NONE"):
        args = args_of("flowers", "--start", word)
        assert start_given(args)
        assert config_from(args).extra.start is None
    assert start_given(args_of("flowers", "--teacher", "runs/x"))
    assert not start_given(args_of("flowers"))
