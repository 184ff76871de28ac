"""Several processes, gloo between them: the same mathematics as one, the same end after a kill, one voice."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.repeated_metrics import repeated_metrics
from torch.nn import functional as F

from codinet.cli import main
from codinet.cost import block_costs
from codinet.data import Dataset, random_views
from codinet.data.batches import Resident
from codinet.errors import UserError
from codinet.evaluate import evaluate
from codinet.files import load_tensors
from codinet.losses import consistency, diversity, expected_cost, score_decay
from codinet.relaxation import run_probability
from codinet.runs import RunFolder
from codinet.train import checkpoint
from codinet.train.distributed import (
    World,
    named_statistics,
    own_device,
    put_statistics,
    seed_apart,
    statistics,
)
from codinet.train.step import SUMS

CPU = torch.device("cpu")
Done = dict[str, torch.Tensor]
Life = Callable[..., dict[str, Any]]
Words = Callable[..., list[str]]
SameRun = Callable[[Path, Path], None]
HERE = Path(__file__).parent
BESIDE = Path(sys.executable).parent  # where torchrun and codinet lie


# two processes against one that sends both halves through the network


@pytest.fixture(scope="module")
def shards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shards", HERE / "shards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Done]:
    """What each of the two processes of shards.py did."""
    folder = tmp_path_factory.mktemp("shards")
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    subprocess.run([sys.executable, HERE / "shards.py", folder], env=os.environ | told, check=True, timeout=60)
    return [load_tensors(folder / f"{rank}.safetensors")[0] for rank in range(2)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def part(done: Done, prefix: str) -> Done:
    return {name.removeprefix(prefix): tensor for name, tensor in done.items() if name.startswith(prefix)}


def by_hand(shards: ModuleType, done: Done, name: str, number: int, *, gamma: float) -> tuple[Done, Done]:
    """Gradients and figures of a step: each half through the network by itself, losses of both halves joined."""
    library = name == "library"
    model, data = shards.library_network() if library else shards.network(), shards.digits()
    step = shards.make_step(model, data, World(), stage=1 if name.startswith("finetune") else 0)
    model.load_state_dict(part(done, f"{name}.weight."))
    outputs = []
    for rank, index_L in enumerate(torch.arange(shards.IMAGES).view(2, -1) + number * shards.IMAGES):
        torch.manual_seed(100 * number + rank)
        for part_L in index_L.chunk(2 if name.endswith("parts") else 1):
            images_BCHW = random_views(data.take(part_L)[0], 2, pad=1, flip=False)
            outputs.append(model(images_BCHW, decide=step.stage.decide))
    logits_BK, scores_BN2, path_BN = (torch.cat(column) for column in zip(*outputs, strict=True))
    labels_B = data.labels_N[number * shards.IMAGES :][: shards.IMAGES].repeat_interleave(2)
    figures = {"classification": F.cross_entropy(logits_BK, labels_B)}
    loss = figures["classification"]
    if not name.startswith("finetune"):
        paths_BN = path_BN if name == "noised" else run_probability(scores_BN2)
        paths_LMN = paths_BN.unflatten(0, (-1, 2))
        figures["consistency"] = consistency(paths_LMN, margin=0.01)
        figures["diversity"] = diversity(paths_LMN, margin=2.0)
        figures["cost"] = expected_cost(paths_BN, step.weights_N)
        figures["decay"] = score_decay(scores_BN2)
        loss = loss + 0.3 * figures["consistency"] + 0.7 * figures["diversity"] + gamma * figures["cost"]
        loss = loss + 0.01 * figures["decay"]
    figures["loss"] = loss
    hard_BN = (scores_BN2[..., 1] >= scores_BN2[..., 0]).float()
    figures["cost_share"] = (hard_BN @ step.run_share_N).mean() + step.base_share
    figures["accuracy"] = (logits_BK.argmax(dim=1) == labels_B).float().mean()
    gradients = torch.autograd.grad(loss, list(step.trained.values()))
    if library:
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        assert norm > shards.LIBRARY["clip"]
        gradients = tuple(gradient * shards.LIBRARY["clip"] / (norm + 1e-6) for gradient in gradients)
    return dict(zip(step.trained, gradients, strict=True)), {key: value.detach() for key, value in figures.items()}


STEPS = [
    ("joint0", 0),
    ("joint1", 1),
    ("joint2", 2),
    ("noised", 0),
    ("finetune", 0),
    ("finetune-parts", 0),
    ("library", 0),
]


@pytest.mark.parametrize(("name", "number"), STEPS)
def test_gradients_are_those_of_one_process(ranks: list[Done], shards: ModuleType, name: str, number: int) -> None:
    steps = part(ranks[0], f"{name}.")
    gamma = 0.0 if name.startswith("finetune") else steps["sums"][SUMS.index("gamma")].item()
    expected, figures = by_hand(shards, ranks[0], name, number, gamma=gamma)
    for done in ranks:
        found = part(done, f"{name}.gradient.")
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            assert gradient.norm() > 0, key
            assert (found[key] - gradient).norm() / gradient.norm() <= 1e-6, key
        sums = dict(zip(SUMS, done[f"{name}.sums"], strict=True))
        assert sums["steps"] == 1
        for key, value in figures.items():
            assert sums[key].item() == pytest.approx(value.item(), rel=1e-5), key


def test_every_loss_takes_part(ranks: list[Done], shards: ModuleType) -> None:
    sums = dict(zip(SUMS, ranks[0]["joint2.sums"], strict=True))
    assert all(sums[name] > 1e-6 for name in ("consistency", "diversity", "cost", "decay", "gamma"))


def test_the_controller_sees_the_cost_of_all_images(ranks: list[Done], shards: ModuleType) -> None:
    twin = shards.controller()
    for name, number in STEPS[:3]:
        gamma = twin.gamma().item()
        _, figures = by_hand(shards, ranks[0], name, number, gamma=gamma)
        twin.observe(figures["cost_share"])
        for done in ranks:
            assert done[f"{name}.sums"][SUMS.index("gamma")].item() == pytest.approx(gamma, rel=1e-6)
            for key, value in twin.state().items():
                assert done[f"{name}.{key}"].item() == pytest.approx(value.item(), rel=1e-6), key


def test_processes_hold_the_same_weights_and_figures(ranks: list[Done]) -> None:
    one, other = ranks
    assert one.keys() == other.keys()
    own = [name for name in one if "running" in name and not name.startswith("mean.")]
    differ = [name for name in one if not torch.equal(one[name], other[name])]
    assert set(differ) <= set(own)  # and the statistics of the batches that each has seen
    assert "own.bn1.running_mean" in differ


def test_running_statistics_become_the_mean(ranks: list[Done]) -> None:
    names = [name for name in part(ranks[0], "own.") if "running" in name]
    assert names
    for name in names:
        mean = (ranks[0][f"own.{name}"] + ranks[1][f"own.{name}"]) / 2
        assert torch.equal(ranks[0][f"mean.{name}"], mean)
        assert torch.equal(ranks[1][f"mean.{name}"], mean)


def test_constants_are_not_statistics(shards: ModuleType) -> None:
    model = shards.library_network()
    assert any(name.endswith("mask") for name, _ in model.named_buffers())
    names = named_statistics(model, statistics(model)).keys()
    assert names == {name for name in model.state_dict() if "running" in name}


def test_a_loss_that_is_bad_in_one_process_is_bad_in_all(ranks: list[Done]) -> None:
    for done in ranks:
        assert done["bad"].tolist() == [0, 1]  # the first step, the classification loss


# runs


SCHEDULE = ("--epochs", "2", "--finetune", "4")  # long enough a second stage to be stopped in


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, life: Life) -> Path:
    """Two processes that nothing has stopped."""
    out = tmp_path_factory.mktemp("distributed") / "whole"
    end = life(out, *SCHEDULE, size=2)
    assert end["codes"] == [0, 0], end["said"]
    assert end["said"].count("Training resnet20") == 1
    assert "Warning" not in end["said"]
    assert RunFolder.open(out).environment["processes"] == 2
    return out


def test_shares_of_the_test_images_come_together_in_order(whole: Path, few: Dataset) -> None:
    folder = RunFolder.open(whole)
    model = folder.load_model()
    alone = evaluate(model, Resident.of(few.test, few, CPU).batches(250), block_costs(model, few.image_shape))
    together = folder.load_paths()
    assert torch.equal(together.label_T, few.test.labels_N)
    assert torch.equal(together.path_TN, alone.paths.path_TN)
    assert folder.load_evaluation() == pytest.approx(alone.summary())


def test_there_may_be_more_processes_than_images_to_watch(tmp_path: Path, life: Life) -> None:
    end = life(tmp_path / "run", "--holdout", "2", "--batch", "12", size=3)
    assert end["codes"] == [0, 0, 0], end["said"]
    assert [row["n"] for row in RunFolder.open(tmp_path / "run").metrics()] == [2, 2]


def torchrun(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BESIDE / "torchrun", "--standalone", "--nproc-per-node", "2", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_run_of_two_goes_on_with_two_exactly_and_with_one(
    tmp_path: Path, train_words: Words, whole: Path, assert_same_run: SameRun, capsys: pytest.CaptureFixture[str]
) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    words = train_words(two, "--resume", *SCHEDULE)
    first = torchrun("-m", "--", "codinet", *words)
    while first.poll() is None and not list(two.glob("checkpoints/*.safetensors")):
        time.sleep(0.01)
    first.terminate()  # it ends the processes that train in turn
    first.communicate(timeout=60)
    assert first.returncode != 0
    assert not (two / "evaluation.json").exists()
    shutil.copytree(two, one)

    second = torchrun("--", BESIDE / "codinet", *words, "--json")
    said, complaints = second.communicate(timeout=120)
    assert second.returncode == 0, complaints
    assert json.loads(said)["n"] == 40
    assert complaints.count("Resuming resnet20") == 1
    assert "Warning" not in complaints
    assert_same_run(two, whole)

    assert main(train_words(one, "--resume", *SCHEDULE)) == 0
    said = capsys.readouterr().err
    assert said.count("The number of processes changed from 2 to 1; random views and noise differ") == 1
    lines = [repeated_metrics(folder) for folder in (one, whole)]
    assert len(lines[0]) == len(lines[1]) == 6
    assert lines[0][0] == lines[1][0]
    assert lines[0][-1] != lines[1][-1]


def test_a_kill_within_an_epoch_leaves_no_trace(
    tmp_path: Path, life: Life, whole: Path, assert_same_run: SameRun
) -> None:
    out = tmp_path / "run"
    end = life(out, *SCHEDULE, size=2, save_seconds=-1, ask_every=1, after=60, saves=5)
    assert end["signal"] == signal.SIGKILL
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    assert found.processes == 2
    assert found.position.step > 0
    assert not torch.equal(found.tensors["statistics.0"], found.tensors["statistics.1"])
    assert not torch.equal(found.tensors["random.cpu.0"], found.tensors["random.cpu.1"])
    end = life(out, *SCHEDULE, size=2)
    assert end["codes"] == [0, 0], end["said"]
    assert_same_run(out, whole)


def test_averaged_weights_of_two_processes_go_on_exactly(
    tmp_path: Path, life: Life, finished_run: Path, assert_same_run: SameRun
) -> None:
    extra = ("--ema", "0.9", "--start", str(finished_run), "--teacher", str(finished_run), "--distill", "0.5")
    end = life(tmp_path / "whole", *extra, size=2)
    assert end["codes"] == [0, 0], end["said"]
    found = checkpoint.latest(tmp_path / "whole" / "checkpoints", pytest.fail)
    assert found is not None
    for name in ("statistics", "averaged_statistics"):
        assert torch.equal(found.tensors[f"{name}.0"], found.tensors[f"{name}.1"])

    out = tmp_path / "killed"
    end = life(out, *extra, size=2, save_seconds=-1, ask_every=1, after=60, saves=4)
    assert end["signal"] == signal.SIGKILL
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    assert found.position.step > 0
    # Each process averages the statistics that it has seen itself, until the epoch is over.
    own = [found.tensors[f"averaged_statistics.{rank}"] for rank in range(2)]
    assert not torch.equal(*own)
    mean = found.part("average.model.")["bn1.running_mean"]
    assert torch.allclose(mean, torch.stack(own).mean(dim=0)[: len(mean)])
    end = life(out, *extra, size=2)
    assert end["codes"] == [0, 0], end["said"]
    assert_same_run(out, tmp_path / "whole")


def test_where_one_process_is_killed_the_others_do_not_wait_for_it(tmp_path: Path, life: Life) -> None:
    end = life(tmp_path / "run", *SCHEDULE, size=2, after=60, saves=1, only=1)
    assert end["codes"] == [2, -signal.SIGKILL], end["said"]
    assert end["said"].splitlines()[-1].startswith("codinet: Another process of this training ended")
    assert "Traceback" not in end["said"]


def test_a_process_that_stalls_is_an_error_after_a_while(tmp_path: Path, life: Life) -> None:
    fate = {"after": 60, "saves": 1, "only": 1, "stall": True}
    end = life(tmp_path / "run", *SCHEDULE, "--wait-minutes", "0.05", size=2, **fate)
    assert end["codes"] == [2, -signal.SIGKILL], end["said"]
    sentence = end["said"].splitlines()[-1]
    assert sentence.startswith("codinet: Another process of this training did not respond for 0.05 minutes")
    assert sentence.endswith("with --resume continues the run.")
    assert "Traceback" not in end["said"]


EARLY_EXIT = """
import os, sys, time
import torch
from codinet.train.distributed import joined
rank = 0 if os.fork() else 1
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
with joined(torch.device("cpu"), wait_minutes=0.5) as world:
    world.gather(rank)
    if rank == 1:
        time.sleep(0.5)  # rank 0 waits for the last barrier
        os._exit(9)
