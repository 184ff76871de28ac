import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import create_model
from codinet.config import RunConfig
from codinet.cost import block_costs
from codinet.data import Dataset, Split
from codinet.data.resident import Resident
from codinet.errors import UserError
from codinet.evaluate import evaluate
from codinet.files import DamagedError, load_tensors, save_tensors
from codinet.runs import DataBrief, RunFolder, build_model, load_weights


@pytest.fixture
def folder(tmp_path: Path, small_run: RunConfig, few: Dataset) -> RunFolder:
    """A run that has just begun."""
    return RunFolder.create(tmp_path / "deep" / "run", small_run, DataBrief.of(few), {"torch": "2"})


def test_a_folder_is_opened_as_it_was_created(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path) == folder


def test_the_brief_says_what_a_network_needs_of_its_data(few: Dataset) -> None:
    brief = DataBrief.of(few)
    assert (brief.name, brief.image_shape, len(brief.classes)) == ("few", (1, 8, 8), 10)
    assert brief == DataBrief.of(replace(few, pad=7))


def change_a_label(data: Dataset) -> Dataset:
    labels_N = data.train.labels_N.clone()
    labels_N[0] += 1
    return replace(data, train=Split(data.train.images_NCHW, labels_N))


def change_a_pixel(data: Dataset) -> Dataset:
    images_NCHW = data.test.images_NCHW.clone()
    images_NCHW[-1, 0, 0, 0] += 1
    return replace(data, test=Split(images_NCHW, data.test.labels_N))


def change_the_order(data: Dataset) -> Dataset:
    return replace(data, train=data.train.subset(torch.arange(len(data.train)).flip(0)))


@pytest.mark.parametrize("change", [change_a_label, change_a_pixel, change_the_order])
def test_other_data_has_another_digest(few: Dataset, change: Callable[[Dataset], Dataset]) -> None:
    assert DataBrief.of(change(few)).sha256 != DataBrief.of(few).sha256


def test_data_is_the_same_however_its_mean_was_rounded(few: Dataset) -> None:
    brief = DataBrief.of(few)
    assert brief.same_images(replace(brief, name="copy", mean=(1.0,), std=(2.0,)))
    assert not brief.same_images(DataBrief.of(change_a_pixel(few)))
    assert not brief.same_images(replace(brief, classes=tuple("abcdefghij")))


def test_images_are_normalised_as_the_network_was_trained_to_see_them(folder: RunFolder) -> None:
    trained = replace(folder, data=replace(folder.data, mean=(90.0,), std=(40.0,)))
    found = trained.load_dataset(Path())
    assert (found.mean, found.std) == ((90.0,), (40.0,))


def test_only_a_runs_own_data_is_loaded_as_such(folder: RunFolder) -> None:
    rounded = replace(folder, data=replace(folder.data, mean=(folder.data.mean[0] + 1e-9,)))
    assert len(rounded.load_own_dataset(Path()).test) == 40
    for change in ({"sha256": "0" * 64}, {"classes": tuple("abcdefghij")}):
        other = replace(folder, data=replace(folder.data, **change))
        with pytest.raises(UserError, match=r"was trained on other data than few holds now; point --data-root to it"):
            other.load_own_dataset(Path())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"Cannot make the run folder .*file/run: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", small_run, DataBrief.of(few), {})


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no run folder .*none; make one with codinet train"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        RunFolder.open(tmp_path)


