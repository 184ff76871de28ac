"""Attacks on images and folders of images: every format, damaged, announcing more than they hold, in many threads."""

import functools
import io
import os
import random
import struct
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.attack.damage import damaged, place
from tests.attack.harness import Attack
from tests.attack.on_data import ODD_VALUES, require_dataset

from codinet.data.dataset import check
from codinet.data.folder_index import ignored_folders
from codinet.data.image_folder import load_folder
from codinet.data.images import FORMATS, read_header, read_image
from codinet.data.loading import load, locate
from codinet.data.quiet import Quiet
from codinet.errors import UserError

UPLOAD_PIXELS = 25_000_000  # the explorer's limit


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()


@functools.cache
def pictures(kind: str) -> list[bytes]:
    """Small valid images of one format, in every mode and with every option that it has."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 4), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    compressions = ("tiff_adobe_deflate", "tiff_lzw", "packbits", "group4", "jpeg", "zstd", "lzma")
    ways: list[dict[str, Any]] = [{}, {"exif": exif}, *({"compression": name} for name in compressions)]
    ways += [{"progressive": True}, {"lossless": True}, {"interlace": 1}, {"save_all": True, "append_images": [noise]}]
    ways += [{"tile": True}, {"big_tiff": True}, {"optimize": True}, {"comment": b"hello"}, {"transparency": 0}]
    found: list[bytes] = []
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "I", "F", "CMYK", "YCbCr", "LAB"):
        image = Image.new(mode, noise.size, 0)
        with suppress(ValueError):
            image = noise.convert("RGB").convert(mode)
        for how in ways:
            # Pillow 12.3 crashes when it encodes other modes in these ways.
            if "compression" in how and mode not in (("1",) if how["compression"] == "group4" else ("RGB", "L")):
                continue
            with suppress(Exception), Quiet():  # not every format has every mode
                content = encoded(image, kind, **how)
                if content not in found:
                    found.append(content)
    if kind == "PPM":
        found += [b"P1 2 2\n1 0 0 1", b"P2 2 2 9\n1 2 3 4 # end", b"P3 1 1 300\n1 2 300", b"P5 2 1 9\n\1\2"]
    if kind == "BMP":
        found += [_run_length(seed) for seed in range(4)]
    return found


def _run_length(seed: int) -> bytes:
    """A BMP of 8×8 pixels in one of the run-length encodings."""
    bits = 8 if seed % 2 else 4
    body = b"\x08\x01\0\0" * 8 + b"\0\1" if seed < 2 else b"\0\2\1\1\x03\1\0\4abcd\0\0\0\1"
    colours = b"abc\0" * 2**bits
    head = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, bits, 1 if bits == 8 else 2, len(body), 0, 0, 2**bits, 0)
    offset = 14 + 40 + len(colours)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + head + colours + body


@contextmanager
def silent(folder: Path) -> Iterator[None]:
    """Asserts that nothing is written to the file descriptors 1 and 2."""
    with (folder / "printed").open("w+b") as printed:
        saved = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(printed.fileno(), descriptor)
        try:
            yield
        finally:
            for descriptor, old in zip((1, 2), saved, strict=True):
                os.dup2(old, descriptor)
                os.close(old)
            printed.seek(0)
            text = printed.read()
    assert not text, text[:500]


def require_image(rng: random.Random, source: Path | bytes) -> None:
    channels, size = rng.choice([1, 3]), rng.choice([None, (8, 8), (1, 1), (5, 90), (224, 224)])
    header = read_header(source, max_pixels=UPLOAD_PIXELS)
    assert min(header[:2]) >= 1
    image = read_image(source, channels=channels, size=size, max_pixels=UPLOAD_PIXELS)
    assert image.dtype == torch.uint8
    assert image.shape == (channels, *(size or image.shape[1:]))


def attack_images(rng: random.Random, folder: Path) -> None:
    kind = rng.choice(FORMATS)
    content = damaged(rng, rng.choice(pictures(kind)), rng.choice(pictures(kind)))
    if kind == "PNG" and rng.random() < 0.7:
        content = _with_checksums(content)
    with silent(folder):
        if rng.random() < 0.5:
            require_image(rng, content)
        else:
            place(rng, folder / "picture", content)
            require_image(rng, folder / "picture")


def _with_checksums(content: bytes) -> bytes:
    """A PNG whose damaged parts have right checksums, so that more than the first check is reached."""
    data, at = bytearray(content), 8
    while at + 12 <= len(data):
        end = at + 8 + struct.unpack_from(">I", data, at)[0]
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end])) if end + 4 <= len(data) else b""
        at = end + 4
    return bytes(data)


def attack_bombs(rng: random.Random, folder: Path) -> None:
    """Small files that announce large images, or have very many parts."""
    sides = [1, 2, 5000, 65_535, 65_536, 25_000_000, 2**31 - 1, 2**32 - 1]
    make = rng.choice([png_bomb, jpeg_bomb, webp_bomb, bmp_bomb, gif_bomb, tiff_bomb, pnm_bomb])
    content = make(rng, rng.choice(sides), rng.choice(sides), rng.choice([1, 1000, 100_000]))
    with silent(folder):
        require_image(rng, content)


def zeros(rng: random.Random) -> bytes:
    return zlib.compress(b"\0" * rng.choice([1, 2**20, 2**25]), 1)


def png_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    how = (rng.choice([1, 8, 16]), rng.choice([0, 2, 3, 4, 6]), 0, 0, rng.choice([0, 1]))
    parts = [b"", chunk(b"tEXt", b"k\0v") * many, chunk(b"zTXt", b"k\0\0" + zeros(rng)), chunk(b"PLTE", b"abc" * 256)]
    parts += [chunk(b"iCCP", b"p\0\0" + zeros(rng)), chunk(b"eXIf", b"II*\0\x08\0\0\0" + b"\xff" * many)]
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">II5B", width, height, *how))
    return head + rng.choice(parts) + chunk(b"IDAT", zeros(rng)) + chunk(b"IEND", b"")


def jpeg_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    segments = [
        b"\xff\xe1\0\x09Exif\0\0x",
        b"\xff\xfe\0\2",
        b"\xff",
        b"\xff\xe2\0\6MPF\0",
        b"\xff\xdb\0\x43\0" + b"\1" * 64,
    ]
    frame = b"\xff\xc2\0\x11\x08" + struct.pack(">HH", height & 0xFFFF, width & 0xFFFF) + b"\3\1\x22\0\2\x11\0\3\x11\0"
    return b"\xff\xd8" + rng.choice(segments) * many + frame + b"\xff\xda\0\x0c\3\1\0\2\0\3\0\0\x3f\0" + b"\0" * 100


def webp_bomb(_rng: random.Random, width: int, height: int, many: int) -> bytes:
    sides = b"".join((side & 0xFFFFFF).to_bytes(3, "little") for side in (width, height))
    body = b"WEBPVP8X\x0a\0\0\0\x10\0\0\0" + sides + b"VP8L" + struct.pack("<I", many) + b"\x2f" + b"\xff" * many
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    how = (1, rng.choice([1, 4, 8, 24, 32]), rng.choice([0, 1, 2, 3]))
    head = struct.pack("<IHHIIIIHHIIiiII", 100, 0, 0, 54, 40, width, height, *how, 0, 0, 0, 0, 0)
    return b"BM" + head + rng.choice([b"\1\0", b"\0\2\xff\xff", b"\0\0"]) * many


def gif_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    sides = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
    parts = rng.choice([b"!\xfe\x01a\0", b"!\x01\0", b"!\xf9\x04\x09\0\0\0\0"]) * many
    return b"GIF89a" + sides + b"\0\0\0" + parts + b",\0\0\0\0" + sides + b"\0\x08\x09" + b"\0" * 10 + b";"


def tiff_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    data = zeros(rng)
    tags = {256: width, 257: height, 258: rng.choice([1, 8, 16, 32]), 259: rng.choice([1, 5, 7, 8, 32773, 50000])}
    tags |= {262: rng.choice([0, 1, 2, 3, 5, 6]), 273: 8, 277: rng.choice([1, 3, 4]), 278: rng.choice([1, height])}
    if rng.random() < 0.5:
        tags |= {322: width, 323: height, 324: 8, 325: len(data)}
    counts = [many if rng.random() < 0.1 else 1 for _ in tags]
    entries = ((tag, 4, count, value & 0xFFFFFFFF) for (tag, value), count in zip(tags.items(), counts, strict=True))
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + table + b"\0\0\0\0" + data


def pnm_bomb(rng: random.Random, width: int, height: int, many: int) -> bytes:
    kind = rng.choice([b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf"])
    depth = rng.choice([b"255\n", b"9\n", b"65535\n", b"#" + b"x" * many])
    return kind + b" %d %d " % (width, height) + depth + rng.choice([b"#\n", b"1 ", b"9", b"\0"]) * many


@functools.cache
def answers() -> list[tuple[bytes, torch.Tensor]]:
    """Valid images and their pixels."""
    found = []
    for kind in FORMATS:
        for content in pictures(kind):
            with suppress(UserError):
                found.append((content, read_image(content, channels=3, size=(8, 8))))
    return found


def attack_threads(rng: random.Random, folder: Path) -> None:
    """Eight threads read valid and damaged images at once, while another one gives and catches warnings."""
    valid = [rng.choice(answers()) for _ in range(40)]
    broken = [damaged(rng, content) for content, _ in valid]

    def read(number: int) -> None:
        content, wanted = valid[number]
        assert torch.equal(read_image(content, channels=3, size=(8, 8)), wanted)
        with suppress(UserError):
            read_image(broken[number], channels=3, size=(8, 8))

    with silent(folder), ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(read, number) for number in range(40)]
        while not all(future.done() for future in reading):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.warn("of the application", stacklevel=1)
            # One of an image can be among them: no thread can keep another from changing the filters.
            assert "of the application" in [str(one.message) for one in caught]
        for future in reading:
            future.result(10)


ODD_NAMES = [
    *(b"cat", b"dog", b"a b", b"\xff", b"\n", b" ", b".hidden", b"__MACOSX", b"x.png", b"train", b"test", b"val", b"-"),
    *("é".encode(), "犬".encode(), b"a" * 255, b"nul\x01", b"%s", b"{}", b"'\"", b"\\", b"CON", b"e\xcc\x81", b"~"),
]


def attack_folders(rng: random.Random, folder: Path) -> None:
    suffixes = [rng.choice([".png", ".JPG", ".gif", ".txt", ".tiff", ".pgm", ".npz", ""]) for _ in range(3)]
    bad = rng.random() < 0.5

    def fill(parent: bytes, depth: int) -> None:
        for number in range(rng.choice([0, 1, 2, 3, 6] if bad else [2, 3, 6])):
            stem = rng.choice([b"%d" % number, rng.choice(ODD_NAMES)])[:200]
            path = Path(os.fsdecode(parent + b"/" + stem + rng.choice(suffixes).encode()))
            content = rng.choice(pictures(rng.choice(FORMATS)))
            with suppress(OSError):
                place(rng, path, damaged(rng, content) if bad and rng.random() < 0.1 else content, 20 if bad else 999)
        if depth and rng.random() < 0.5:
            deeper = parent + b"/" + rng.choice(ODD_NAMES)
            with suppress(OSError):
                os.mkdir(deeper)
                fill(deeper, depth - 1)

    root = os.fsencode(folder) + b"/" + (rng.choice(ODD_NAMES) if rng.random() < 0.2 else b"pictures")
    parts = rng.choice([[b""], [b""], [b"/train", b"/test"], [b"/train"], [b"/train", b"/val", b"/test"]])
    for part in parts:
        os.makedirs(root + part, exist_ok=True)
        for name in [b"cat", b"dog", *rng.sample(ODD_NAMES, rng.choice([0, 0, 1, 2]) if bad else 0)]:
            with suppress(OSError):
                os.makedirs(root + part + b"/" + name, exist_ok=True)
                fill(root + part + b"/" + name, 2)
    if rng.random() < 0.1:
        with suppress(OSError):
            os.symlink(b"..", root + b"/cat/circle")
    path = Path(os.fsdecode(root))
    size = rng.choice([None, None, 8, 8, 1, 0, 9000] if bad else [None, 8])
    if rng.random() < 0.5:
        options: dict[str, Any] = {"whole": rng.random() < 0.5, "on_damaged": rng.choice(["stop", "skip"])}
        require_dataset(check(load_folder(path, image_size=size, **options)))
        ignored_folders(path)
    else:
        require_dataset(load(str(path), folder, image_size=size))
        assert Path(locate(str(path), folder)).is_dir()


def attack_arguments(rng: random.Random, _folder: Path) -> None:
    """`read_image` with odd arguments."""
    arguments: dict[str, Any] = {"source": pictures("PNG")[0], "channels": 3, "size": (8, 8), "max_pixels": 10**6}
    for key in rng.sample(list(arguments), rng.randint(1, 2)):
        sides = [0, 1, -1, 8, 65_535, 65_536, 10**30, 1.5, "8", None]
        arguments[key] = rng.choice([*ODD_VALUES, (rng.choice(sides), rng.choice(sides)), rng.choice(sides)])
    image = read_image(**arguments)
    assert image.dtype == torch.uint8
    assert arguments["size"] is None or image.shape[1:] == arguments["size"]


ATTACKS = [
    Attack("images: damaged", attack_images, quick=60, weight=3.0),
    Attack("images: announce more than they hold", attack_bombs, weight=0.5),
    Attack("images: in many threads", attack_threads, quick=5, weight=0.2),
    Attack("images: odd folders", attack_folders, weight=0.5),
    Attack("images: odd arguments", attack_arguments),
]
