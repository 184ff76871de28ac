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
from codinet.config import ModelConfig, RunConfig
from codinet.cost import block_costs
from codinet.data import Dataset, Split
from codinet.data.batches import Resident
from codinet.errors import UserError
from codinet.evaluate import evaluate
from codinet.files import DamagedError, load_tensors, save_tensors
from codinet.model import CoDiNet
from codinet.run_reader import DataInfo, trained_network
from codinet.runs import RunFolder, RunWriter, open_folder, open_run, unpack
from codinet.zoo.zoo_run import ZooRun, open_zoo


@pytest.fixture
def folder(tmp_path: Path, small_run: RunConfig, few: Dataset) -> RunWriter:
    """A run that has just started."""
    return RunWriter.create(tmp_path / "deep" / "run", small_run, DataInfo.of(few), {"torch": "2"}, (3, 3, 3))


def test_a_folder_is_opened_as_it_was_created(folder: RunWriter) -> None:
    assert RunWriter.open(folder.path) == folder
    assert RunFolder.open(folder.path) == open_run(folder.path) == open_run(str(folder.path))
    assert RunFolder.open(str(folder.path)).path == folder.path
    for wrong in (None, 5, b"runs"):
        with pytest.raises(UserError, match="A run folder must be a path, got"):
            RunFolder.open(wrong)  # type: ignore[arg-type]


def test_data_info_describes_the_data_set(few: Dataset) -> None:
    brief = DataInfo.of(few)
    assert (brief.name, brief.image_shape, len(brief.classes)) == ("few", (1, 8, 8), 10)
    assert brief == DataInfo.of(replace(few, pad=7))


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
    assert DataInfo.of(change(few)).sha256 != DataInfo.of(few).sha256


def test_mean_and_std_do_not_identify_data(few: Dataset) -> None:
    brief = DataInfo.of(few)
    assert brief.same_images(replace(brief, name="copy", mean=(1.0,), std=(2.0,)))
    assert not brief.same_images(DataInfo.of(change_a_pixel(few)))
    assert not brief.same_images(replace(brief, classes=tuple("abcdefghij")))


def test_images_are_normalised_with_the_training_statistics(folder: RunWriter) -> None:
    trained = replace(folder, data=replace(folder.data, mean=(90.0,), std=(40.0,)))
    found = trained.load_dataset(Path())
    assert (found.mean, found.std) == ((90.0,), (40.0,))


def test_load_own_dataset_refuses_other_data(folder: RunWriter) -> None:
    rounded = replace(folder, data=replace(folder.data, mean=(folder.data.mean[0] + 1e-9,)))
    assert len(rounded.load_own_dataset(Path()).test) == 40
    for change in ({"sha256": "0" * 64}, {"classes": tuple("abcdefghij")}):
        other = replace(folder, data=replace(folder.data, **change))
        with pytest.raises(UserError, match=r"was trained on other data than few holds now; check --data-root"):
            other.load_own_dataset(Path())


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"Cannot make the run folder .*file/run: Not a directory"):
        RunWriter.create(tmp_path / "file" / "run", small_run, DataInfo.of(few), {}, (3, 3, 3))


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
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
        (lambda content: [content], r"expected named entries, got \["),
        (lambda content: "text", "expected named entries, got 'text'"),
        (lambda content: {**content, "format": 7}, "format must be 1, got 7"),
        (lambda content: {**content, "data": []}, r"data must have the entries classes, .*, got \[\]"),
        (lambda content: {**content, "data": {}}, r"data must have the entries classes, .*, got {}"),
        (lambda content: {**content, "environment": None}, "environment is invalid, got None"),
        (data(classes="0123456789"), "data.classes is invalid, got '0123456789'"),
        (data(classes=[]), r"data.classes is invalid, got \[\]"),
        (data(classes=[0, 1]), r"data.classes is invalid, got \[0, 1\]"),
        (data(image_shape=[1, 8]), r"data.image_shape is invalid, got \[1, 8\]"),
        (data(image_shape=[1, 8, 0]), r"data.image_shape is invalid, got \[1, 8, 0\]"),
        (data(image_shape=[1, 8.0, 8]), r"data.image_shape is invalid, got \[1, 8.0, 8\]"),
        (data(image_shape="1x8"), "data.image_shape is invalid, got '1x8'"),
        (data(mean=3.5), "data.mean is invalid, got 3.5"),
        (data(mean=["3.5"]), r"data.mean is invalid, got \['3.5'\]"),
        (data(mean=[3.5, 3.5]), r"data.mean is invalid, got \[3.5, 3.5\]"),
        (data(std=[0.0]), r"data.std is invalid, got \[0.0\]"),
        (data(std=[-1.0]), r"data.std is invalid, got \[-1.0\]"),
        (data(image_shape=[3, 10**5, 10**5]), r"data.image_shape is invalid, got \[3, 100000, 100000\]"),
        (data(name=None), "data.name is invalid, got None"),
        (data(sha256=12), "data.sha256 is invalid, got 12"),
        (drop("environment"), "environment"),
        (drop("config"), "config"),
        (drop("data", "sha256"), "sha256"),
        (drop("config", "network", "arch"), "missing entries arch"),
        (config("network", arch="resnet21"), "'resnet21'"),
        (config("network", tau=-1.0), "--tau"),
        (config("losses", budget=7.0), "--budget"),
        (config("schedule", views=0), "--views"),
    ],
)
def test_invalid_configs_are_refused(folder: RunWriter, change: Callable[[Any], Any], words: str) -> None:
    file = folder.path / "config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DamagedError, match=rf"config\.json is not a run's config \(.*{words}.*\); restore it or train"):
        RunFolder.open(folder.path)


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "1e999", "[" * 100_000])
def test_non_finite_numbers_and_endless_nesting_are_refused(folder: RunWriter, odd: str) -> None:
    file = folder.path / "config.json"
    file.write_text(json.dumps(data(std=["odd"])(json.loads(file.read_text()))).replace('"odd"', odd))
    with pytest.raises(DamagedError, match=r"config\.json cannot be read as JSON"):
        RunFolder.open(folder.path)


