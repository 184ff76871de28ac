"""Packs an image folder into shards (`shards`), in a folder or an object store.

Every image is decoded once, so damaged files are found here and not in a training. Training images are packed in a
fixed random order, so that neighbours are of different classes. The manifest is written last: without it, the rest is a
leftover of an interrupted pack, which the next one replaces.
"""

import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from codinet import files
from codinet.checks import require_whole
from codinet.data.batches import epoch_order
from codinet.data.dataset import DamagedFiles, LazyImages, channel_stats
from codinet.data.folder_index import Files, FolderIndex, summarise_sizes
from codinet.data.image_folder import OnDamaged
from codinet.data.images import Header, read_header, read_pixels, read_views
from codinet.data.random_crops import Box
from codinet.data.remote import Bucket
from codinet.data.shards import FORMAT, MANIFEST, Manifest, ShardIndex, index_name
from codinet.data.threads import map_in_threads
from codinet.errors import UserError

SHARD_MB = 32
MB = 10**6  # bytes
_MOST_MB = 2048  # offsets are 32-bit numbers
_GROUP = 512  # files that are read together
_QUALITY = 95  # of JPEG files that are scaled down
_STATISTICS_SIDE = 224
_OURS = re.compile(r"(train|test)/(chunk-0-\d+\.bin|index\.json)|(train|test)\.index|" + re.escape(MANIFEST))
_ITEM_HEADER = 8  # bytes: the sizes of image and label
_LABEL_BYTES = 8

Progress = Callable[[int, int], None]  # images done, of how many


class Packed(NamedTuple):
    """What was packed."""

    train: int  # images
    test: int
    shards: int
    bytes: int
    classes: int
    damaged: list[str]


class _Item(NamedTuple):
    content: bytes
    header: Header


@dataclass
class _Writer:
    """Writes the shards of one split."""

    bucket: Bucket
    split: str
    limit: int  # bytes of a shard
    items: list[tuple[bytes, int]] = field(default_factory=list)
    held: int = 0  # bytes of the items
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # the columns of `ShardIndex`

    def add(self, content: bytes, label: int) -> None:
        size = _ITEM_HEADER + len(content) + _LABEL_BYTES
        if self.items and self.held + size > self.limit:
            self.flush()
        self.items.append((content, label))
        self.held += size

    def flush(self) -> None:
        """Write a shard in the layout of litdata."""
        if not self.items:
            return
        shard, position = len(self.names), 4 * (len(self.items) + 2)
        offsets, body = [position], []
        for content, label in self.items:
            header = np.array([len(content), _LABEL_BYTES], "<u4").tobytes()
            body += [header, content, np.array(label, "<i8").tobytes()]
            start = position + _ITEM_HEADER
            self.rows.append((shard, start, len(content), zlib.crc32(content), label))
            position = start + len(content) + _LABEL_BYTES
            offsets.append(position)
        whole = np.array([len(self.items), *offsets], "<u4").tobytes() + b"".join(body)
        self.names.append(f"{self.split}/chunk-0-{shard}.bin")
        self.sizes.append(len(whole))
        self.bucket.write(self.names[-1], whole)
        self.items, self.held = [], 0

    def finish(self) -> bytes:
        """Write what is left and both indices; return ours."""
        self.flush()
        if not self.rows:
            raise UserError(f"No {self.split} image can be read; replace the damaged files.")
        counts = np.bincount([row[0] for row in self.rows]).tolist()
        self.bucket.write(f"{self.split}/index.json", _litdata_index(self.names, self.sizes, counts, self.limit))
        shard_N, start_N, size_N, crc_N, label_N = torch.tensor(self.rows, dtype=torch.int64).T
        columns = ShardIndex(shard_N.int(), start_N, size_N, crc_N, label_N, torch.tensor(self.sizes))
        content = files.pack_tensors(columns._asdict())
        self.bucket.write(index_name(self.split), content)
        return content


