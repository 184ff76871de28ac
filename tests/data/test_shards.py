"""Packed data sets: in a folder, and in a bucket of an S3-compatible server on this machine."""

import io
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from codinet import cli, files
from codinet.data import packing, shards
from codinet.data.batches import Stream, image_order
from codinet.data.dataset import Dataset, LazyImages
from codinet.data.image_folder import load_folder
from codinet.data.loading import load, locate
from codinet.data.packing import Packed, pack
from codinet.data.remote import Bucket
from codinet.data.shards import LANES, MANIFEST, ShardFiles, load_shards, shard_order
from codinet.errors import UserError

CPU = torch.device("cpu")
PHOTOS = 60


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small JPEG files of two classes; the first pixel tells the image."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(PHOTOS):
        place = folder / ("even" if index % 2 == 0 else "odd")
        place.mkdir(exist_ok=True)
        levels = np.full((20 + index % 3, 24, 3), 4 * index, np.uint8)
        Image.fromarray(levels).save(place / f"{index:02}.jpg", quality=95)
    return folder


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in shards of about a kilobyte and a half, two images each."""
    out = tmp_path_factory.mktemp("packed") / "photos"
    pack_small(photos, str(out))
    return out


def pack_small(source: Path, out: str, **options: Any) -> Packed:
    """Pack with small shards: a megabyte has 1,500 bytes here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MB", 1500)
        return pack(source, out, shard_mb=1, **options)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
            "no_proxy": "*",
        }.items():
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", endpoint_url=address, region_name="us-east-1").create_bucket(Bucket="data")
        yield "s3://data"
    server.stop()


def levels(data: Dataset, split: str = "train") -> list[int]:
    """Which image is where: the first pixel divided by four."""
    images = getattr(data, split).images_NCHW
    return [round(int(pixel) / 4) for pixel in images[:][:, 0, 0, 0]]


def test_a_packed_folder_holds_the_same_images(photos: Path, packed: Path) -> None:
    folder, data = load_folder(photos, image_size=16), load_shards(str(packed), image_size=16)
    assert (data.classes, data.image_shape, data.crop) == (folder.classes, (3, 16, 16), 1.0)
    assert sorted(levels(data)) == sorted(levels(folder))
    assert levels(data) != levels(folder)  # neighbours are of different classes
    assert levels(data, "test") == levels(folder, "test")
    for split in (data.train, data.test):
        for level, label in zip(levels(data, "train" if split is data.train else "test"), split.labels_N, strict=True):
            assert data.classes[label] == ("even" if level % 2 == 0 else "odd")
    by_level = dict(zip(levels(folder), folder.train.images_NCHW, strict=True))
    for level, image in zip(levels(data), data.train.images_NCHW[:], strict=True):
        assert torch.equal(image, by_level[level])
    assert len(list(packed.glob("train/chunk-0-*.bin"))) > 10


def test_sizes_statistics_and_digest_are_those_of_the_pack(photos: Path, packed: Path, tmp_path: Path) -> None:
    data = load_shards(str(packed))
    assert data.image_shape == load_folder(photos).image_shape == (3, 32, 32)
    assert data.mean == pytest.approx(load_folder(photos, image_size=224).mean)
    pack_small(photos, str(tmp_path / "again"))
    assert load_shards(str(tmp_path / "again")).sha256 == data.sha256 is not None
    other = shutil.copytree(photos, tmp_path / "other")
    shutil.copy(photos / "odd" / "01.jpg", other / "odd" / "03.jpg")
    pack_small(other, str(tmp_path / "changed"))
    assert load_shards(str(tmp_path / "changed")).sha256 != data.sha256


