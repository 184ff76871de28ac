"""Every method trains to its budget, and its networks work like CoDiNet's everywhere."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from codinet.adopt import import_vision
from codinet.cli import main
from codinet.config import NetworkConfig, RunConfig, ScheduleConfig
from codinet.data import Dataset
from codinet.data.npz import load_digits
from codinet.engines.branch import BranchEngine
from codinet.engines.choose import compile_engine
from codinet.engines.gather import GatherEngine
from codinet.evaluate import Evaluation
from codinet.methods import NAMES, method_named
from codinet.model import routed_step
from codinet.presets import demo
from codinet.resolving import resolve
from codinet.runs import RunFolder
from codinet.train import accelerate, loop
from codinet.train.accelerate import Execution
from codinet.train.reporting import Reporter
from codinet.train.stages import stages_of
from codinet.train.step import Speed

CPU = torch.device("cpu")
OTHERS = [name for name in NAMES[1:] if method_named(name).routed]  # the default has its own tests
SameRun = Callable[[Path, Path], None]


def short(name: str) -> RunConfig:
    config = demo("digits")
    schedule = replace(config.schedule, epochs=3, finetune=1, batch=64, views=1)
    data = replace(config.data, watch="train")  # one evaluation per epoch instead of two
    return resolve(replace(config, method=name, schedule=schedule, data=data))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Evaluation]]:
    """A short run of a method, made once."""

    @cache
    def train(name: str) -> tuple[Path, Evaluation]:
        out = tmp_path_factory.mktemp("methods") / name
        digits = load_digits()
        half = replace(digits, train=digits.train.subset(torch.arange(448)))  # seven steps per epoch
        return out, loop.train(out, short(name), half, device=CPU)[1]

    return train


@pytest.mark.parametrize("name", OTHERS)
def test_the_budget_is_met(name: str, trained: Callable[[str], tuple[Path, Evaluation]]) -> None:
    out, evaluation = trained(name)
    assert evaluation.cost_share == pytest.approx(0.6, abs=0.02)
    assert evaluation.accuracy > 10
    assert (evaluation.distinct_paths == 1) == method_named(name).one_path
    run = RunFolder.open(out)
    assert run.config.method == name
    free = {stage.name for stage in stages_of(run.config) if not stage.has_target}
    assert all(row["gamma"] == 0 for row in run.metrics() if row["stage"] in free)
    columns = run.metrics()[0].keys()
    assert {"loss", "classification", "consistency", "diversity", "cost", "decay", "gamma"} <= columns
    assert {row["consistency"] for row in run.metrics()} == {0} or name == "vanilla"


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_is_evaluated_predicted_and_exported(
    name: str, trained: Callable[[str], tuple[Path, Evaluation]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    from codinet.engines.onnx import OnnxEngine

    out, evaluation = trained(name)
    model, digits = RunFolder.open(out).load_model(), load_digits()
    raw = digits.test.images_NCHW[:24]
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (digits.mean, digits.std))
    images = ((torch.as_tensor(raw).float() - mean) / std).contiguous()
    with torch.no_grad():
        expected = model(images)
    for engine in (BranchEngine(model), GatherEngine(model), compile_engine(model, batch=24, measure=False)):
        found = engine(images)
        assert torch.equal(found.path_BN, expected.path_BN)
        assert (found.logits_BK - expected.logits_BK).abs().max() < 1e-4
    for kind in ("routed", "masked"):
        assert main(["export", str(out), "--out", str(tmp_path / f"{kind}.onnx"), "--kind", kind]) == 0
        found = OnnxEngine(tmp_path / f"{kind}.onnx")(images)
        assert torch.equal(found.path_BN, expected.path_BN)
        assert (found.logits_BK - expected.logits_BK).abs().max() < 1e-4
    photo = Image.fromarray(np.asarray(raw[0, 0]))
    photo.save(tmp_path / "digit.png")
    capsys.readouterr()
    assert main(["predict", str(out), str(tmp_path / "digit.png"), "--json"]) == 0
    assert '"path"' in capsys.readouterr().out
    assert main(["eval", str(out), "--json", "--device", "cpu"]) == 0
    assert f'"accuracy": {evaluation.accuracy}' in capsys.readouterr().out


class Stopped(Exception):  # noqa: N818
    """What a test raises to stop a run."""


class StopAfter(Reporter):
    """Stops a run after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize(("name", "stops"), [("blockdrop", [6, 10]), ("fixed", [9]), ("skipnet", [10])])
def test_a_stopped_run_goes_on_to_the_same_end(
    name: str,
    stops: list[int],
    tmp_path: Path,
    few: Dataset,
    digits_npz: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stops in the curriculum, after the choice of a path, in the joint and hybrid stages; four steps per epoch."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)  # a checkpoint after every step
    config = RunConfig(
        str(digits_npz),
        method=name,
        network=NetworkConfig(arch="resnet20"),
        schedule=ScheduleConfig(epochs=4, finetune=1, batch=16, views=1),
    )
    train: Any = lambda out, **how: loop.train(out, resolve(config), few, device=CPU, **how)  # noqa: E731
    train(tmp_path / "whole")
    for stop in stops:
        with pytest.raises(Stopped):
            train(tmp_path / "run", resume=True, reporter=StopAfter(stop))
    train(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.filterwarnings("ignore")  # of timm, when it is imported
@pytest.mark.parametrize("name", ["convaig", "random"])
def test_a_network_of_timm(name: str, tmp_path: Path) -> None:
    try:
        import_vision("timm")
    except Exception as error:
        pytest.skip(str(error))
    pytest.importorskip("onnxruntime")
    from codinet.engines.onnx import OnnxEngine

    digits = load_digits()
    data = replace(digits, train=digits.train.subset(torch.arange(96)), test=digits.test.subset(torch.arange(48)))
    config = RunConfig(
        "digits",
        method=name,
        network=NetworkConfig(arch="timm:test_resnet"),
        schedule=ScheduleConfig(epochs=3, finetune=1, batch=32, views=1),
    )
    config = replace(config, losses=replace(config.losses, budget=0.8))
    run, evaluation = loop.train(tmp_path / "run", resolve(config), data, device=CPU)
    model = run.load_model()
    assert model.routers is not None
    assert evaluation.cost_share == pytest.approx(0.8, abs=0.1)  # few blocks, few images
    images = torch.randn(3, *digits.image_shape)
    with torch.no_grad():
        expected = model(images)
    for engine in (GatherEngine(model), OnnxEngine.of(model, digits.image_shape)):
        found = engine(images)
        assert torch.equal(found.path_BN, expected.path_BN)
        assert (found.logits_BK - expected.logits_BK).abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("name", ["blockdrop", "sact"])
def test_a_compiled_step_is_the_same_training(
    name: str, tmp_path: Path, few: Dataset, digits_npz: Path, assert_same_run: SameRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a method that samples, compares with hard decisions and freezes parts, and with decisions at positions."""

    def compiled() -> Speed:
        compile: Any = partial(torch.compile, dynamic=False, backend="eager")
        return Speed(compile(routed_step), compile)

    monkeypatch.setattr(accelerate, "compiled", compiled)
    schedule = ScheduleConfig(epochs=3, finetune=0, batch=32, views=1)
    config = RunConfig(str(digits_npz), method=name, network=NetworkConfig(arch="resnet14"), schedule=schedule)
    for folder, compile in (("plain", False), ("compiled", True)):
        loop.train(tmp_path / folder, resolve(config), few, device=CPU, execution=Execution(compile=compile))
    assert_same_run(tmp_path / "compiled", tmp_path / "plain")