def drop(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def change(content: dict[str, Any]) -> Any:
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        return content

    return change


def data(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: {**content, "data": {**content["data"], **values}}


def config(part: str, **values: Any) -> Callable[[dict[str, Any]], Any]:
    def change(content: dict[str, Any]) -> Any:
        content["config"][part] |= values
        return content

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: [content], r"it holds \[.*, not named entries"),
        (lambda content: "text", "it holds 'text', not named entries"),
        (lambda content: {**content, "format": 7}, "its format is 7, and this version reads 1"),
        (lambda content: {**content, "data": []}, r"data must have the entries classes, .*, got \[\]"),
        (lambda content: {**content, "data": {}}, r"data must have the entries classes, .*, got {}"),
        (lambda content: {**content, "environment": None}, "environment holds None, which does not fit"),
        (data(classes="0123456789"), "data.classes holds '0123456789', which does not fit"),
        (data(classes=[]), r"data.classes holds \[\]"),
        (data(classes=[0, 1]), r"data.classes holds \[0, 1\]"),
        (data(image_shape=[1, 8]), r"data.image_shape holds \[1, 8\]"),
        (data(image_shape=[1, 8, 0]), r"data.image_shape holds \[1, 8, 0\]"),
        (data(image_shape=[1, 8.0, 8]), r"data.image_shape holds \[1, 8.0, 8\]"),
        (data(image_shape="1x8"), "data.image_shape holds '1x8'"),
        (data(mean=3.5), "data.mean holds 3.5"),
        (data(mean=["3.5"]), r"data.mean holds \['3.5'\]"),
        (data(mean=[3.5, 3.5]), r"data.mean holds \[3.5, 3.5\]"),
        (data(std=[0.0]), r"data.std holds \[0.0\]"),
        (data(std=[-1.0]), r"data.std holds \[-1.0\]"),
        (data(image_shape=[3, 10**5, 10**5]), r"data.image_shape holds \[3, 100000, 100000\]"),
        (data(name=None), "data.name holds None"),
        (data(sha256=12), "data.sha256 holds 12"),
        (drop("environment"), "environment"),
        (drop("config"), "config"),
        (drop("data", "sha256"), "sha256"),
        (drop("config", "network", "arch"), "missing entries arch"),
        (config("network", arch="resnet21"), "'resnet21'"),
        (config("network", tau=-1.0), "--tau -1"),
        (config("losses", budget=7.0), "budget of 7"),
        (config("schedule", views=0), "--views 0"),
    ],
)
def test_a_config_of_another_kind_is_refused(folder: RunFolder, change: Callable[[Any], Any], words: str) -> None:
    file = folder.path / "config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DamagedError, match=rf"config\.json is not a run's config \(.*{words}.*\); restore it or train"):
        RunFolder.open(folder.path)


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "1e999", "[" * 100_000])
def test_a_config_with_numbers_that_are_not_finite_or_endless_nesting_is_refused(folder: RunFolder, odd: str) -> None:
    file = folder.path / "config.json"
    file.write_text(json.dumps(data(std=["odd"])(json.loads(file.read_text()))).replace('"odd"', odd))
    with pytest.raises(DamagedError, match=r"config\.json cannot be read as JSON"):
        RunFolder.open(folder.path)


def test_a_new_run_has_no_metrics_and_is_not_finished(folder: RunFolder) -> None:
    assert folder.metrics() == []
    assert not folder.finished
    with pytest.raises(UserError, match=r"holds no finished network; finish it with codinet train … --resume"):
        folder.load_model()


def test_metrics_are_added_line_by_line(folder: RunFolder) -> None:
    folder.add_metrics({"epoch": 1})
    folder.add_metrics({"epoch": 2})
    assert folder.metrics() == [{"epoch": 1}, {"epoch": 2}]
    folder.keep_metrics(folder.metrics()[:1])
    assert folder.metrics() == [{"epoch": 1}]


@pytest.mark.parametrize("cut", ['{"epoch": 2, "lo', "{", '{"epoch": 2, "loss": 1.5'])
def test_a_line_cut_short_is_left_out(folder: RunFolder, cut: str) -> None:
    folder.add_metrics({"epoch": 1})
    with folder.metrics_file.open("a") as file:
        file.write(cut)
    assert folder.metrics() == [{"epoch": 1}]


@pytest.mark.parametrize(
    "bad",
    [
        *(b'{"epoch": "\xff\xfe"}', b"[2]", b"2", b"null", b'{"epoch": [2]}', b'{"epoch": "2"}', b'{"epoch": {}}'),
        *(b'{"epoch": true}', b'{"epoch": NaN}', b'{"stage": 3}', b"[" * 100_000),
    ],
)
def test_metrics_end_before_the_first_line_that_is_not_a_row(folder: RunFolder, bad: bytes) -> None:
    folder.metrics_file.write_bytes(b'{"epoch": 1}\n' + bad + b'\n{"epoch": 3}\n')
    assert folder.metrics() == [{"epoch": 1}]


