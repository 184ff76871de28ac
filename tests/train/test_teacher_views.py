"""Fixed views of the training images, and a teacher that sees all of them once, before the training."""

import copy
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from codinet.cli import main
from codinet.config import ExtraConfig
from codinet.data import Dataset, free_memory
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Loader, Resident, SplitPlacer, Stream
from codinet.data.dataset import LazyImages
from codinet.data.image_folder import load_folder
from codinet.data.images import read_views
from codinet.data.random_crops import cut
from codinet.errors import UserError
from codinet.files import load_tensors, save_tensors
from codinet.model import RoutedNetwork
from codinet.run_reader import DataInfo
from codinet.train import accelerate, checkpoint, teaching
from codinet.train.accelerate import Execution, ask_teacher
from codinet.train.distributed import World
from codinet.train.step import LogitsFn, Step, Task
from codinet.train.teaching import Teacher, answers

CPU = torch.device("cpu")
Network = Callable[[int], RoutedNetwork]
MakeStep = Callable[..., Step]
SameRun = Callable[[Path, Path], None]
Life = Callable[..., dict[str, Any]]
Words = Callable[..., list[str]]

PADDED = Augmentation((6, 6), 2, flip=True, pad=1, seed=3, fixed=5)
PARTS = Augmentation((5, 4), 2, flip=True, min_area=0.2, seed=3, fixed=5)
KINDS = [PADDED, PARTS, replace(PADDED, blank=3), replace(PARTS, blank=3)]
NAMES = ["padded", "parts", "padded-blank", "parts-blank"]


# Which views an epoch uses


def test_the_views_of_an_epoch_are_different_ones_of_the_fixed() -> None:
    augmentation = Augmentation((6, 6), 3, fixed=7, seed=1)
    image_L = torch.tensor([0, 5, 1_281_166])
    for epoch in (0, 4, 100_002):
        number_LM = augmentation.numbers(epoch, image_L)
        assert number_LM.shape == (3, 3)
        assert number_LM.min() >= 0
        assert number_LM.max() < 7
        assert all(len(set(row)) == 3 for row in number_LM.tolist())
    every = replace(augmentation, views=7).numbers(2, image_L)
    assert every.sort(dim=1).values.tolist() == [list(range(7))] * 3


def test_they_depend_on_seed_epoch_and_image_alone() -> None:
    augmentation = Augmentation((6, 6), 3, fixed=10_000, seed=1)
    image_L = torch.tensor([4, 0, 9])
    found = augmentation.numbers(8, image_L)
    torch.manual_seed(5)  # has no influence
    assert torch.equal(augmentation.numbers(torch.tensor(8), image_L), found)
    assert torch.equal(augmentation.numbers(8, image_L[1:2]), found[1:2])
    others = [augmentation.numbers(9, image_L), replace(augmentation, seed=2).numbers(8, image_L)]
    assert len({row[0] for each in (found, *others) for row in each.tolist()}) == 9


def test_all_are_used_about_equally() -> None:
    augmentation, epochs = Augmentation((6, 6), 2, fixed=8, seed=1), 1000
    used = torch.stack([augmentation.numbers(epoch, torch.tensor([3, 60])) for epoch in range(epochs)], dim=1)
    for number_EM in used:
        counts = number_EM.flatten().bincount(minlength=8)
        expected = epochs * 2 / 8
        assert (counts - expected).abs().max() < 5 * (expected * (1 - 2 / 8)) ** 0.5
    assert not torch.equal(*used)