def test_litdata_reads_the_shards(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "LITDATA_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    from litdata import StreamingDataset

    found = StreamingDataset(str(packed / "train"))
    data = load_shards(str(packed), image_size=16)
    sources = data.train.images_NCHW.sources
    assert len(found) == len(sources)
    for index in (0, 7, len(found) - 1):
        assert found[index] == {"image": sources[index], "label": int(data.train.labels_N[index])}


def test_larger_images_are_scaled_down(photos: Path, tmp_path: Path) -> None:
    pack_small(photos, str(tmp_path / "small"), shorter_side=10)
    data = load_shards(str(tmp_path / "small"))
    with Image.open(io.BytesIO(data.train.images_NCHW.sources[0])) as image:
        assert min(image.size) == 10
    assert sorted(levels(data)) == sorted(levels(load_folder(photos, image_size=16)))


def test_damaged_files_stop_a_pack_or_are_left_out(photos: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(photos, tmp_path / "photos")
    victim = folder / "even" / "04.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    with pytest.raises(UserError, match=r"even/04\.jpg is damaged or truncated"):
        pack_small(folder, str(tmp_path / "out"))
    assert not (tmp_path / "out" / MANIFEST).exists()
    found = pack_small(folder, str(tmp_path / "out"), on_damaged="skip")  # over the leftovers
    assert (found.damaged, found.train + found.test) == ([str(victim)], PHOTOS - 1)
    data = load_shards(str(tmp_path / "out"), image_size=16)
    assert 4 not in levels(data) + levels(data, "test")


def test_a_pack_does_not_write_over_other_files(packed: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already holds a packed data set"):
        pack(photos, str(packed))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty, it holds notes\.txt"):
        pack(photos, str(tmp_path / "mine"))


# Order


@pytest.mark.parametrize("batch", [16, 24, 48, 5])
def test_an_order_takes_every_image_at_most_once_and_whole_batches(batch: int) -> None:
    shard_N = torch.arange(700) // 9
    order = shard_order(shard_N, batch=batch, seed=1, epoch=2)
    assert len(order) == 700 // batch * batch
    assert len(order.unique()) == len(order)
    assert torch.equal(order, shard_order(shard_N, batch=batch, seed=1, epoch=2))
    assert not torch.equal(order, shard_order(shard_N, batch=batch, seed=1, epoch=3))


def test_machines_read_their_own_shards_and_few_at_a_time() -> None:
    shards_, batch = 320, 64
    shard_N = torch.arange(shards_ * 50) // 50
    order = shard_order(shard_N, batch=batch, seed=0, epoch=0).view(-1, batch)
    for machines in (2, 4, 8, 16):
        parts = order.unflatten(1, (machines, -1)).transpose(0, 1).flatten(1)
        read = [set(shard_N[part].tolist()) for part in parts]
        assert sum(map(len, read)) <= shards_ + machines  # a shard at a border is read twice
    at_once = [len(shard_N[order[step : step + 5]].unique()) for step in range(0, len(order), 5)]
    assert max(at_once) <= 2 * shards._WINDOW * LANES  # the windows of all lanes
    neighbours = shard_N[order[0]].bincount().max()
    assert neighbours <= 4  # the four images that a batch takes from a lane are of different shards mostly


def test_a_subset_keeps_the_order_by_shards(packed: Path) -> None:
    data = load_shards(str(packed), image_size=16)
    images = data.train.images_NCHW
    assert isinstance(images, LazyImages)
    order = image_order(images, seed=0, epoch=0)
    first = images.pick(order[:8])
    assert len(first.shard_N.unique()) <= 8  # type: ignore[union-attr]
    assert torch.equal(first[:], images[order[:8]])
    assert len(image_order(first, seed=0, epoch=0, batch=4)) == 8


# Damage


@pytest.fixture
def own(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "own")


def read_all(place: Path | str) -> None:
    data = load_shards(str(place), image_size=16)
    data.train.images_NCHW[:]
    data.test.images_NCHW[:]


def test_a_damaged_image_is_detected_where_it_is(own: Path) -> None:
    shard = own / "train" / "chunk-0-3.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1  # of the first image
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"Image \d+ of .*chunk-0-3\.bin is damaged: its checksum does not match; pack"):
        read_all(own)
    data = load_shards(str(own), image_size=16, on_damaged="skip")
    assert len(data.train.images_NCHW[:]) == len(data.train)
    assert data.damaged is not None
    assert len(data.damaged.names()) == 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train/chunk-0-3.bin", None, r"chunk-0-3\.bin does not exist; pack"),
        ("train/chunk-0-3.bin", b"short", r"chunk-0-3\.bin is damaged: it has 5 bytes and should have"),
        ("train.index", None, r"train\.index does not exist; pack"),
        ("train.index", b"{}", r"own is damaged: its indices do not match codinet\.json; pack"),
        ("test.index", "train.index", r"own is damaged: its indices do not match codinet\.json; pack"),
        (MANIFEST, b"{", r"codinet\.json is damaged"),
        (MANIFEST, b"[]", r"codinet\.json is damaged"),
        (MANIFEST, b'{"format": 2}', r"codinet\.json is damaged \(it is of another version"),
    ],
)
def test_damaged_or_missing_files_are_one_sentence(
    own: Path, name: str, change: bytes | str | None, message: str
) -> None:
    if change is None:
        (own / name).unlink()
    else:
        (own / name).write_bytes(change if isinstance(change, bytes) else (own / change).read_bytes())
    with pytest.raises(UserError, match=message):
        read_all(own)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("classes", 5),
        ("channels", 2),
        ("mean", ["x"]),
        ("sizes", [1]),
        ("shards", {"train": []}),
        ("shards", {"train": ["../../secret"], "test": []}),
        ("shards", {"train": ["/etc/passwd"], "test": []}),
        ("extra", 1),
    ],
)
def test_an_invalid_manifest_is_refused(own: Path, entry: str, value: Any) -> None:
    found = json.loads((own / MANIFEST).read_text())
    (own / MANIFEST).write_text(json.dumps(found | {entry: value}))
    with pytest.raises(UserError, match=r"codinet\.json is damaged"):
        load_shards(str(own))