def pack(
    source: Path,
    out: str,
    *,
    shard_mb: int = SHARD_MB,
    shorter_side: int | None = None,
    on_damaged: OnDamaged = "stop",
    progress: Progress = lambda _done, _total: None,
) -> Packed:
    """Pack an image folder.

    Args:
        source: The folder.
        out: A folder that is new or empty, or the address of an empty place in an object store.
        shard_mb: The size of a shard in megabytes; a larger image has a shard of its own.
        shorter_side: Images whose shorter side is longer are scaled down to it and saved as JPEG. Default: files are
            packed as they are.
        on_damaged: Whether a file that cannot be read is an error or is left out.
        progress: Called with the number of images that are done.

    Returns:
        What was packed.
    """
    require_whole("--shard-mb", shard_mb, 1, _MOST_MB)
    if shorter_side is not None:
        require_whole("--shorter-side", shorter_side, 8, 10_000)
    bucket = Bucket(out)
    _require_free(bucket)
    damaged = DamagedFiles() if on_damaged == "skip" else None
    index = FolderIndex(source, damaged)
    total, done = len(index.train.paths) + len(index.test.paths), 0
    shuffled = index.train.pick(epoch_order(len(index.train.paths), seed=0, epoch=0))
    headers: list[Header] = []
    writers, digest = {}, []
    for split, part in (("train", shuffled), ("test", index.test)):
        writers[split] = writer = _Writer(bucket, split, shard_mb * MB)
        for items, labels in _read(part, shorter_side, damaged):
            for item, label in zip(items, labels, strict=True):
                if item is not None:
                    headers.append(item.header)
                    writer.add(item.content, label)
            done += len(items)
            progress(done, total)
        digest.append(writer.finish())
    channels = 1 if all(header.grey for header in headers) else 3
    mean, std = channel_stats(
        LazyImages(index.train.paths, channels, (_STATISTICS_SIDE, _STATISTICS_SIDE), damaged=damaged)
    )
    manifest = Manifest(
        source.resolve().name,
        list(index.classes),
        len(writers["train"].rows),
        channels,
        list(mean),
        list(std),
        list(summarise_sizes(headers)),
        {split: writer.names for split, writer in writers.items()},
        files.sha256(b"".join(digest)),
    )
    bucket.write(MANIFEST, files.to_json({"format": FORMAT, **manifest._asdict()}).encode())
    return Packed(
        train=len(writers["train"].rows),
        test=len(writers["test"].rows),
        shards=sum(len(writer.names) for writer in writers.values()),
        bytes=sum(sum(writer.sizes) for writer in writers.values()),
        classes=len(index.classes),
        damaged=damaged.names() if damaged else [],
    )


def _require_free(bucket: Bucket) -> None:
    """Only a place that is empty, or holds the leftovers of an interrupted pack, may be written."""
    found = bucket.names()
    if MANIFEST in found:
        raise UserError(f"{bucket.place} already holds a packed data set; choose another place.")
    foreign = next((name for name in found if not _OURS.fullmatch(name) and not name.endswith(".tmp")), None)
    if foreign is not None:
        raise UserError(f"{bucket.place} is not empty, it holds {foreign}; choose another place.")


def _read(
    part: Files, shorter_side: int | None, damaged: DamagedFiles | None
) -> Iterator[tuple[list[_Item | None], list[int]]]:
    """Read groups of files in threads; None stands for a damaged one."""

    def read(path: str) -> _Item | None:
        try:
            return _checked(path, shorter_side)
        except UserError as error:
            if damaged is None:
                raise
            damaged.add(path, str(error))
            return None

    for start in range(0, len(part.paths), _GROUP):
        yield (
            map_in_threads(read, part.paths[start : start + _GROUP], "Reading images"),
            part.labels_N[start : start + _GROUP].tolist(),
        )


def _checked(path: str, shorter_side: int | None) -> _Item:
    """The content of a file that can be decoded, scaled down if it is too large."""
    try:
        content = files.read(Path(path))
    except OSError as error:
        raise files.unreadable(path, error) from error
    try:
        header = read_header(content)
        if shorter_side is not None and min(header[:2]) > shorter_side:
            return _scaled(content, header, shorter_side)
        # To an eighth of the size, which is fast for JPEG files and decodes all of their data.
        read_views(content, lambda h, w: [(Box(0, 0, h, w), False)], np.empty((1, 8, 8, 3), np.uint8))
    except UserError as error:
        raise UserError(str(error).replace("the upload", path)) from error
    return _Item(content, header)


def _scaled(content: bytes, header: Header, side: int) -> _Item:
    scale = side / min(header[:2])
    height, width = (round(scale * each) for each in header[:2])
    pixels_CHW = read_pixels(content, 1 if header.grey else 3, (height, width))
    picture = Image.fromarray(pixels_CHW[0] if header.grey else pixels_CHW.transpose(1, 2, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return _Item(buffer.getvalue(), Header(height, width, header.grey))


def _litdata_index(names: list[str], sizes: list[int], counts: list[int], limit: int) -> bytes:
    """The index.json with which litdata reads the shards: dictionaries of `image` (bytes) and `label` (int)."""
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": '["image", "label"]', "children_spec": [leaf, leaf]}
    chunks = [
        {"chunk_bytes": size, "chunk_size": count, "dim": None, "filename": name.rpartition("/")[2]}
        for name, size, count in zip(names, sizes, counts, strict=True)
    ]
    config = {
        "chunk_bytes": limit,
        "chunk_size": None,
        "compression": None,
        "data_format": ["bytes", "int"],
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    return json.dumps({"chunks": chunks, "config": config}).encode()