def test_a_new_run_has_no_metrics_and_is_not_finished(folder: RunWriter) -> None:
    assert folder.metrics() == []
    assert not folder.finished
    with pytest.raises(UserError, match=r"has no trained network yet; finish it with codinet train … --resume"):
        folder.load_model()


def test_metrics_are_added_line_by_line(folder: RunWriter) -> None:
    folder.add_metrics({"epoch": 1})
    folder.add_metrics({"epoch": 2})
    assert folder.metrics() == [{"epoch": 1}, {"epoch": 2}]
    folder.keep_metrics(folder.metrics()[:1])
    assert folder.metrics() == [{"epoch": 1}]


@pytest.mark.parametrize("cut", ['{"epoch": 2, "lo', "{", '{"epoch": 2, "loss": 1.5'])
def test_an_incomplete_line_is_ignored(folder: RunWriter, cut: str) -> None:
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
def test_metrics_end_before_the_first_invalid_line(folder: RunWriter, bad: bytes) -> None:
    folder.metrics_file.write_bytes(b'{"epoch": 1}\n' + bad + b'\n{"epoch": 3}\n')
    assert folder.metrics() == [{"epoch": 1}]


def test_a_non_finite_loss_is_null_in_the_metrics(folder: RunWriter) -> None:
    folder.add_metrics({"epoch": 1, "stage": "joint", "held_loss": float("nan"), "loss": float("inf")})
    assert folder.metrics() == [{"epoch": 1, "stage": "joint", "held_loss": None, "loss": None}]


def test_a_named_pipe_is_refused_and_does_not_block(folder: RunWriter) -> None:
    os.mkfifo(folder.metrics_file)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        folder.metrics()


