import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from codinet import cli
from codinet.config import RunConfig
from codinet.data import Dataset, free_memory, normalise, threads
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident, SplitPlacer, Stream, count_threads, epoch_order
from codinet.data.dataset import LazyImages
from codinet.data.image_folder import load_folder
from codinet.data.random_crops import crop_box, hashed_draws, is_mirrored
from codinet.errors import UserError
from codinet.run_reader import DataInfo
from codinet.train import loop
from codinet.train.accelerate import Execution
from codinet.train.reporting import Reporter

CPU = torch.device("cpu")


def resident(data: Dataset) -> Resident:
    return Resident.of(data.train, data, CPU)


def test_resident_images_are_bytes_until_taken(few: Dataset) -> None:
    data = resident(few)
    assert data.images_NCHW.dtype == torch.uint8
    assert len(data) == len(few.train)
    place = torch.tensor([5, 0, 5])
    images_BCHW, labels_B = data.take(place)
    expected = normalise(few.train.images_NCHW[place], torch.tensor(few.mean), torch.tensor(few.std))
    assert torch.equal(images_BCHW, expected)
    assert torch.equal(labels_B, few.train.labels_N[place])


def test_resident_yields_everything_once_in_order(few: Dataset) -> None:
    data = resident(few)
    parts = list(data.batches(10))
    assert [len(labels) for _, labels in parts] == [10] * 6 + [4]
    everything, labels = data.take(torch.arange(len(data)))
    assert torch.equal(torch.cat([images for images, _ in parts]), everything)
    assert torch.equal(torch.cat([labels for _, labels in parts]), labels)


def test_epoch_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(1)
    first = epoch_order(50, seed=3, epoch=7)
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(1)).item()
    assert torch.equal(epoch_order(50, seed=3, epoch=7), first)
    assert first.sort().values.tolist() == list(range(50))


def test_epoch_orders_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


SameRun = Callable[[Path, Path], None]


BATCHES = [torch.tensor([5, 0, 5]), torch.tensor([2, 9, 1]), torch.tensor([3, 4, 6])]


@pytest.fixture
def pictures(image_folder: Callable[..., Path]) -> Path:
    return image_folder(per_class=10)


@pytest.fixture
def lazy(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """16 + 4 images of 360 bytes, decoded when used."""
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    return load_folder(pictures)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("kind", ["few", "lazy"])
def test_stream_and_resident_give_the_same_batches(kind: str, number: int, request: pytest.FixtureRequest) -> None:
    data: Dataset = request.getfixturevalue(kind)
    stream = Stream(data.train, data, CPU, threads=number)
    window = stream.window(3)
    where = window.images_NCHW.data_ptr(), window.labels_N.data_ptr()
    expected = data.train.subset(torch.cat(BATCHES))
    resident = Resident(expected.images_NCHW[:], expected.labels_N, stream.mean_C, stream.std_C)
    given = [window.take(index_L) for index_L in stream.deliver(iter(BATCHES))]
    wanted = [resident.take(torch.arange(start, start + 3)) for start in (0, 3, 6)]
    assert len(given) == 3
    for (images, labels), (own_images, own_labels) in zip(given, wanted, strict=True):
        assert torch.equal(images, own_images)
        assert torch.equal(labels, own_labels)
    assert stream.window(3) is window
    assert (window.images_NCHW.data_ptr(), window.labels_N.data_ptr()) == where  # a captured step reads these


def test_stream_yields_everything_once_in_order(few: Dataset) -> None:
    stream, resident = Stream(few.test, few, CPU), Resident.of(few.test, few, CPU)
    assert len(stream) == 40
    for mine, theirs in zip(stream.batches(15), resident.batches(15), strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])


def test_stream_draws_no_random_numbers(few: Dataset) -> None:
    stream = Stream(few.train, few, CPU, threads=1)
    stream.window(3)
    before = torch.get_rng_state()
    assert len(list(stream.deliver(BATCHES))) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_a_damaged_file_is_named(lazy: Dataset, pictures: Path) -> None:
    file = pictures / "cat" / "001.png"
    file.write_bytes(file.read_bytes()[:-30])
    stream = Stream(lazy.train, lazy, CPU, threads=1)
    with pytest.raises(UserError, match=r"cat.001\.png is damaged or truncated") as said:
        list(stream.batches(4))
    assert len(str(said.value).splitlines()) == 1