print("left")
"""


def test_a_process_that_dies_when_all_is_done_does_not_matter() -> None:
    environment = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, "-c", EARLY_EXIT]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "1e9"])
def test_the_time_to_wait_is_checked(
    tmp_path: Path, train_words: Words, minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(tmp_path / "run", "--wait-minutes", minutes)) == 2
    assert "--wait-minutes must be above 0 and at most 10080, got" in capsys.readouterr().err


def test_a_run_of_one_goes_on_with_two(tmp_path: Path, life: Life) -> None:
    out = tmp_path / "run"
    assert life(out, after=60, saves=1)["signal"] == signal.SIGKILL
    end = life(out, size=2)
    assert end["codes"] == [0, 0], end["said"]
    assert end["said"].count("The number of processes changed from 1 to 2") == 1


def test_bad_input_under_torchrun_is_one_sentence(tmp_path: Path, train_words: Words) -> None:
    process = torchrun("-m", "--", "codinet", *train_words(tmp_path / "run", "--batch", "15"))
    said, complaints = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said == ""
    sentence = "codinet: --batch must be a multiple of 2, the number of processes, got 15."
    assert [line for line in complaints.splitlines() if line.startswith("codinet: ")] == [sentence]
    assert "exitcode  : 2" in complaints
    assert "codinet/train" not in complaints  # torchrun prints a traceback of its own, and we none
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epoch", "3"], "--epoch"),
        (["--preset", "papre"], "Unknown preset 'papre'"),
        (["--device", "cuda:7"], "Device 'cuda:7' is not available"),
        (["--views", "0"], "--views must be from 1 to 10000, got 0"),
        (["--holdout", "64"], "--holdout must be below 64"),
        (["--sync-bn"], "--sync-bn requires GPUs, and this training runs on cpu"),
        (["--lr", "1e38", "--warmup", "0"], "loss was not finite at step"),
    ],
)
def test_what_is_wrong_is_told_once_and_ends_all(tmp_path: Path, life: Life, words: list[str], sentence: str) -> None:
    end = life(tmp_path / "run", *words, size=2)
    assert end["codes"] == [2, 2], end["said"]
    (said,) = [line for line in end["said"].splitlines() if line.startswith("codinet: ")]
    assert sentence in said
    assert "Traceback" not in end["said"]


def test_what_only_the_writer_meets_ends_all(tmp_path: Path, life: Life) -> None:
    end = life(tmp_path / "run", size=2, disk=1_000_000)
    assert end["codes"] == [2, 2], end["said"]
    (said,) = [line for line in end["said"].splitlines() if line.startswith("codinet: ")]
    assert said.startswith("codinet: Could not write ")


def test_the_flags_are_told_once(tmp_path: Path, life: Life) -> None:
    assert life(tmp_path / "run", "--help", size=2)["codes"] == [0, 0]


# one process


def test_a_world_of_one_makes_the_same_run(
    tmp_path: Path, life: Life, finished_run: Path, assert_same_run: SameRun
) -> None:
    end = life(tmp_path / "run", "--sync-bn", launched=True)  # which changes nothing where nobody else is
    assert end["codes"] == [0], end["said"]
    assert_same_run(tmp_path / "run", finished_run)


def test_a_process_of_its_own_asks_nobody() -> None:
    world, tensor = World(), torch.ones(3, requires_grad=True)
    assert world.is_rank0
    assert world.gather_rows(tensor) is tensor
    assert world.gather("x") == ["x"]
    assert world.on_rank0(lambda: 3) == world.on_every_rank(lambda: 3) == 3
    model = torch.nn.BatchNorm1d(3)
    assert world.data_parallel(model) is model


def test_statistics_come_back_as_they_were() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(3))
    vector = torch.arange(10.0)
    put_statistics(model, vector)
    assert torch.equal(statistics(model), vector)
    assert model.get_buffer("1.running_mean").tolist() == [4, 5, 6]
    assert model.get_buffer("0.num_batches_tracked") == 0


def test_random_numbers_depend_on_seed_rank_and_place() -> None:
    def draw(*words: int) -> float:
        seed_apart(*words)
        return torch.rand(()).item()

    places = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 1, 2), (0, 0, 2, 1)]
    assert len({draw(*place) for place in places}) == len(places)
    assert draw(0, 1) == draw(0, 1)


def test_processes_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4, "MASTER_ADDR": "a", "MASTER_PORT": 1}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(UserError, match=r"4 processes on this machine need a GPU each, and it has 3; .*-node 3"):
        own_device(None)
    assert own_device("cpu") == CPU