def test_an_index_that_points_outside_is_refused(own: Path) -> None:
    tensors, about = files.load_tensors(own / "train.index")
    for name, value in (("shard_N", 999), ("start_N", -1), ("size_N", 10**9)):
        wrong = {key: tensor.clone() for key, tensor in tensors.items()}
        wrong[name][0] = value
        files.save_tensors(own / "train.index", wrong, about)
        digest = files.sha256((own / "train.index").read_bytes() + (own / "test.index").read_bytes())
        manifest = json.loads((own / MANIFEST).read_text())
        (own / MANIFEST).write_text(json.dumps(manifest | {"sha256": digest}))
        with pytest.raises(UserError, match=r"train\.index is damaged \(it names"):
            load_shards(str(own))


# A bucket


@pytest.fixture
def bucket(s3: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A packed data set in the bucket, and an empty cache."""
    monkeypatch.setenv("CODINET_CACHE", str(tmp_path / "cache"))
    place = f"{s3}/{tmp_path.name}"
    pack_small(photos, place)
    return place


def test_a_data_set_in_a_bucket_is_the_one_in_a_folder(bucket: str, packed: Path) -> None:
    local, remote = load_shards(str(packed), image_size=16), load(bucket, Path(), image_size=16)
    assert remote.sha256 == local.sha256
    assert torch.equal(remote.train.images_NCHW[:], local.train.images_NCHW[:])
    assert torch.equal(remote.train.labels_N, local.train.labels_N)
    assert locate(bucket, Path()) == bucket


def test_only_what_is_needed_is_downloaded_once_and_ahead(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = Bucket.read

    def read(self: Bucket, file: str, *, missing: str) -> bytes:
        asked.append(file)
        return original(self, file, missing=missing)

    monkeypatch.setattr(Bucket, "read", read)
    monkeypatch.setattr(shards, "_AHEAD", 2)
    data = load_shards(bucket, image_size=16)
    images = data.train.images_NCHW
    assert isinstance(images.sources, ShardFiles)
    assert sorted(asked) == [MANIFEST, "test.index", "train.index"]
    asked.clear()
    order = image_order(images, seed=0, epoch=0, batch=4)
    needed = list(dict.fromkeys(f"train/chunk-0-{shard}.bin" for shard in images.shard_N[order[:8]].tolist()))
    stream = Stream(data.train, data, CPU, threads=2)
    window = stream.window(4)
    for _ in stream.deliver(order[:8].split(4)):
        assert len(window.labels_N) == 4
    assert set(asked) == set(needed)
    assert len(asked) == len(needed)
    images[order[:8]]
    load_shards(bucket, image_size=16).train.images_NCHW[order[:8]]  # from the cache
    assert len([name for name in asked if name.endswith(".bin")]) == len(needed)


def test_a_cache_that_is_full_makes_space(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk(NamedTuple):
        free: int
        total: int = 1_000_000

    images = load_shards(bucket, image_size=16).train.images_NCHW
    expected = images[:]
    folder = images.sources.store.folder
    shutil.rmtree(folder)
    monkeypatch.setattr(shards, "_AHEAD", 2)
    # There is room for three shards; a tenth of the disk stays free.
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: Disk(200_000 if len(list(folder.rglob("*.bin"))) < 3 else 100_000)
    )
    again = load_shards(bucket, image_size=16).train.images_NCHW
    assert torch.equal(torch.stack([again[index] for index in range(len(again))]), expected)
    assert len(list(folder.rglob("*.bin"))) == 3


def test_the_newest_shards_stay_on_a_disk_that_others_fill(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk(NamedTuple):
        free: int = 10
        total: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk())
    images = load_shards(bucket, image_size=16).train.images_NCHW
    assert isinstance(images.sources, ShardFiles)
    images.sources.store.expect(range(len(images.sources.store.names)))
    read = [images.sources[index] for index in range(len(images))]
    assert len(list(images.sources.store.folder.rglob("*.bin"))) == len(images.sources.store.names)
    assert all(read)


def test_shards_that_vanish_while_space_is_made_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk(NamedTuple):
        free: int = 10
        total: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk())
    monkeypatch.setattr(shards, "_AHEAD", 0)
    for index in range(200):
        (tmp_path / f"{index}.bin").touch()
    failed: list[BaseException] = []

    def make() -> None:
        try:
            shards.make_space(tmp_path, 1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not list(tmp_path.iterdir())


def test_another_data_set_at_the_same_place_is_not_read_from_the_cache(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODINET_CACHE", str(tmp_path / "cache"))
    place, source = f"{s3}/{tmp_path.name}", tmp_path / "pictures"
    for grey in (100, 200):  # files of equal size
        for name in ("train/a/1", "train/b/1", "test/a/1", "test/b/1"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (grey, 0, 0)).save(source / f"{name}.bmp")
        bucket = Bucket(place)
        pack_small(source, str(tmp_path / f"packed-{grey}"))
        for file in (tmp_path / f"packed-{grey}").rglob("*.*"):  # as a user would copy it over
            bucket.write(str(file.relative_to(tmp_path / f"packed-{grey}")), file.read_bytes())
        images_NCHW = load_shards(place, image_size=16).train.images_NCHW[:]
        assert images_NCHW[:, 0].unique().tolist() == [grey]


def test_a_damaged_shard_in_the_cache_is_downloaded_again(bucket: str) -> None:
    def read() -> torch.Tensor:
        return load_shards(bucket, image_size=16).train.images_NCHW[:]

    expected = read()
    images = load_shards(bucket, image_size=16).train.images_NCHW
    for file in images.sources.store.folder.rglob("*.bin"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    assert torch.equal(read(), expected)


def test_a_truncated_download_is_not_kept(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Bucket.read

    def read(self: Bucket, file: str, *, missing: str) -> bytes:
        content = original(self, file, missing=missing)
        return content[:-1] if file.endswith(".bin") else content

    data = load_shards(bucket, image_size=16)
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "read", read)
        with pytest.raises(UserError, match="is damaged: it has"):
            data.train.images_NCHW[0]
    assert data.train.images_NCHW[0].shape == (3, 16, 16)  # downloaded again


def test_many_threads_read_at_once(bucket: str, packed: Path) -> None:
    remote = load_shards(bucket, image_size=16).train.images_NCHW
    expected = load_shards(str(packed), image_size=16).train.images_NCHW.sources
    wrong: list[int] = []

    def read(start: int) -> None:
        for index in range(start, len(remote)):
            if remote.sources[index] != expected[index]:
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(start,), daemon=True) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://missing-bucket/photos", r"s3://missing-bucket/photos/codinet\.json does not exist"),
        ("s3://data/nothing-here", r"codinet\.json does not exist; it must be the folder or address"),
        ("http://127.0.0.1:9/photos", r"cannot be reached \(.*\); check the address and the network"),
    ],
)
def test_an_unreachable_bucket_is_one_sentence(s3: str, place: str, message: str, capsys: Any) -> None:
    assert cli.main(["train", place, "--image-size", "16", "--out", "unused"]) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert re.search(message, printed[0])


def test_without_obstore_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UserError, match=r"requires obstore; install it with pip install 'codinet\[shards\]'"):
        load_shards("s3://data/photos")


def test_the_command_packs_and_says_what(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "pack", str(photos), str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["train"], found["test"], found["shards"], found["classes"]) == (48, 12, 2, 2)
    assert cli.main(["data", "pack", str(photos)]) == 2
    assert "pack requires an image folder and a place to write" in capsys.readouterr().err