def test_add_metrics_flushes_to_disk(folder: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_missing_and_impossible_figures_are_refused(own_run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = own_run / "evaluation.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DamagedError, match=r"evaluation\.json is not an evaluation: .* is invalid; restore it"):
        RunFolder.open(own_run).load_evaluation()


def test_an_integer_is_a_valid_figure(own_run: Path) -> None:
    file = own_run / "evaluation.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "accuracy": 90}))
    assert RunFolder.open(own_run).load_evaluation()["accuracy"] == 90


def test_require_finished(folder: RunWriter, finished_run: Path) -> None:
    RunFolder.open(finished_run).require_finished()
    with pytest.raises(UserError, match="is not finished; finish it with codinet train … --resume"):
        folder.require_finished()


def test_wall_seconds_may_be_unknown_but_not_invalid(folder: RunWriter) -> None:
    assert folder.wall_seconds() is None
    (folder.path / "timing.json").write_text('{"seconds": null}')
    assert folder.wall_seconds() is None
    for odd in ("[]", '{"seconds": "long"}', '{"seconds": [1]}', '{"seconds": true}'):
        (folder.path / "timing.json").write_text(odd)
        with pytest.raises(DamagedError, match=r"timing\.json does not state the run's seconds; restore or remove"):
            folder.wall_seconds()


def test_a_clock_set_back_makes_the_time_unknown(own_run: Path, monkeypatch: pytest.MonkeyPatch, few: Dataset) -> None:
    folder = RunWriter.open(own_run)
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


def test_results_are_loaded_as_saved(folder: RunWriter, few: Dataset) -> None:
    model = CoDiNet(folder.data.model_config(folder.config.network))
    resident = Resident.of(few.test, few, torch.device("cpu"))
    evaluation = evaluate(model, resident.batches(20), block_costs(model, few.image_shape))
    folder.save_results(model, evaluation)
    assert folder.finished
    assert folder.load_evaluation() == evaluation.summary()
    assert all(torch.equal(a, b) for a, b in zip(folder.load_paths(), evaluation.paths, strict=True))
    loaded = folder.load_model()
    assert not loaded.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_the_files_of_a_finished_run(finished_run: Path) -> None:
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
    with pytest.raises(UserError, match=r"of another network than resnet20: .* is not expected, .*, and \d+ more"):
        RunFolder.open(own_run).load_model()


def test_a_misfitting_weight_is_reported_with_its_source(own_run: Path) -> None:
    file = own_run / "model.safetensors"
    tensors, _ = load_tensors(file)
    tensors["fc.weight"] = tensors["fc.weight"][:, :3]
    config = ModelConfig("resnet20", in_channels=1)
    with pytest.raises(UserError, match=r"^zoo:x holds .* resnet20: fc\.weight is float32 10×3 instead of float32 1"):
        trained_network(config, tensors, "zoo:x")


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("fc.weight", lambda tensor: tensor.int(), r"another network than resnet20: fc\.weight is "),
        ("fc.weight", lambda tensor: tensor.double(), r"another network than resnet20: fc\.weight is "),
        ("fc.weight", lambda tensor: tensor * torch.nan, r"fc\.weight in .* holds NaN or infinity"),
        ("bn1.running_var", lambda tensor: tensor / 0, r"bn1\.running_var in .* holds NaN or infinity"),
    ],
)
def test_weights_of_another_dtype_or_not_finite_are_refused(
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


# --- networks of the zoo as run folders

NAME, CPU = "digits-resnet20-06", torch.device("cpu")


def test_a_network_of_the_zoo_is_unpacked(zoo: Path, tmp_path: Path) -> None:
    run = open_zoo(NAME)
    folder = unpack(run, tmp_path / "run", Path(), CPU)
    assert folder == open_run(tmp_path / "run")
    assert folder.load_evaluation() == run.load_evaluation()
    assert len(folder.load_paths().label_T) == 500
    assert (folder.config, folder.data) == (run.config, run.data)
    assert folder.wall_seconds() == run.wall_seconds()
    expected = run.load_model().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in folder.load_model().state_dict().items())


def test_unpacking_overwrites_nothing(zoo: Path) -> None:
    with pytest.raises(UserError, match="exists and is not empty; choose another --out"):
        unpack(open_zoo(NAME), zoo, Path(), CPU)


def test_unpacking_needs_the_same_test_images(zoo: Path, tmp_path: Path) -> None:
    run = open_zoo(NAME)
    run = replace(run, card=replace(run.card, content={**run.card.content, "test_sha256": "0" * 64}))
    with pytest.raises(UserError, match=f"zoo:{NAME} was trained on other data than digits holds now"):
        unpack(run, tmp_path / "run", Path(), CPU)
    assert not (tmp_path / "run").exists()


def test_open_folder_unpacks_once(zoo: Path, tmp_path: Path, digits_run: Path) -> None:
    notes: list[str] = []

    def opened(path: Path | str) -> RunFolder:
        return open_folder(Path(path), data_root=Path(), device=CPU, runs=tmp_path, note=notes.append)

    assert opened(digits_run) == open_run(digits_run)
    assert notes == []
    assert opened(f"zoo:{NAME}").path == tmp_path / NAME
    assert opened(f"zoo:{NAME}").finished
    assert notes == [f"unpacking zoo:{NAME} into {tmp_path / NAME}"]
    (tmp_path / NAME / "evaluation.json").unlink()
    with pytest.raises(UserError, match="exists and is not empty"):
        opened(f"zoo:{NAME}")


def test_readers_cannot_write(zoo: Path, finished_run: Path) -> None:
    for run in (open_run(finished_run), open_run(f"zoo:{NAME}")):
        assert not any(hasattr(run, name) for name in ("create", "add_metrics", "keep_metrics", "save_results"))
    assert isinstance(open_run(f"zoo:{NAME}"), ZooRun)
