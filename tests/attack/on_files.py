"""Attacks on everything that is read from files: JSON, safetensors, run folders, cards, ONNX, analyses, sweeps.

Each starts from files that codinet wrote itself, made once per process, and changes one or more of them. Files with a
digest are sealed again after the change, as a file from elsewhere might be.
"""

import atexit
import contextlib
import copy
import functools
import io
import json
import math
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as pack_arrays
from tests.attack.damage import ODD, changed, spoilt, spoilt_tensors, text_of
from tests.attack.harness import Attack

from codinet import files
from codinet.analysis import Request, RunAnalysis, analyse_run
from codinet.analysis.features import load_features
from codinet.analysis.run_analysis import _digest, saved_analysis
from codinet.cli import main
from codinet.commands.analyze import _rows as analysis_rows
from codinet.commands.printing import evaluation_rows
from codinet.config import RunConfig
from codinet.data.npz import load_digits
from codinet.engines.onnx import ExportInfo, OnnxEngine, export
from codinet.predictor import Predictor
from codinet.resolving import resolve
from codinet.runs import RunFolder, RunWriter
from codinet.sweep import Grid, plan
from codinet.sweep.sweep_folder import PLAN, is_finished, save_plan
from codinet.zoo.card import Card
from codinet.zoo.shelf import cards
from codinet.zoo.zoo_run import open_card
from tools.results.record import make_record, read_records, save_records
from tools.results.render import render
from tools.zoo_add import add

CPU = torch.device("cpu")
NAME = "digits-resnet20-06"


# --- what is attacked


