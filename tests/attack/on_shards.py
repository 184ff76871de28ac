"""Attacks on packed data sets, on the index of a large folder, and on views of image files."""

import functools
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from tests.attack.damage import NUMBERS, damaged
from tests.attack.harness import Attack
from tests.attack.on_data import ODD_VALUES
from tests.attack.on_images import pictures, silent

from codinet import files
from codinet.data import folder_index, packing
from codinet.data.image_folder import load_folder
from codinet.data.images import FORMATS, read_views
from codinet.data.loading import load
from codinet.data.packing import pack
from codinet.data.random_crops import Box, crop_box, hashed_draws
from codinet.data.shards import MANIFEST, load_shards


@functools.cache
def photos() -> dict[str, bytes]:
    """Twelve small files of two classes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for index in range(12):
            file = Path(folder) / "photo.jpg"
            Image.new("RGB", (16 + index, 20), (20 * index, 99, 0)).save(file, quality=90)
            found[f"{'ab'[index % 2]}/{index:02}.jpg"] = file.read_bytes()
        return found


def write(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@functools.cache
def packed() -> tuple[dict[str, bytes], torch.Tensor]:
    """The files of a packed data set, and its training images."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(packing, "MB", 1500):
        source, out = write(Path(folder) / "photos", photos()), Path(folder) / "out"
        pack(source, str(out), shard_mb=1)
        found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        return found, load_shards(str(out), image_size=8).train.images_NCHW[:]


def attack_shards(rng: random.Random, folder: Path) -> None:
    """Damage, remove or exchange files; what can still be read must be right."""
    content, expected = packed()
    content = dict(content)
    for name in rng.sample(sorted(content), rng.randint(1, 2)):
        change = rng.randrange(6)
        if change == 0:
            del content[name]
        elif change == 1:
            content[name] = content[rng.choice(sorted(content))]
        else:
            content[name] = damaged(rng, content[name])
    data = load_shards(str(write(folder / "own", content)), image_size=8, on_damaged=rng.choice(["stop", "skip"]))
    images, used = data.train.images_NCHW.decode(range(len(data.train)))
    assert len(images) == len(expected)
    assert torch.equal(images, expected[used])


def attack_manifests(rng: random.Random, folder: Path) -> None:
    """Any value in the manifest, and any number in the index, with the digests that belong to them."""
    content, _ = packed()
    own = write(folder / "own", content)
    manifest: dict[str, Any] = json.loads(content[MANIFEST])
    if rng.random() < 0.5:
        split, column = (
            rng.choice(["train", "test"]),
            rng.choice(["shard_N", "start_N", "size_N", "label_N", "bytes_S"]),
        )
        tensors, about = files.load_tensors(own / f"{split}.index")
        number = rng.choice([*NUMBERS, -(2**31), 5000])
        tensors[column][rng.randrange(len(tensors[column]))] = max(-(2**31), min(2**31 - 1, number))
        files.save_tensors(own / f"{split}.index", tensors, about)
        manifest["sha256"] = files.sha256((own / "train.index").read_bytes() + (own / "test.index").read_bytes())
    else:
        values = [value for value in ODD_VALUES if isinstance(value, str | int | float | list | dict | None)]
        key = rng.choice([*manifest, "other"])
        manifest[key] = rng.choice([*values, ["../x"], {"train": [1], "test": [2]}, [1e400], [0] * 6, ["a", "a"]])
    (own / MANIFEST).write_bytes(json.dumps(manifest).encode(errors="replace"))
    data = load(str(own), folder, image_size=8)
    data.train.images_NCHW[:]
    data.test.images_NCHW[:]


def attack_index(rng: random.Random, folder: Path) -> None:
    """A damaged cache gives the same data as none."""
    source = write(folder / "photos", photos())
    for path in (source, *source.rglob("*")):
        os.utime(path, (10**9, 10**9))
    environment = {"CODINET_CACHE": str(folder / "cache")}
    with mock.patch.object(folder_index, "LARGE", 5), mock.patch.dict(os.environ, environment):
        expected = load_folder(source)
        for file in (folder / "cache").rglob("*"):
            if file.is_file() and rng.random() < 0.7:
                file.write_bytes(damaged(rng, file.read_bytes()))
        again = load_folder(source)
    assert (again.mean, again.std, again.sha256) == (expected.mean, expected.std, expected.sha256)
    assert torch.equal(again.train.images_NCHW[:], expected.train.images_NCHW[:])


def attack_views(rng: random.Random, folder: Path) -> None:
    """Views of damaged files, of any format."""
    source = rng.choice(pictures(rng.choice(FORMATS)))
    source = source if rng.random() < 0.3 else damaged(rng, source, rng.choice(pictures(rng.choice(FORMATS))))
    channels, size = rng.choice([1, 3]), (rng.choice([1, 8, 24]), rng.choice([1, 8, 24]))
    draws_D = hashed_draws(rng.randrange(2**32), 0, torch.tensor([rng.randrange(2**40)]), 1)[0].tolist()
    seen: list[Box] = []

    def choose(height: int, width: int) -> list[tuple[Box, bool]]:
        seen.append(crop_box(draws_D, height, width, min_area=rng.choice([0.01, 0.25, 1.0])))
        return [(seen[0], rng.random() < 0.5)]

    out_MHWC = np.zeros((1, *size, channels), np.uint8)
    with silent(folder):
        read_views(source, choose, out_MHWC)
    assert len(seen) == 1


ATTACKS = [
    Attack("shards: damaged", attack_shards),
    Attack("shards: odd manifests", attack_manifests),
    Attack("folders: damaged index", attack_index, weight=0.5),
    Attack("images: views of damaged files", attack_views, quick=60, weight=2.0),
]
