"""A data set packed into shards: files of some ten megabytes, each with many images, in a folder or an object store.

`packing` writes them and `load_shards` reads them. The layout of a shard and its index.json are those of litdata, so
that litdata can read them too: the number of images, the offset of each and of the end (uint32), then for each image
the sizes of its file and of its label (uint32), the file, and the label (int64). Our own index has the label, the place
and a checksum of every image, and a digest of its own. So damage is detected where it is, and nothing in a shard is
executed.

Shards of an object store are downloaded when they are needed, some ahead, into the cache of codinet, and kept while
there is space. The order of an epoch (`shard_order`) reads few shards at a time. It is divided into lanes, so that each
machine downloads its own part only.
"""

import math
import os
import shutil
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, overload

import torch

from codinet import files
from codinet.data.dataset import DamagedFiles, Dataset, LazyImages, Split
from codinet.data.folder_index import Sizes, cache_folder
from codinet.data.image_folder import OnDamaged, default_size
from codinet.data.remote import Bucket
from codinet.data.threads import DaemonThreadPool, wait_for
from codinet.errors import UserError, first_line

MANIFEST = "codinet.json"
FORMAT = 1
LANES = 16  # parts of an epoch that different machines can read
_WINDOW = 4  # shards of a lane whose images are shuffled together
_AHEAD = 2 * _WINDOW * LANES  # shards that are downloaded before they are needed: two windows of every lane
_DOWNLOADS = 4  # at the same time
_MAX_OPEN = 256  # files
_FREE = 0.1  # fraction of the disk that stays free
_ATTEMPTS = 3  # to download a shard that another process removes at once
_PACK_AGAIN = "pack the data set again with codinet data pack"


class Manifest(NamedTuple):
    """What MANIFEST says about a packed data set."""

    name: str
    classes: list[str]
    train: int  # images
    channels: int
    mean: list[float]
    std: list[float]
    sizes: list[int]  # `Sizes`
    shards: dict[str, list[str]]  # of each split: the names of the files
    sha256: str  # of the indices of all splits


class ShardIndex(NamedTuple):
    """Where the images of a split are."""

    shard_N: torch.Tensor  # int32: which shard
    start_N: torch.Tensor  # int64: offset of the image file in the shard
    size_N: torch.Tensor  # int64: its bytes
    crc_N: torch.Tensor  # int64: its CRC-32
    label_N: torch.Tensor  # int64
    bytes_S: torch.Tensor  # int64: the size of each shard


def index_name(split: str) -> str:
    """The name of the index of a split."""
    return f"{split}.index"