# What they show


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def view_by_view(images_NCHW: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    """All fixed views of all images, N×V×C×H×W, each made alone in the first epoch that uses it."""
    single, rows = replace(augmentation, views=1), []
    for image, image_CHW in enumerate(images_NCHW):
        found: dict[int, torch.Tensor] = {}
        for epoch in count():
            number = int(single.numbers(epoch, torch.tensor([image])))
            if number not in found:
                found[number] = single.make_views(image_CHW[None], torch.tensor([image]), epoch)[0]
            if len(found) == augmentation.fixed:
                break
        rows.append(torch.stack([found[number] for number in range(augmentation.fixed)]))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("views", [1, 2, 5])
def test_a_view_is_the_same_in_every_epoch_and_batch(images: torch.Tensor, kind: Augmentation, views: int) -> None:
    expected_NV = view_by_view(images, kind)
    augmentation = replace(kind, views=views)
    for epoch in (0, 7, 100_003):
        image_L = torch.tensor([2, 0, 3, 2, 1])[epoch % 3 :]
        found = augmentation.make_views(images[image_L], image_L, torch.tensor(epoch))
        expected_LM = expected_NV[image_L[:, None], augmentation.numbers(epoch, image_L)]
        assert torch.equal(found, expected_LM.flatten(0, 1))


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_views_with_different_numbers_differ(images: torch.Tensor, kind: Augmentation) -> None:
    kind = replace(kind, fixed=12, pad=kind.pad * 4)
    views_NV, others_NV = view_by_view(images, kind), view_by_view(images, replace(kind, seed=4))
    for views_V, others_V in zip(views_NV, others_NV, strict=True):
        # There are 162 padded views of an image, so two may be equal by chance.
        assert len(views_V.flatten(1).unique(dim=0)) >= 11
        assert len(torch.cat([views_V, others_V]).flatten(1).unique(dim=0)) >= 20


@pytest.mark.parametrize("kind", [PADDED, PARTS], ids=NAMES[:2])
def test_each_view_has_its_own_blank_square(images: torch.Tensor, kind: Augmentation) -> None:
    whole = view_by_view(images, kind).flatten(0, 1)
    blank = view_by_view(images, replace(kind, blank=3)).flatten(0, 1)
    changed_BHW = (whole != blank).any(dim=1)
    assert torch.equal(blank, whole.where(~changed_BHW[:, None], 0))
    assert changed_BHW.flatten(1).any(dim=1).all()
    assert len(changed_BHW.unique(dim=0)) > 10


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_fixed_views_draw_no_random_numbers(images: torch.Tensor, kind: Augmentation) -> None:
    before = torch.get_rng_state()
    kind.make_views(images, torch.arange(4), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_choose_the_parts_that_tensors_are_cut_at(images: torch.Tensor) -> None:
    image_L = torch.tensor([3, 1, 2])
    chosen = [view for draws_MD in PARTS.draws(7, image_L) for view in PARTS.choose(draws_MD, *images.shape[2:])[:-1]]
    boxes_B4, mirror_B = torch.tensor([box for box, _ in chosen]), torch.tensor([mirror for _, mirror in chosen])
    assert set(mirror_B.tolist()) == {False, True}
    found = cut(images[image_L], boxes_B4, mirror_B, PARTS.size)
    assert torch.equal(found, PARTS.make_views(images[image_L], image_L, 7))


def test_a_part_of_a_large_jpeg_does_not_depend_on_those_cut_with_it() -> None:
    """Such a file is decoded to a fraction, as finely as the views need."""
    noise = torch.randint(0, 256, (60, 80, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    file = BytesIO()
    Image.fromarray(noise.numpy()).resize((640, 480)).save(file, "JPEG")
    every = Augmentation((24, 24), 16, flip=True, min_area=0.05, seed=2, fixed=16)
    image_L, single = torch.tensor([4]), replace(every, views=1)

    def cut_by(augmentation: Augmentation, epoch: int) -> dict[int, np.ndarray]:
        (draws_MD,) = augmentation.draws(epoch, image_L)
        out = np.empty((augmentation.views, 24, 24, 3), np.uint8)
        read_views(file.getvalue(), partial(augmentation.choose, draws_MD), out)
        return dict(zip(augmentation.numbers(epoch, image_L)[0].tolist(), out, strict=True))

    together = cut_by(every, 0)
    for epoch in range(12):
        for number, view in cut_by(single, epoch).items():
            assert np.array_equal(view, together[number])


# The answers of the teacher


@pytest.fixture
def teacher(two_blocks: Network, few: Dataset) -> Teacher:
    """One with other statistics than the dozen images, whose answers depend on the view."""
    model = two_blocks(7)
    with torch.no_grad():
        model.get_parameter("fc.weight").mul_(20)
    return Teacher(model, replace(DataInfo.of(few), mean=(90.0,), std=(40.0,)), few, CPU)


@pytest.mark.parametrize("kind", [PADDED, PARTS], ids=NAMES[:2])
@pytest.mark.parametrize(("rows", "at_once"), [(5, 1), (27, 5), (60, 12), (100, 20)])
def test_answers_are_those_to_each_view_alone(
    dozen: Resident, teacher: Teacher, kind: Augmentation, rows: int, at_once: int
) -> None:
    sizes = []

    def logits_of(views_BCHW: torch.Tensor) -> torch.Tensor:
        sizes.append(len(views_BCHW))
        return teacher.model(teacher.prepare(views_BCHW)).logits_BK

    table_NVK = answers(logits_of, dozen, kind, World(), rows=rows)
    assert table_NVK.dtype == torch.float16
    assert table_NVK.shape == (12, 5, 3)
    assert sizes == [at_once * 5] * -(-12 // at_once)
    views_NV = view_by_view(dozen.take(torch.arange(12))[0], kind)
    for image in range(12):
        for number in range(5):
            logits_BK = logits_of(views_NV[image, number][None])
            expected_K = logits_BK[0] - logits_BK[0].exp().sum().log()
            torch.testing.assert_close(table_NVK[image, number].float(), expected_K, rtol=1e-3, atol=1e-4)
    assert table_NVK.float().std(dim=1).min() > 1e-3  # of the views of an image


def some_weight(classes: int, *shape: int) -> torch.Tensor:
    return torch.randn(classes, *shape, generator=torch.Generator().manual_seed(2)) / 10


def linear(weight_KCHW: torch.Tensor) -> LogitsFn:
    """A function from views to logits."""
    return lambda views_BCHW: torch.einsum("bchw,kchw->bk", views_BCHW, weight_KCHW)


@pytest.mark.parametrize("kind", ["tensors", "files", "parts of files", "parts of files on the device"])
def test_every_loader_gives_the_answers_to_the_views_of_a_step(
    kind: str, few: Dataset, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, size, parts = few, few.image_shape[1:], kind.startswith("parts")
    if kind != "tensors":
        with monkeypatch.context() as patch:
            patch.setattr(free_memory, "available_bytes", lambda: 0)  # so that files are decoded when they are used
            data, size = load_folder(photos, image_size=24, whole=parts), (24, 24)  # too large to shrink
        assert isinstance(data.train.images_NCHW, LazyImages)
    augmentation = Augmentation(size, 2, flip=True, pad=2, min_area=0.3 if parts else None, blank=3, seed=5, fixed=3)
    loader: Loader = "resident" if kind.endswith("device") else "stream"
    placed = SplitPlacer(data, CPU).place(data.train, loader, whole=parts)
    assert isinstance(placed, Stream if loader == "stream" else Resident)
    logits_of = linear(some_weight(10, data.image_shape[0], *size))
    table_NVK = answers(logits_of, placed, augmentation, World(), rows=3 * 7)

    batches = torch.randperm(len(placed), generator=torch.Generator().manual_seed(0))[:16].view(4, 4)
    window = placed.window(4, augmentation)
    for i, index_L in enumerate(placed.deliver(batches, 6)):
        images, _ = window.take(index_L)
        views_BCHW = augmentation.make_views(images, batches[i], 6, ready=window.views is not None)
        assert window.views is None or not torch.equal(views_BCHW, images)  # threads leave the blank squares out
        expected_BK = logits_of(views_BCHW).log_softmax(dim=1)
        found_BK = table_NVK[batches[i][:, None], augmentation.numbers(6, batches[i])].flatten(0, 1)
        torch.testing.assert_close(found_BK.float(), expected_BK, rtol=1e-3, atol=1e-3)
    if kind == "tensors":
        assert torch.equal(
            table_NVK, answers(logits_of, Resident.of(few.train, few, CPU), augmentation, World(), rows=21)
        )


@pytest.mark.parametrize("size", [1e6, 1e30])
def test_huge_logits_stay_finite(dozen: Resident, size: float) -> None:
    def logits_of(views_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.tensor([size, 0.0, -size]).expand(len(views_BCHW), 3)

    table_NVK = answers(logits_of, dozen, PADDED, World(), rows=10)
    least = torch.finfo(torch.float16).min
    assert table_NVK.flatten(0, 1).unique(dim=0).tolist() == [[0.0, least, least]]


def test_a_table_that_does_not_fit_is_refused(dozen: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    logits_of, needed = linear(some_weight(3, 1, 6, 6)), 2 * 12 * 5 * 3
    for free in (None, 2 * needed):
        monkeypatch.setattr(teaching, "free_bytes", lambda _, free=free: free)
        assert answers(logits_of, dozen, PADDED, World(), rows=10).nbytes == needed
    monkeypatch.setattr(teaching, "free_bytes", lambda _: 2 * needed - 1)
    with pytest.raises(
        UserError, match=r"5 views of 12 images would take .* free; use a smaller --teacher-views, or 0"
    ):
        answers(logits_of, dozen, PADDED, World(), rows=10)


# Steps

EAGER = Execution(compile=False, amp=False, kernels=False)


def taken(task: Task, step: Step) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The figures of a step of the same kind on some images, and the weights after it."""
    torch.manual_seed(5)
    own = Step(replace(task, model=copy.deepcopy(task.model), controller=copy.deepcopy(task.controller)), step.stage)
    for index_L in (own.index_L, own.image_L):
        index_L.copy_(torch.tensor([7, 2, 11, 5]))
    own.epoch.fill_(100_003)
    own.lr.fill_(0.1)
    own()
    return own.means(), own.model.state_dict()


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_looks_answers_up_is_the_step_that_asks(
    two_blocks: Network, make_step: MakeStep, dozen: Resident, teacher: Teacher, stage: int, accumulate: int
) -> None:
    extra = ExtraConfig(teacher="t", distill=0.5, distill_temperature=2.0, cutout=2)
    step = make_step(two_blocks(0), stage=stage, extra=extra, teacher=teacher, accumulate=accumulate)
    asking = replace(step.task, augmentation=replace(step.task.augmentation, fixed=5, seed=3))
    table_NVK = ask_teacher(asking, dozen, EAGER)
    asked, asked_weights = taken(asking, step)

    teacher.model.register_forward_pre_hook(lambda *_: pytest.fail("the teacher was asked again"))
    found, weights = taken(replace(asking, answers_NVK=table_NVK), step)
    assert found["distillation"] > 0.1
    assert found == pytest.approx(asked, rel=3e-4, abs=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, asked_weights[name], rtol=0, atol=2e-5, msg=name)
    other, _ = taken(replace(asking, answers_NVK=table_NVK.roll(1, dims=1)), step)  # those to other views
    assert other["distillation"] != pytest.approx(asked["distillation"], rel=1e-3)


def test_the_teacher_sees_views_with_its_own_statistics_even_if_no_compiler_works(
    two_blocks: Network, make_step: MakeStep, dozen: Resident, teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_step(two_blocks(0), extra=ExtraConfig(teacher="t", distill=0.5), teacher=teacher).task
    task = replace(task, augmentation=PADDED)

    def logits_of(views_BCHW: torch.Tensor) -> torch.Tensor:
        return teacher.model(teacher.prepare(views_BCHW)).logits_BK

    expected_NVK = answers(logits_of, dozen, PADDED, World(), rows=5)
    assert torch.equal(ask_teacher(task, dozen, EAGER), expected_NVK)
    failures = iter([RuntimeError("no compiler"), UserError("no memory")])

    def fail(_execution: Execution) -> None:
        raise next(failures)

    monkeypatch.setattr(accelerate, "_speed_of", fail)
    assert torch.equal(ask_teacher(task, dozen, replace(EAGER, compile=True)), expected_NVK)
    with pytest.raises(UserError, match="no memory"):
        ask_teacher(task, dozen, replace(EAGER, compile=True))


# Several processes

TWO = """
import os, sys
from pathlib import Path
import torch
from codinet.data import load
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident, Stream
from codinet.errors import UserError
from codinet.files import load_tensors, save_tensors
from codinet.train import teaching
from codinet.train.distributed import joined

torch.set_num_threads(1)
cpu, folder, source = torch.device("cpu"), Path(sys.argv[1]), sys.argv[2]
rank = 0 if os.fork() else 1
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
with joined(cpu, wait_minutes=0.5) as world:
    data, weight = load(source, Path()), load_tensors(folder / "weight.safetensors")[0]["weight"]
    augmentation = Augmentation((8, 8), 2, pad=2, seed=5, fixed=3)

    def ask(train):
        logits_of = lambda views_BCHW: torch.einsum("bchw,kchw->bk", views_BCHW, weight)
        return teaching.answers(logits_of, train, augmentation, world, rows=3 * 5)

    train = data.train, data, cpu
    save_tensors(folder / f"{rank}.safetensors", {"resident": ask(Resident.of(*train)), "stream": ask(Stream(*train))})
    if rank == 1:
        teaching.free_bytes = lambda _: 1000
    try:
        ask(Resident.of(*train))
    except UserError as error:
        (folder / f"{rank}.txt").write_text(str(error))
"""


def test_two_processes_share_the_work_and_what_stops_it(tmp_path: Path, few: Dataset, digits_npz: Path) -> None:
    weight = some_weight(10, 1, 8, 8)
    save_tensors(tmp_path / "weight.safetensors", {"weight": weight})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    subprocess.run([sys.executable, "-c", TWO, tmp_path, digits_npz], env=os.environ | told, check=True, timeout=60)

    augmentation = Augmentation((8, 8), 2, pad=2, seed=5, fixed=3)
    alone = answers(linear(weight), Resident.of(few.train, few, CPU), augmentation, World(), rows=3 * 5)
    for rank in range(2):
        for name, table_NVK in load_tensors(tmp_path / f"{rank}.safetensors")[0].items():
            assert torch.equal(table_NVK, alone), (rank, name)
        assert "use a smaller --teacher-views" in (tmp_path / f"{rank}.txt").read_text()


# Runs


def test_a_kill_within_an_epoch_leaves_no_trace(
    tmp_path: Path, life: Life, finished_run: Path, assert_same_run: SameRun
) -> None:
    words = ("--teacher", str(finished_run), "--teacher-views", "5", "--cutout", "2")
    whole = life(tmp_path / "whole", *words)
    assert whole["code"] == 0, whole["said"]
    assert whole["said"].count("Asking the teacher about 5 views of 64 images.") == 1
    out = tmp_path / "killed"
    assert life(out, *words, save_seconds=-1, after=60, saves=2)["signal"] == signal.SIGKILL
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    assert found.position.step > 0
    again = life(out, *words)
    assert again["code"] == 0, again["said"]
    assert_same_run(tmp_path / "whole", out)


def test_a_run_whose_views_grow_asks_again_for_each_size(
    photos: Path, tmp_path: Path, life: Life, train_words: Words, assert_same_run: SameRun
) -> None:
    teacher, recipe = (
        tmp_path / "teacher",
        ("--arch", "resnet14", "--view", "resized", "--image-size", "40", "--batch", "8"),
    )
    assert main(train_words(teacher, *recipe, "--no-routed", "--finetune", "0", source=photos)) == 0
    words = (*recipe, "--epochs", "2", "--grow-from", "8", "--teacher", str(teacher), "--teacher-views", "3")
    whole = life(tmp_path / "whole", *words, source=photos)
    assert whole["code"] == 0, whole["said"]
    assert whole["said"].count("Asking the teacher about 3 views of 32 images.") == 2
    out = tmp_path / "killed"
    for saves in (2, 4):  # within the first epoch, and within the second, whose views are larger
        end = life(out, *words, source=photos, save_seconds=-1, after=60, saves=saves)
        assert end["signal"] == signal.SIGKILL
    again = life(out, *words, source=photos)
    assert again["code"] == 0, again["said"]
    assert_same_run(tmp_path / "whole", out)