@functools.cache
def base() -> Path:
    """A folder with a finished and analysed `run` on few images, and what is made of it: `results`, `model.onnx`; a
    `sweep` that has begun; and a `zoo` with a network."""
    torch.set_num_threads(1)
    os.environ.setdefault("CODINET_COMMIT", "attack")
    folder = Path(tempfile.mkdtemp(prefix="codinet-attack-base-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "few.npz").write_bytes(few())
    words = ["--arch", "resnet20", "--epochs", "1", "--device", "cpu"]
    small, large = ["--finetune", "1", "--batch", "16"], ["--finetune", "0", "--batch", "256", "--gamma", "0.1"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", str(folder / "few.npz"), "--out", str(folder / "run"), *words, *small]) == 0
        assert main(["train", "digits", "--out", str(folder / "digits"), *words, *large]) == 0
    shutil.rmtree(folder / "run" / "checkpoints")
    add(RunFolder.open(folder / "digits"), NAME, Path(), device=CPU, into=folder / "zoo")
    run = RunFolder.open(folder / "run")
    analyse_run(run, Request(Path(), CPU, tsne=False, images=8))
    save_records([make_record(run, ["results", "routing"])], folder / "results")
    data = run.data
    export(run.load_model(), folder / "model.onnx", ExportInfo(data.classes, data.mean, data.std, data.image_shape))
    (folder / "sweep").mkdir()
    save_plan(folder / "sweep", planned())
    return folder


@functools.cache
def few() -> bytes:
    """64 + 40 digits as .npz."""
    digits, buffer = load_digits(), io.BytesIO()
    train, test = digits.train, digits.test
    np.savez(
        buffer,
        x_train=train.images_NCHW[:64, 0].numpy(),
        y_train=train.labels_N[:64].numpy(),
        x_test=test.images_NCHW[:40, 0].numpy(),
        y_test=test.labels_N[:40].numpy(),
    )
    return buffer.getvalue()


@functools.cache
def planned() -> list[Any]:
    return plan(resolve(RunConfig("digits")), Grid(budget=(0.5,), seed=(0, 1)))


@functools.cache
def content_of(name: str) -> bytes:
    return (base() / name).read_bytes()


@functools.cache
def _tensors_of(name: str) -> tuple[dict[str, torch.Tensor], Any]:
    return files.load_tensors(base() / name)


def copied(name: str, folder: Path) -> Path:
    """A copy of a folder of `base`, to change."""
    return shutil.copytree(base() / name, folder / name)


# --- attempts


def strict_json(rng: random.Random, folder: Path) -> None:
    """Whatever is read as JSON can be written as strict JSON, and is what Python reads."""
    name = rng.choice(("run/config.json", f"zoo/{NAME}.json", "run/evaluation.json", "run/metrics.jsonl"))
    content = content_of(name)
    if rng.random() < 0.5:
        content = spoilt(content, rng)
    elif name.endswith(".json"):
        content = text_of(changed(json.loads(content), rng))
    (folder / "a.json").write_bytes(content)
    value = files.read_json(folder / "a.json")
    assert json.loads(files.to_json(value)) == value == json.loads(content)


def safetensors_bytes(rng: random.Random, folder: Path) -> None:
    """A changed file is refused, or the change carried no meaning."""
    tensors, about = _tensors_of("run/paths.safetensors")
    (folder / "a.safetensors").write_bytes(spoilt(content_of("run/paths.safetensors"), rng))
    found, note = files.load_tensors(folder / "a.safetensors")
    assert note == about
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def safetensors_header(rng: random.Random, folder: Path) -> None:
    """A header of another program."""
    content = content_of("run/paths.safetensors")
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    kind = rng.randrange(4)
    if kind == 0:
        header["__metadata__"] = copy.deepcopy(rng.choice(ODD))
    elif kind == 1:
        entry = header[rng.choice(sorted(set(header) - {"__metadata__"}))]
        entry["dtype"] = rng.choice(("F4", "F6_E2M3", "F8_E8M0", "F8_E5M2", "C64", "BF16", "U16", "BOOL", "Q9", None))
    else:
        header = changed(header, rng)
    text = text_of(header)
    (folder / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    found, _ = files.load_tensors(folder / "a.safetensors")
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())


def run_config(rng: random.Random, folder: Path) -> None:
    (folder / "run").mkdir()
    content = content_of("run/config.json")
    content = spoilt(content, rng) if rng.random() < 0.2 else text_of(changed(json.loads(content), rng))
    (folder / "run" / "config.json").write_bytes(content)
    run = RunFolder.open(folder / "run")
    assert resolve(run.config).network.arch == run.config.network.arch
    assert min(run.data.std) > 0
    files.to_json(run.recipe())
    assert run.wall_seconds() is None
    assert not run.finished


def run_figures(rng: random.Random, folder: Path) -> None:
    """evaluation.json, timing.json and metrics.jsonl."""
    run = RunFolder.open(base() / "run")
    copy_of = RunWriter(folder, run.config, run.data, run.environment, run.groups)
    name = rng.choice(("evaluation.json", "timing.json", "metrics.jsonl"))
    content = content_of(f"run/{name}")
    if rng.random() < 0.3:
        content = spoilt(content, rng)
    elif name == "metrics.jsonl":
        rows = [json.loads(line) for line in content.splitlines()]
        content = b"".join(text_of(changed(row, rng)) + b"\n" for row in rows)
    else:
        content = text_of(changed(json.loads(content), rng))
    (folder / name).write_bytes(content)
    if name == "metrics.jsonl":
        rows = copy_of.metrics()
        files.to_json(rows)
        copy_of.keep_metrics(rows)
        assert copy_of.metrics() == rows
    elif name == "timing.json":
        seconds = copy_of.wall_seconds()
        assert seconds is None or (math.isfinite(seconds) and seconds >= 0)
    else:
        found = copy_of.load_evaluation()
        assert 0 <= found["accuracy"] <= 100
        assert evaluation_rows(found)
        files.to_json(found)


def run_weights(rng: random.Random, folder: Path) -> None:
    shutil.copy(base() / "run" / "config.json", folder)
    tensors, about = _tensors_of("run/model.safetensors")
    files.save_tensors(folder / "model.safetensors", spoilt_tensors(tensors, rng), about)
    model = RunFolder.open(folder).load_model()
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def run_paths(rng: random.Random, folder: Path) -> None:
    run = RunFolder.open(base() / "run")
    tensors, about = _tensors_of("run/paths.safetensors")
    files.save_tensors(folder / "paths.safetensors", spoilt_tensors(tensors, rng), about)
    paths = RunFolder(folder, run.config, run.data, run.environment, run.groups).load_paths()
    assert paths.path_TN.shape == (len(paths.label_T), 9)
    assert int(paths.label_T.max()) < 10


def zoo_card(rng: random.Random, folder: Path) -> None:
    content = content_of(f"zoo/{NAME}.json")
    content = spoilt(content, rng) if rng.random() < 0.2 else text_of(changed(json.loads(content), rng))
    (folder / f"{NAME}.json").write_bytes(content)
    card = Card.read(folder / f"{NAME}.json")
    files.to_json(card.content)
    entry = open_card(card, folder)
    assert all(math.isfinite(number) and number > 0 for number in entry.data.std)
    assert all(math.isfinite(number) for number in (*entry.data.mean, *card.figures().values()))
    assert card.table().static_macs > 0
    assert evaluation_rows(card.figures()) != evaluation_rows({**card["as_trained"], "n": -1})
    assert [other.name for other in cards(folder)] == [NAME]


def zoo_answers(rng: random.Random, folder: Path) -> None:
    """A card that is accepted gives answers that are numbers."""
    card = changed(json.loads(content_of(f"zoo/{NAME}.json")), rng)
    (folder / f"{NAME}.json").write_bytes(text_of(card))
    os.symlink(base() / "zoo" / f"{NAME}.safetensors", folder / f"{NAME}.safetensors")
    entry = open_card(Card.read(folder / f"{NAME}.json"), folder)
    answer = Predictor(entry, CPU).predict(picture(rng))
    assert 0 <= answer.confidence <= 1
    files.to_json(answer.summary())


@functools.cache
def _pictures() -> list[bytes]:
    from PIL import Image

    found = []
    for seed in range(4):
        buffer = io.BytesIO()
        Image.frombytes("L", (8, 8), random.Random(seed).randbytes(64)).save(buffer, "PNG")
        found.append(buffer.getvalue())
    return found


def picture(rng: random.Random) -> bytes:
    return rng.choice(_pictures())


def zoo_weights(rng: random.Random, folder: Path) -> None:
    tensors, about = _tensors_of(f"zoo/{NAME}.safetensors")
    file = folder / f"{NAME}.safetensors"
    if rng.random() < 0.3:
        file.write_bytes(spoilt(content_of(f"zoo/{NAME}.safetensors"), rng))
    else:
        files.save_tensors(file, spoilt_tensors(tensors, rng), about)
    card = {**json.loads(content_of(f"zoo/{NAME}.json")), "sha256": files.sha256_of(file)}
    (folder / f"{NAME}.json").write_bytes(text_of(card))
    entry = open_card(Card.read(folder / f"{NAME}.json"), folder)
    if rng.random() < 0.5:
        assert all(tensor.isfinite().all() for tensor in entry.load_model().state_dict().values())
    else:
        assert entry.load_paths().path_TN.shape[1] == 9


def onnx_bytes(rng: random.Random, folder: Path) -> None:
    content = content_of("model.onnx")
    engine = OnnxEngine(spoilt(content, rng), threads=1, portable=True)
    found = engine(torch.zeros(rng.choice((1, 2)), *engine.image_shape))
    assert found.path_BN.shape[0] == found.logits_BK.shape[0]


def onnx_metadata(rng: random.Random, folder: Path) -> None:
    import onnx

    model = onnx.load_from_string(content_of("model.onnx"))
    about = changed({entry.key: json.loads(entry.value) for entry in model.metadata_props}, rng)
    del model.metadata_props[:]
    for key, value in about.items() if isinstance(about, dict) else ():
        text = text_of(value).decode() if rng.random() < 0.9 else rng.choice(("", "{", "x", "NaN"))
        model.metadata_props.add(key=key, value=text)
    engine = OnnxEngine(model.SerializeToString(), threads=1, portable=True)
    assert 0 <= engine.threshold <= 1
    assert engine(torch.zeros(1, 1, 8, 8)).logits_BK.shape == (1, 10)


def onnx_of_others(rng: random.Random, folder: Path) -> None:
    """Small graphs that another program might have written, with some of our names in them."""
    import onnx
    from onnx import TensorProto, helper

    names = ["images", "x", "threshold"]
    shapes: list[Any] = [[], [1], ["n", 10], [1, 1, 8, 8], ["n", 1, 8, 8], ["n", "c", "h", "w"], [1, 0, 8, 8], None]
    elements = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING]
    inputs = [
        helper.make_tensor_value_info(name, rng.choice(elements), rng.choice(shapes))
        for name in rng.sample(names, rng.choice((1, 1, 2)))
    ]
    outputs = rng.choice((["logits"], ["logits", "scores", "path"], ["y"], ["logits", "y"]))
    kind = rng.choice(("Identity", "Relu", "Flatten", "Shape", "Nonsense"))
    nodes = [helper.make_node(kind, [inputs[0].name], [name]) for name in outputs]
    infos = [helper.make_tensor_value_info(name, rng.choice(elements), rng.choice(shapes)) for name in outputs]
    constants = []
    if rng.random() < 0.5:
        constants.append(onnx.numpy_helper.from_array(np.array(0.5, np.float32), "threshold"))
    graph = helper.make_graph(nodes, "g", inputs, infos, constants)
    opset = rng.choice((7, 13, 17, 99))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=rng.choice((3, 8, 99)))
    for key in rng.sample(["kind", "threshold", "path"], rng.randrange(4)):
        value = rng.choice(('"static"', '"routed"', '"masked"', "0.5", "[1]", "NaN", "[" * 100_000, "null", "x"))
        model.metadata_props.add(key=key, value=value)
    (folder / "a.onnx").write_bytes(model.SerializeToString())
    engine = OnnxEngine(folder / "a.onnx", threads=1, portable=rng.random() < 0.5)
    found = engine(torch.zeros(1, *engine.image_shape))
    assert len(found.logits_BK) == 1


def _spoilt_analysis(rng: random.Random, folder: Path) -> RunFolder:
    run = RunFolder.open(copied("run", folder))
    known = RunAnalysis.load(base() / "run")
    assert known is not None
    made_from, found, tensors = known.made_from, known.figures, known.tensors
    kind = rng.randrange(10)
    if kind == 0:
        made_from = changed(made_from, rng)
    elif kind < 6:
        found = changed(found, rng)
    else:
        tensors = spoilt_tensors(tensors, rng)
    content = {"format": 1, "made_from": made_from, "figures": found}
    text = text_of(content)
    # Sealed with the digest of what a reader gets; where nothing can be read, any digest does.
    digest = "none"
    with contextlib.suppress(ValueError):
        digest = _digest(files.parse_json(text))
    files.save_tensors(run.path / "analysis.safetensors", tensors, about={"json": digest})
    (run.path / "analysis.json").write_bytes(text)
    if rng.random() < 0.1:
        for name in ("analysis.json", "analysis.safetensors"):
            (run.path / name).write_bytes(spoilt((run.path / name).read_bytes(), rng))
    return run


def analysis_files(rng: random.Random, folder: Path) -> None:
    run = _spoilt_analysis(rng, folder)
    known = saved_analysis(run)
    if known is None:
        return
    odd = known.invalid_entry(routed=True, images=run.load_evaluation()["n"], classes=10, blocks=9)
    if odd is None:
        assert analysis_rows([known.figures])
        files.to_json(known.figures)
    save_records([make_record(run, ["routing"])], folder / "results")
    assert render(read_records(folder / "results"))


def report_of_files(rng: random.Random, folder: Path) -> None:
    """A whole report of a run with changed metrics, analysis or figures."""
    from codinet.report.build_report import write_report
    from codinet.report.run_data import read_run

    run = _spoilt_analysis(rng, folder) if rng.random() < 0.6 else RunFolder.open(copied("run", folder))
    rows = [changed(row, rng) for row in RunFolder.open(base() / "run").metrics()]
    run.metrics_file.write_bytes(b"".join(text_of(row) + b"\n" for row in rows))
    if rng.random() < 0.3:
        evaluation = changed(run.load_evaluation(), rng)
        (run.path / "evaluation.json").write_bytes(text_of(evaluation))
    run.require_finished()
    known = saved_analysis(run)
    images = run.load_evaluation()["n"]
    if known is None or known.invalid_entry(routed=True, images=images, classes=10, blocks=9) is not None:
        return  # it would be computed again
    page = write_report(
        [read_run(run, known, rng.choice(("run", "a$b^$", "日本", "<script>")), "run")], folder / "out"
    ).page
    assert "</html>" in page.read_text()


def result_records(rng: random.Random, folder: Path) -> None:
    (file,) = (base() / "results").glob("*.json")
    content = content_of(f"results/{file.name}")
    content = spoilt(content, rng) if rng.random() < 0.2 else text_of(changed(json.loads(content), rng))
    (folder / file.name).write_bytes(content)
    # Beside one of a static run, so that rows are compared.
    static = json.loads(content_of(f"results/{file.name}")) | {"method": "static", "name": "static"}
    (folder / "static.json").write_text(json.dumps(static))
    assert render(read_records(folder)).startswith("# Results")


def sweep_plan(rng: random.Random, folder: Path) -> None:
    content = content_of(f"sweep/{PLAN}")
    content = spoilt(content, rng) if rng.random() < 0.2 else text_of(changed(json.loads(content), rng))
    (folder / PLAN).write_bytes(content)
    assert not any(is_finished(folder, run) for run in planned())
    save_plan(folder, planned())


def feature_files(rng: random.Random, folder: Path) -> None:
    rows = np.arange(12, dtype=rng.choice((np.float64, np.float32, np.int64, np.uint8))).reshape(4, 3)
    buffer = io.BytesIO()
    kind = rng.choice(("npy", "npz", "safetensors"))
    if kind == "npy":
        np.save(buffer, rows)
    elif kind == "npz":
        (np.savez if rng.random() < 0.5 else np.savez_compressed)(buffer, features=rows, other=rows)
    else:
        buffer.write(pack_arrays({"features": rows}))
    content = buffer.getvalue()
    if kind == "npy" and rng.random() < 0.3:
        header = rng.choice((b"(10**12, 3)", b"(999999999999999999, 3)", b"(4, -3)", b"(4, 3.0)", b"()", b"((4,3))"))
        content = content.replace(b"(4, 3)", header, 1)
    (folder / f"a.{kind}").write_bytes(spoilt(content, rng))
    found = load_features(folder / f"a.{kind}", images=4)
    assert len(found) == 4
    assert found.isfinite().all()


def special_files(rng: random.Random, folder: Path) -> None:
    """A pipe, a folder, a broken link or nothing in the place of a file."""
    run, zoo = copied("run", folder), copied("zoo", folder)
    name = rng.choice([file for place in (run, zoo) for file in sorted(place.iterdir()) if file.is_file()])
    kind = rng.randrange(7)
    name.unlink()
    if kind == 0:
        os.mkfifo(name)
    elif kind == 1:
        name.mkdir()
    elif kind == 2:
        name.symlink_to(name)
    elif kind == 3:
        name.write_bytes(b"")
    elif kind == 4:
        with name.open("wb") as file:
            file.truncate(2**33)
            if name.suffix == ".safetensors":
                file.write((2**40).to_bytes(8, "little"))
    elif kind == 5:
        name.symlink_to("/dev/zero")
    opened = open_card(Card.read(zoo / f"{NAME}.json"), zoo) if name.parent == zoo else RunFolder.open(run)
    assert opened.load_evaluation()
    opened.metrics()
    opened.load_paths()
    opened.load_model()
    if name.parent == run:
        opened.wall_seconds()
        saved_analysis(opened)


ATTACKS = [
    Attack("files: JSON", strict_json, quick=100, weight=2),
    Attack("files: bytes of safetensors", safetensors_bytes, quick=100, weight=2),
    Attack("files: header of safetensors", safetensors_header, quick=100, weight=2),
    Attack("files: config.json of a run", run_config, quick=100, weight=2),
    Attack("files: evaluation, timing, metrics", run_figures, quick=100, weight=2),
    Attack("files: weights of a run", run_weights, quick=10),
    Attack("files: path table of a run", run_paths, quick=40),
    Attack("files: card of the zoo", zoo_card, quick=100, weight=3),
    Attack("files: answers of a changed card", zoo_answers, quick=10),
    Attack("files: weights of the zoo", zoo_weights, quick=10),
    Attack("files: bytes of ONNX", onnx_bytes, quick=10),
    Attack("files: metadata of ONNX", onnx_metadata, quick=10),
    Attack("files: ONNX of other programs", onnx_of_others, quick=60),
    Attack("files: analysis of a run", analysis_files, quick=20),
    Attack("files: report of changed files", report_of_files, quick=1, weight=0.02, seconds=60),
    Attack("files: records of results", result_records, quick=40),
    Attack("files: plan of a sweep", sweep_plan, quick=60),
    Attack("files: features", feature_files, quick=100),
    Attack("files: pipes, folders and links", special_files, quick=20),
]