def test_an_abandoned_pass_stops_its_threads(few: Dataset) -> None:
    stream = Stream(few.train, few, CPU, threads=2)
    stream.window(3)
    before = data_threads()
    delivered = stream.deliver(BATCHES * 1000)
    next(delivered)
    assert len(data_threads() - before) == 2
    assert isinstance(delivered, Generator)
    delivered.close()
    assert data_threads() <= before


def data_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("codinet-data")}


def test_a_read_that_stalls_is_an_error(lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(LazyImages, "read_into", lambda *_: released.wait(60))
    monkeypatch.setattr(threads, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(threads, "_CLOSE_SECONDS", 0.1)
    try:
        with pytest.raises(UserError, match=r"Reading images made no progress for 0\.1 seconds; check the disk"):
            list(Stream(lazy.train, lazy, CPU, threads=2).batches(4))
    finally:
        released.set()


def test_fewer_threads_than_requested_are_enough(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    start, before = threading.Thread.start, data_threads()

    def start_one(thread: threading.Thread) -> None:
        if data_threads() - before:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    batches = list(Stream(few.test, few, CPU, threads=4).batches(15))
    assert sum(len(labels) for _, labels in batches) == 40

    def start_none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start_none)
    with pytest.raises(UserError, match="Cannot start a thread to read images"):
        list(Stream(few.test, few, CPU, threads=4).batches(15))


def test_threads_are_divided_among_processes(few: Dataset, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    lazy, tiny = load_folder(pictures, image_size=64), load_folder(pictures, image_size=32)
    monkeypatch.setattr(sys, "platform", "another")
    monkeypatch.setattr(os, "cpu_count", lambda: 20)
    assert (count_threads(lazy.train), count_threads(few.train)) == (16, 2)
    assert count_threads(tiny.train) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (count_threads(lazy.train), count_threads(few.train)) == (5, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert (count_threads(lazy.train), count_threads(few.train)) == (1, 1)


class Stopped(Exception):  # noqa: N818
    """Raised by a test to stop a run."""


class Stopping(Reporter):
    """Stops the run at its sixth step."""

    steps = 0

    def advance(self) -> None:
        self.steps += 1
        if self.steps == 6:
            raise Stopped


def test_training_switches_loaders_bit_for_bit(
    tmp_path: Path, small_run: RunConfig, few: Dataset, assert_same_run: SameRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, schedule = replace(small_run.network, arch="resnet14"), replace(small_run.schedule, epochs=1)
    config = replace(small_run, network=network, schedule=schedule)  # 1 + 1 epochs of four steps
    resident, stream = Execution(loader="resident"), Execution(loader="stream")
    loop.train(tmp_path / "resident", config, few, device=CPU, execution=resident)
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)  # so that it stops, and resumes, in the middle of an epoch
    with contextlib.suppress(Stopped):
        loop.train(tmp_path / "both", config, few, device=CPU, execution=resident, reporter=Stopping())
    assert not (tmp_path / "both" / "evaluation.json").exists()
    loop.train(tmp_path / "both", config, few, device=CPU, execution=stream, resume=True)
    assert_same_run(tmp_path / "resident", tmp_path / "both")


def test_a_folder_larger_than_memory_trains_to_the_same_result(
    tmp_path: Path,
    pictures: Path,
    train_words: Callable[..., list[str]],
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--arch", "resnet14", "--batch", "8", "--image-size", "8"]
    assert cli.main(train_words(tmp_path / "whole", *words, source=pictures)) == 0
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    assert cli.main(train_words(tmp_path / "lazy", *words, source=pictures)) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "lazy")
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "lazy"), "--device", "cpu", "--json"]) == 0
    assert '"n": 4' in capsys.readouterr().out
    file = pictures / "dog" / "004.png"
    file.write_bytes(file.read_bytes()[:-30])
    assert cli.main(train_words(tmp_path / "damaged", *words, source=pictures)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "004.png is damaged or truncated" in captured.err.splitlines()[-1]


def test_tensors_in_memory_are_resident_on_a_cpu(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    data = SplitPlacer(few, CPU).place(few.train)
    assert isinstance(data, Resident)
    assert data.images_NCHW is few.train.images_NCHW


def test_splits_that_fit_are_resident_and_others_are_streamed(lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 4 * 4 * 360)
    placer = SplitPlacer(lazy, CPU)
    assert isinstance(placer.place(lazy.test), Resident)  # four images; eight would fit
    assert isinstance(placer.place(lazy.train), Stream)
    assert isinstance(placer.place(lazy.test), Resident)
    assert isinstance(placer.place(lazy.test), Stream)  # the memory is used up


def test_the_loader_can_be_chosen(few: Dataset, lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(SplitPlacer(few, CPU).place(few.train, "stream"), Stream)
    with pytest.raises(
        UserError, match=r"16 images of pictures take .* GiB free; free memory, or start with --loader stream"
    ):
        SplitPlacer(lazy, CPU).place(lazy.train, "resident")
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 8000)
    assert isinstance(SplitPlacer(lazy, CPU).place(lazy.train, "auto"), Stream)  # more than half of it
    assert isinstance(SplitPlacer(lazy, CPU).place(lazy.train, "resident"), Resident)


def test_the_free_memory_of_a_gpu_is_its_own(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 2 * few.train.images_NCHW.nbytes - 1, 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    cuda = torch.device("cuda:1")
    assert free_memory.free_bytes(cuda) == 2 * few.train.images_NCHW.nbytes - 1
    assert asked == [cuda]


def test_everything_is_resident_if_free_memory_is_unknown(lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: None)
    assert isinstance(SplitPlacer(lazy, CPU).place(lazy.train), Resident)


# Views of random parts of image files


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve JPEG files of several sizes in two classes; brightness tells which is which."""
    for index in range(12):
        folder = tmp_path / "photos" / ("dark" if index % 2 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        down, across = np.mgrid[0 : 40 + index, 0:60]
        levels = np.stack([2 * down, 3 * across, 0 * down + 9 * index], -1).astype(np.uint8)
        Image.fromarray(levels).save(folder / f"{index:02}.jpg", quality=95)
    return tmp_path / "photos"


def delivered(
    data: Dataset, *, threads: int, epoch: int = 4, views: int = 2
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    stream = Stream(data.train, data, CPU, threads=threads)
    augmentation = Augmentation((24, 20), views, flip=True, min_area=0.2, seed=9)
    window = stream.window(3, augmentation)
    found = []
    for index_B in stream.deliver(BATCHES, epoch):
        images, labels = window.take(index_B)
        found.append((images.clone(), labels.clone()))
    return found


def test_threads_cut_views_of_files_and_the_result_does_not_depend_on_them(photos: Path) -> None:
    data = load_folder(photos, image_size=20, whole=True)
    assert isinstance(data.train.images_NCHW, LazyImages)
    one, four = delivered(data, threads=1), delivered(data, threads=4)
    for (images, labels), (again, labels_again), index_B in zip(one, four, BATCHES, strict=True):
        assert images.shape == (6, 3, 24, 20)
        assert torch.equal(images, again)
        assert torch.equal(labels, data.train.labels_N[index_B])
        assert torch.equal(labels, labels_again)
    assert torch.equal(one[0][0][0:2], one[0][0][4:6])  # image 5 twice
    assert not torch.equal(one[0][0][0], one[0][0][1])  # its two views
    later = delivered(data, threads=1, epoch=5)
    assert not torch.equal(one[0][0], later[0][0])


def test_views_of_files_show_the_boxes_that_tensors_would_be_cut_at(photos: Path) -> None:
    data = load_folder(photos, image_size=20, whole=True)
    (images, _), *_ = delivered(data, threads=2)
    sources = data.train.images_NCHW.sources
    draws_BD = hashed_draws(9, 4, BATCHES[0], 2).tolist()
    for row, draws_D in enumerate(draws_BD):
        original = Image.open(sources[int(BATCHES[0][row // 2])])
        box = crop_box(draws_D, original.height, original.width, min_area=0.2)
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        pixels = np.asarray(original.crop(edges).resize((20, 24), Image.Resampling.BILINEAR))
        pixels = pixels[:, ::-1] if is_mirrored(draws_D, flip=True) else pixels
        expected = normalise(
            torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], *map(torch.tensor, (data.mean, data.std))
        )
        assert (images[row] - expected[0]).abs().max() < 0.1


def test_squares_that_fit_are_kept_on_the_device_without_the_crop(image_folder: Callable[..., Path]) -> None:
    square = load_folder(image_folder(size=(32, 32)), image_size=14, crop=0.875, whole=True)
    placed = SplitPlacer(square, CPU).place(square.train, whole=True)
    assert isinstance(placed, Resident)
    assert placed.images_NCHW.shape[1:] == (3, 16, 16)
    oblong = load_folder(image_folder("oblong", size=(32, 40)), image_size=14, crop=0.875, whole=True)
    assert isinstance(SplitPlacer(oblong, CPU).place(oblong.train, whole=True), Stream)
    asked = SplitPlacer(oblong, CPU).place(oblong.train, "resident", whole=True)
    assert isinstance(asked, Resident)
    assert isinstance(SplitPlacer(oblong, CPU).place(oblong.train), Resident)  # plain images for an evaluation


def test_files_that_are_evaluated_are_decoded_in_the_first_pass_only(
    lazy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 10**6)
    placer = SplitPlacer(lazy, CPU)
    monkeypatch.setattr(LazyImages, "decode", lambda *_: pytest.fail("decoded before it was used"))
    placed = placer.place_for_evaluation(lazy.train)
    first = list(placed.batches(5))
    monkeypatch.setattr(LazyImages, "read_into", lambda *_: pytest.fail("decoded again"))
    for size in (5, 16):
        again = list(placed.batches(size))
        for before, after in zip(zip(*first, strict=True), zip(*again, strict=True), strict=True):
            assert torch.equal(torch.cat(before), torch.cat(after))
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    assert not SplitPlacer(lazy, CPU).place_for_evaluation(lazy.test).keep  # type: ignore[union-attr]


# Damaged files


def damage(folder: Path, *names: str) -> None:
    for name in names:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("whole", [False, True])
def test_damaged_files_are_replaced_in_training_and_left_out_of_the_test(
    photos: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = load_folder(photos, image_size=20)
    damage(photos, "light/00.jpg", "dark/05.jpg")
    with pytest.raises(UserError, match=r"\.jpg is damaged or truncated"):
        load_folder(photos, image_size=20)
    in_memory = load_folder(photos, image_size=20, on_damaged="skip")
    assert len(in_memory.train) == len(complete.train)
    assert in_memory.damaged is not None
    assert [Path(name).name for name in in_memory.damaged.names()] == ["05.jpg", "00.jpg"]
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 0)
    lazy = load_folder(photos, image_size=20, on_damaged="skip", whole=whole)
    assert torch.equal(lazy.test.images_NCHW[:], in_memory.test.images_NCHW)
    assert torch.equal(lazy.test.labels_N, in_memory.test.labels_N)
    assert torch.equal(lazy.train.images_NCHW[:], in_memory.train.images_NCHW)
    assert DataInfo.of(lazy).sha256 == DataInfo.of(in_memory).sha256
    stream = Stream(lazy.train, lazy, CPU, threads=2)
    plain_BCHW, labels_B = next(stream.batches(len(lazy.train)))
    names = [Path(path).name for path in lazy.train.images_NCHW.sources]
    for row, name in enumerate(names):
        following = row + 1 if name in ("00.jpg", "05.jpg") else row
        assert torch.equal(plain_BCHW[row], plain_BCHW[following])
        assert labels_B[row] == lazy.train.labels_N[following] == in_memory.train.labels_N[row]
    assert lazy.damaged is not None
    assert {Path(name).name for name in lazy.damaged.names()} == {"00.jpg", "05.jpg"}


def test_a_folder_of_damaged_files_is_an_error(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in photos.glob("*/*.jpg"):
        file.write_bytes(b"damaged")
    with pytest.raises(UserError, match="None of the image files can be read"):
        load_folder(photos, on_damaged="skip")