def test_a_loss_that_is_not_finite_is_null_in_the_metrics(folder: RunFolder) -> None:
    folder.add_metrics({"epoch": 1, "stage": "joint", "held_loss": float("nan"), "loss": float("inf")})
    assert folder.metrics() == [{"epoch": 1, "stage": "joint", "held_loss": None, "loss": None}]


def test_metrics_that_are_a_named_pipe_are_refused_and_do_not_block(folder: RunFolder) -> None:
    os.mkfifo(folder.metrics_file)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        folder.metrics()


def test_a_row_of_metrics_is_on_the_disk_before_the_training_goes_on(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _handle: synced.append(folder.metrics_file.read_text()))
    folder.add_metrics({"epoch": 1})
    assert synced == ['{"epoch": 1}\n']


@pytest.mark.parametrize(
    "change",
    [
        lambda _figures: [],
        lambda figures: {**figures, "accuracy": "94"},
        lambda figures: {**figures, "n": 40.0},
        lambda figures: {**figures, "always_on": True},
        lambda figures: {**figures, "accuracy": 100.5},
        lambda figures: {**figures, "loss": -1.0},
        lambda figures: {**figures, "macs": 0},
        lambda figures: {**figures, "mean_blocks": 10},
        lambda figures: {**figures, "accuracy": [94]},
        lambda figures: {key: value for key, value in figures.items() if key != "loss"},
    ],
)
def test_figures_that_are_missing_or_impossible_are_refused(
    own_run: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    file = own_run / "evaluation.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DamagedError, match=r"evaluation\.json holds no evaluation \(.* does not fit\); restore it"):
        RunFolder.open(own_run).load_evaluation()


def test_a_whole_number_is_a_figure(own_run: Path) -> None:
    file = own_run / "evaluation.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "accuracy": 90}))
    assert RunFolder.open(own_run).load_evaluation()["accuracy"] == 90


def test_who_needs_a_finished_run_is_told_how_to_finish_it(folder: RunFolder, finished_run: Path) -> None:
    RunFolder.open(finished_run).require_finished()
    with pytest.raises(UserError, match="is not finished; finish it with codinet train … --resume"):
        folder.require_finished()


def test_how_long_a_run_took_may_be_unknown_and_not_damaged(folder: RunFolder) -> None:
    assert folder.wall_seconds() is None
    (folder.path / "timing.json").write_text('{"seconds": null}')
    assert folder.wall_seconds() is None
    for odd in ("[]", '{"seconds": "long"}', '{"seconds": [1]}', '{"seconds": true}'):
        (folder.path / "timing.json").write_text(odd)
        with pytest.raises(DamagedError, match=r"timing\.json does not say how long the run took; restore or remove"):
            folder.wall_seconds()


def test_a_clock_that_was_set_back_leaves_the_time_unknown(
    own_run: Path, monkeypatch: pytest.MonkeyPatch, few: Dataset
) -> None:
    folder = RunFolder.open(own_run)
    model = folder.load_model()
    resident = Resident.of(few.test, few, torch.device("cpu"))
    evaluation = evaluate(model, resident.batches(20), block_costs(model, few.image_shape))
    started = json.loads((own_run / "config.json").read_text())["started"]
    for now, seconds in ((started + 60, 60), (started - 60, None)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        folder.save_results(model, evaluation)
        assert folder.wall_seconds() == seconds
    (own_run / "timing.json").write_text('{"seconds": -60.0}')  # of an older version
    assert folder.wall_seconds() is None


def test_results_come_back_as_they_were_saved(folder: RunFolder, few: Dataset) -> None:
    model = build_model(folder.config.network, folder.data)
    resident = Resident.of(few.test, few, torch.device("cpu"))
    evaluation = evaluate(model, resident.batches(20), block_costs(model, few.image_shape))
    folder.save_results(model, evaluation)
    assert folder.finished
    assert folder.load_evaluation() == evaluation.summary()
    assert all(torch.equal(a, b) for a, b in zip(folder.load_paths(), evaluation.paths, strict=True))
    loaded = folder.load_model()
    assert not loaded.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_a_finished_run_says_how_it_reached_its_figures(finished_run: Path) -> None:
    folder = RunFolder.open(finished_run)
    rows = folder.metrics()
    assert [(row["stage"], row["epoch"], row["watched"]) for row in rows] == [
        ("joint", 1, "test"),
        ("finetune", 1, "test"),
    ]
    assert folder.finished
    assert rows[-1]["accuracy"] == folder.load_evaluation()["accuracy"]
    assert len(folder.load_paths().label_T) == folder.load_evaluation()["n"] == 40
    assert sorted(path.name for path in finished_run.iterdir()) == [
        "checkpoints",
        "config.json",
        "evaluation.json",
        "metrics.jsonl",
        "model.safetensors",
        "paths.safetensors",
        "timing.json",
    ]


def test_weights_of_another_network_are_refused(own_run: Path) -> None:
    file = own_run / "model.safetensors"
    model = create_model("resnet32", in_channels=1)
    save_tensors(file, model.state_dict())
    with pytest.raises(UserError, match=r"weights of another network: .* does not fit resnet20 \(nor do \d+ more\)"):
        RunFolder.open(own_run).load_model()


def test_one_weight_of_another_shape_is_named(own_run: Path) -> None:
    file = own_run / "model.safetensors"
    tensors, _ = load_tensors(file)
    tensors["fc.weight"] = tensors["fc.weight"][:, :3]
    model = create_model("resnet20", in_channels=1)
    with pytest.raises(UserError, match=r"another network: fc\.weight does not fit resnet20; restore"):
        load_weights(model, tensors, file)


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("fc.weight", lambda tensor: tensor.int(), r"another network: fc\.weight does not fit"),
        ("fc.weight", lambda tensor: tensor.double(), r"another network: fc\.weight does not fit"),
        ("fc.weight", lambda tensor: tensor * torch.nan, r"fc\.weight in .* holds NaN or infinity"),
        ("bn1.running_var", lambda tensor: tensor / 0, r"bn1\.running_var in .* holds NaN or infinity"),
    ],
)
def test_weights_of_another_type_or_without_value_are_refused(
    own_run: Path, name: str, spoil: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    file = own_run / "model.safetensors"
    tensors, about = load_tensors(file)
    save_tensors(file, {**tensors, name: spoil(tensors[name])}, about)
    with pytest.raises(UserError, match=words):
        RunFolder.open(own_run).load_model()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: {**table, "label_T": table["label_T"].float()}, "label_T is torch.float32 of shape"),
        (lambda table: {**table, "label_T": table["label_T"] + 5}, "label_T has values from 5 to 14"),
        (lambda table: {**table, "label_T": table["label_T"][:7]}, "path_TN is torch.uint8 of shape"),
        (lambda table: {**table, "label_T": torch.tensor(3)}, r"label_T has the shape \(\)"),
        (lambda table: {name: column[:0] for name, column in table.items()}, r"label_T has the shape \(0,\)"),
        (lambda table: {**table, "path_TN": table["path_TN"][:, :3]}, "path_TN is"),
        (lambda table: {**table, "path_TN": table["path_TN"] + 2}, "path_TN has values from"),
        (
            lambda table: {**table, "confidence_T": table["confidence_T"] * torch.nan},
            "confidence_T has values from nan",
        ),
        (lambda table: {**table, "macs_T": table["macs_T"] * torch.inf}, "macs_T has values from"),
        (lambda table: {**table, "more": table["macs_T"].clone()}, "its columns are"),
        (lambda table: {"label_T": table["label_T"]}, r"its columns are \['label_T'\]"),
    ],
)
def test_the_path_table_of_another_run_is_refused(
    own_run: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], words: str
) -> None:
    file = own_run / "paths.safetensors"
    save_tensors(file, change(load_tensors(file)[0]))
    with pytest.raises(DamagedError, match=rf"is not the path table of this run \({words}.*codinet eval {own_run}"):
        RunFolder.open(own_run).load_paths()


@pytest.mark.parametrize("name", ["model.safetensors", "paths.safetensors"])
def test_damaged_results_are_refused(own_run: Path, name: str) -> None:
    content = bytearray((own_run / name).read_bytes())
    content[-5] ^= 1
    (own_run / name).write_bytes(content)
    folder = RunFolder.open(own_run)
    with pytest.raises(DamagedError, match=f"{name} is damaged"):
        folder.load_model() if name.startswith("model") else folder.load_paths()