class _File:
    """An open file that is closed when the last thread has finished with it."""

    handle = -1

    def __init__(self, path: Path) -> None:
        with files.open_regular(path) as file:
            self.handle, self.size = os.dup(file.fileno()), os.fstat(file.fileno()).st_size

    def __del__(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


class ShardStore:
    """The shards of one split: opens those of a folder, and downloads those of an object store. Safe in many threads.

    Args:
        bucket: Where they are.
        names: Their names.
        sizes: Their sizes in bytes.
        digest: The digest of the data set; another one at the same place has another cache.
    """

    def __init__(self, bucket: Bucket, names: Sequence[str], sizes: Sequence[int], digest: str) -> None:
        self.bucket, self.names, self.sizes = bucket, names, sizes
        key = files.sha256(f"{bucket.place} {digest}".encode())[:24]
        self.folder = bucket.folder or cache_folder() / "shards" / key
        self._renewed: set[int] = set()
        self._lock = threading.Lock()
        self._open: dict[int, _File] = {}
        self._pool: DaemonThreadPool | None = None
        self._coming: dict[int, Future[None]] = {}
        self._following: dict[int, Sequence[int]] = {}  # the shards to download next when one is opened

    def read(self, shard: int, start: int, size: int) -> bytes:
        """Return a part of a shard."""
        file = self._file(shard)  # stays open while it is used here
        try:
            return os.pread(file.handle, size, start)
        except OSError as error:
            raise files.unreadable(self.bucket.name(self.names[shard]), error) from error

    def renew(self, shard: int) -> None:
        """Remove a damaged shard from the cache, once, to download it again. A local folder stays as it is."""
        with self._lock:
            if self.bucket.folder is not None or shard in self._renewed:
                return
            self._renewed.add(shard)
            self._open.pop(shard, None)
            with suppress(OSError):
                (self.folder / self.names[shard]).unlink()

    def expect(self, shards: Sequence[int]) -> None:
        """Say which shards will be used, in this order, so that they are downloaded a few ahead."""
        if self.bucket.folder is not None:
            return
        ordered = list(dict.fromkeys(shards))
        self._following = {shard: ordered[at + 1 : at + 1 + _AHEAD] for at, shard in enumerate(ordered)}
        for shard in ordered[:_AHEAD]:
            self._download(shard)

    def _file(self, shard: int) -> "_File":
        file = self._open.get(shard)
        if file is not None:
            return file
        name, renewed = self.bucket.name(self.names[shard]), shard in self._renewed
        try:
            file = self._downloaded(shard) if self.bucket.folder is None else _File(self.folder / self.names[shard])
        except FileNotFoundError as error:
            raise UserError(f"{name} does not exist; {_PACK_AGAIN}.") from error
        except OSError as error:
            raise files.unreadable(name, error) from error
        if file.size != self.sizes[shard]:
            raise files.DamagedError(
                f"{name} is damaged: it has {file.size:,} bytes and should have {self.sizes[shard]:,}; {_PACK_AGAIN}."
            )
        with self._lock:
            if renewed == (shard in self._renewed):
                file = self._open.setdefault(shard, file)
                if len(self._open) > _MAX_OPEN:
                    self._open.pop(next(iter(self._open)))  # closed when no thread uses it any more
                return file
        return self._file(shard)  # another thread renewed the shard since this one was opened

    def _downloaded(self, shard: int) -> "_File":
        for _ in range(_ATTEMPTS):
            wait_for([self._download(shard)], f"Downloading {self.bucket.name(self.names[shard])}")
            for following in self._following.get(shard, ()):
                self._download(following)
            with suppress(FileNotFoundError):  # another process may have removed it to make space
                return _File(self.folder / self.names[shard])
        raise UserError(f"{self.names[shard]} was removed from {self.folder} at once; free space on its disk.")

    def _download(self, shard: int) -> "Future[None]":
        """Start the download of a shard unless it is there or coming."""
        with self._lock:
            coming = self._coming.get(shard)
            # After a failure it is tried again; a shard may have been removed to make space.
            if coming is None or (coming.done() and not self._is_there(shard)):
                self._pool = self._pool or DaemonThreadPool(_DOWNLOADS)
                coming = self._coming[shard] = self._pool.submit(partial(self._fetch, shard))
            return coming

    def _is_there(self, shard: int) -> bool:
        path = self.folder / self.names[shard]
        return path.exists() and path.stat().st_size == self.sizes[shard]

    def _fetch(self, shard: int) -> None:
        if self._is_there(shard):
            return
        path = self.folder / self.names[shard]
        path.parent.mkdir(parents=True, exist_ok=True)
        make_space(cache_folder() / "shards", self.sizes[shard])
        files.write(path, self.bucket.read(self.names[shard], missing=_PACK_AGAIN))


def make_space(cache: Path, needed: int) -> None:
    """Remove the shards that were downloaded first until a tenth of the disk is free. The newest ones stay.

    Args:
        cache: The folder of all cached shards.
        needed: The bytes that will be written.
    """
    if _has_space(cache, needed):
        return
    for path in sorted(cache.rglob("*.bin"), key=_downloaded_at)[: -_AHEAD or None]:
        with suppress(OSError):
            path.unlink()
        if _has_space(cache, needed):
            return


def _has_space(folder: Path, needed: int) -> bool:
    disk = shutil.disk_usage(folder)
    return disk.free - needed >= _FREE * disk.total


def _downloaded_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed by another thread or process
        return 0.0


class ShardFiles(Sequence[bytes]):
    """The image files of a split, read from shards.

    Args:
        store: The shards.
        index: Where the images are.
        order_N: Which images, in which order; None: all.
    """

    def __init__(self, store: ShardStore, index: ShardIndex, order_N: torch.Tensor | None = None) -> None:
        self.store, self.table, self.order_N = store, index, order_N

    def __len__(self) -> int:
        return len(self.table.label_N if self.order_N is None else self.order_N)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "ShardFiles": ...
    def __getitem__(self, index: int | slice) -> "bytes | ShardFiles":
        if isinstance(index, slice):
            return self.pick(range(len(self))[index])
        row = range(len(self))[index] if self.order_N is None else int(self.order_N[index])
        shard, start, size, crc = (int(column[row]) for column in self.table[:4])
        content = self.store.read(shard, start, size)
        if zlib.crc32(content) != crc:
            self.store.renew(shard)
            content = self.store.read(shard, start, size)
        if len(content) != size or zlib.crc32(content) != crc:
            raise files.DamagedError(
                f"Image {row} of {self.store.bucket.name(self.store.names[shard])} is damaged: its checksum does not "
                f"match; {_PACK_AGAIN}."
            )
        return content

    @property
    def shard_N(self) -> torch.Tensor:  # noqa: N802 - named by its shape
        """The shard of each image."""
        return self.table.shard_N if self.order_N is None else self.table.shard_N[self.order_N]

    def pick(self, indices: Sequence[int]) -> "ShardFiles":
        """Return the images at these indices, in that order."""
        order_N = torch.as_tensor(indices, dtype=torch.int64)
        return ShardFiles(self.store, self.table, order_N if self.order_N is None else self.order_N[order_N])

    def expect(self, indices: torch.Tensor) -> None:
        """Say which images will be read, in this order."""
        self.store.expect(self.shard_N[indices].tolist())


def shard_order(shard_N: torch.Tensor, *, batch: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of an epoch, in which batches read few shards at a time.

    Shards are shuffled and laid end to end. This sequence is cut into equal lanes, and each lane is shuffled within
    windows of a few shards. Every batch takes an equal, contiguous part of its images from each lane. So with up to
    `LANES` machines, each reads its own lanes only. The order depends on the arguments alone, not on the processes.

    Args:
        shard_N: The shard of each image.
        batch: Images per step of all processes.
        seed: The seed of the run.
        epoch: The epoch.

    Returns:
        Indices of the images of all whole batches; the few that are left over differ between epochs.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    number, shards = len(shard_N), int(shard_N.max()) + 1
    rank_S = torch.empty(shards, dtype=torch.int64)
    rank_S[torch.randperm(shards, generator=generator)] = torch.arange(shards)
    sequence_N = torch.argsort(rank_S[shard_N.long()], stable=True)
    lanes = math.gcd(batch, LANES)
    steps = number // batch
    length = steps * (batch // lanes)
    window = max(1, _WINDOW * number // shards)
    # A random number within each window, after the number of the window.
    key_VP = torch.rand(lanes, length, generator=generator) + torch.arange(length) // window
    starts_V1 = torch.arange(lanes)[:, None] * (number // lanes)
    lanes_VP = sequence_N[(starts_V1 + torch.argsort(key_VP, dim=1)).flatten()].view(lanes, length)
    return lanes_VP.unflatten(1, (steps, batch // lanes)).transpose(0, 1).flatten()


def load_shards(
    place: str, *, image_size: int | None = None, crop: float = 1.0, on_damaged: OnDamaged = "stop"
) -> Dataset:
    """Load a data set that `codinet data pack` has packed. Images are decoded on use.

    Args:
        place: The folder, or the address of a bucket.
        image_size: The side of the square that images are scaled to. Default: as for an image folder.
        crop: Fraction of the shorter side of an image that is kept, at the centre, before scaling.
        on_damaged: Whether an image that cannot be read is an error or is replaced by another one.
    """
    bucket = Bucket(place)
    manifest = read_manifest(bucket)
    sizes = Sizes(*manifest.sizes)
    height, width = (image_size, image_size) if image_size is not None else default_size(sizes)
    damaged = DamagedFiles() if on_damaged == "skip" else None
    contents = {split: bucket.read(index_name(split), missing=_PACK_AGAIN) for split in ("train", "test")}
    if files.sha256(b"".join(contents.values())) != manifest.sha256:
        raise files.DamagedError(f"{bucket.place} is damaged: its indices do not match {MANIFEST}; {_PACK_AGAIN}.")
    splits = []
    for split, content in contents.items():
        index = _read_index(content, manifest, split, bucket)
        sources = ShardFiles(ShardStore(bucket, manifest.shards[split], index.bytes_S.tolist(), manifest.sha256), index)
        images = LazyImages(sources, manifest.channels, (height, width), crop, bool(sizes.square), damaged)
        splits.append(Split(images, index.label_N))
    return Dataset(
        name=manifest.name,
        train=splits[0],
        test=splits[1],
        classes=tuple(manifest.classes),
        mean=tuple(manifest.mean),
        std=tuple(manifest.std),
        pad=min(height, width) // 8,
        flip=True,
        crop=crop,
        sha256=manifest.sha256,
        damaged=damaged,
    )


def is_packed(folder: Path) -> bool:
    """Return whether a folder holds a packed data set."""
    return (folder / MANIFEST).is_file()


def read_manifest(bucket: Bucket) -> Manifest:
    """Read and check the manifest of a packed data set."""
    where = bucket.name(MANIFEST)
    content = bucket.read(MANIFEST, missing="it must be the folder or address that codinet data pack wrote")
    try:
        found = files.parse_json(content)
        if found.pop("format") != FORMAT:
            raise ValueError("it is of another version")
        manifest = Manifest(**found)
        for name, kind in _KINDS.items():
            if not isinstance(getattr(manifest, name), kind):
                raise ValueError(f"{name} is invalid")
        numbers = [*manifest.mean, *manifest.std, *manifest.sizes]
        if len(manifest.sizes) != len(Sizes._fields) or any(type(each) not in (int, float) for each in numbers):
            raise ValueError("a number is invalid")
        if manifest.channels not in (1, 3) or set(manifest.shards) != {"train", "test"}:
            raise ValueError("channels or shards are invalid")
        names = [name for split in manifest.shards.values() for name in split]
        if any(not isinstance(name, str) or ".." in name or name.startswith("/") for name in names):
            raise ValueError("the name of a shard is invalid")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise files.DamagedError(f"{where} is damaged ({first_line(error)}); {_PACK_AGAIN}.") from error
    return manifest


_KINDS: dict[str, type] = {
    "name": str,
    "classes": list,
    "train": int,
    "channels": int,
    "mean": list,
    "std": list,
    "sizes": list,
}
_KINDS |= {"shards": dict, "sha256": str}


def _read_index(content: bytes, manifest: Manifest, split: str, bucket: Bucket) -> ShardIndex:
    where = bucket.name(index_name(split))
    tensors, _ = files.parse_tensors(content, where)
    try:
        index = ShardIndex(**tensors)
        number, shards = len(index.label_N), len(manifest.shards[split])
        lengths = {len(column) for column in index[:5]}
        if lengths != {number} or len(index.bytes_S) != shards or number == 0:
            raise ValueError("its columns differ in length")
        if int(index.shard_N.min()) < 0 or int(index.shard_N.max()) >= shards:
            raise ValueError("it names shards that do not exist")
        ends_N = index.start_N + index.size_N
        if int(index.start_N.min()) < 0 or bool((ends_N > index.bytes_S[index.shard_N.long()]).any()):
            raise ValueError("it names parts that do not exist")
    except (ValueError, TypeError) as error:
        raise files.DamagedError(f"{where} is damaged ({first_line(error)}); {_PACK_AGAIN}.") from error
    return index
