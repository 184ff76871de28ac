import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from codinet.data.images import Header, read_header, read_image
from codinet.errors import UserError

SAVED_AS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def encoded(image: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()


def noise(width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def arrows() -> Image.Image:
    """A 3×2 picture in which every pixel differs."""
    return Image.fromarray(np.array([[10, 20, 30], [40, 50, 60]], dtype=np.uint8))


@pytest.mark.parametrize("kind", SAVED_AS)
def test_every_format_from_bytes_and_file(tmp_path: Path, kind: str) -> None:
    content = encoded(noise(), kind)
    path = tmp_path / "picture"
    path.write_bytes(content)
    image = read_image(path, channels=3, size=None)
    assert image.shape == (3, 30, 40)
    assert image.dtype == torch.uint8
    assert torch.equal(image, read_image(content, channels=3, size=None))
    assert read_header(path) == Header(30, 40, False)


def test_pixels_are_exact_where_nothing_is_converted() -> None:
    assert torch.equal(
        read_image(encoded(noise()), channels=3, size=None), torch.from_numpy(np.array(noise())).permute(2, 0, 1)
    )


def test_grey_to_colour_and_back() -> None:
    grey = read_image(encoded(arrows()), channels=1, size=None)
    assert grey.tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert torch.equal(read_image(encoded(arrows()), channels=3, size=None), grey.expand(3, -1, -1))


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (Image.new("RGBA", (1, 1), (0, 0, 0, 0)), [255, 255, 255]),
        (Image.new("RGBA", (1, 1), (200, 0, 100, 255)), [200, 0, 100]),
        (Image.new("RGBA", (1, 1), (0, 0, 0, 51)), [204, 204, 204]),
        (Image.new("LA", (1, 1), (0, 0)), [255, 255, 255]),
        (Image.new("1", (1, 1), 1), [255, 255, 255]),
        (Image.new("RGB", (1, 1), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE), [1, 2, 3]),
    ],
)
def test_transparency_and_palettes(image: Image.Image, wanted: list[int]) -> None:
    assert read_image(encoded(image), channels=3, size=None).flatten().tolist() == wanted


def test_a_transparent_palette_entry_is_white() -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    read = read_image(encoded(image, transparency=0), channels=3, size=None)
    assert read[:, 0, 0].tolist() == [255, 255, 255]
    assert read[:, 0, 1].tolist() == [0, 255, 0]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_keep_their_brightness(kind: str) -> None:
    values = np.array([[0, 65535, 32768, 257]], dtype=np.uint16)
    read = read_image(encoded(Image.fromarray(values), kind), channels=1, size=None)
    assert read.flatten().tolist() == [0, 255, 128, 1]
    assert read_header(encoded(Image.fromarray(values), kind)).grey


def test_floats_between_zero_and_one_only() -> None:
    image = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    assert read_image(encoded(image, "TIFF"), channels=1, size=None).flatten().tolist() == [0, 128, 255]
    wild = Image.fromarray(np.array([[np.nan, 7.0]], dtype=np.float32))
    with pytest.raises(UserError, match="outside 0 to 1"):
        read_image(encoded(wild, "TIFF"), channels=1, size=None)


def test_cmyk_is_converted() -> None:
    red = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    assert read_image(red, channels=3, size=None)[:, 4, 4].tolist() == pytest.approx([255, 0, 0], abs=3)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_respected(kind: str, orientation: int) -> None:
    upright = np.array(arrows())
    # How a camera held this way would store the upright scene (EXIF 2.3, tag 274).
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright.T[::-1, ::-1],
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **how)
    assert read_image(content, channels=1, size=None)[0].tolist() == upright.tolist()
    if kind == "WEBP":
        assert read_header(content)[:2] == (2, 3)


def test_damaged_metadata_does_not_matter() -> None:
    content = encoded(noise(), "JPEG", exif=b"Exif\0\0garbage that is no directory")
    assert read_image(content, channels=3, size=None).shape == (3, 30, 40)


def test_resizing_covers_then_cuts_the_centre() -> None:
    # Left third black, middle grey, right white: a square cut keeps the middle.
    strip = np.repeat(np.array([[0] * 10 + [100] * 10 + [255] * 10], dtype=np.uint8), 10, axis=0)
    read = read_image(encoded(Image.fromarray(strip)), channels=1, size=(5, 5))
    assert read.shape == (1, 5, 5)
    assert read[0, :, 1:4].unique().tolist() == [100]
    same = read_image(encoded(Image.fromarray(strip)), channels=1, size=(10, 30))
    assert torch.equal(same[0], torch.from_numpy(strip))


def test_shrinking_is_antialiased() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    read = read_image(encoded(Image.fromarray(board)), channels=1, size=(8, 8)).float()
    assert (read - 127.5).abs().max() < 12


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3]))
def test_any_size_to_any_size(width: int, height: int, to_height: int, to_width: int, channels: int) -> None:
    content = encoded(Image.new("RGB", (width, height), (7, 7, 7)))
    read = read_image(content, channels=channels, size=(to_height, to_width))
    assert read.shape == (channels, to_height, to_width)
    assert read.unique().tolist() == [7]


def test_a_thin_strip_does_not_explode() -> None:
    read = read_image(encoded(Image.new("L", (60_000, 1), 9)), channels=1, size=(224, 224))
    assert read.unique().tolist() == [9]


def test_animations_give_their_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(content, channels=3, size=None)[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", SAVED_AS)
def test_a_truncated_file_is_named(tmp_path: Path, kind: str) -> None:
    content = encoded(noise(), kind)
    path = tmp_path / "half.img"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"half\.img"):
        read_image(path, channels=3, size=None)
    with pytest.raises(UserError, match="the upload"):
        read_image(content[: len(content) // 2], channels=3, size=None)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"<svg/>", b"%PDF-1.4", b"MZ" * 99])
def test_what_is_no_image(content: bytes) -> None:
    with pytest.raises(UserError, match="the upload is"):
        read_image(content, channels=3, size=None)


def test_other_formats_are_not_even_tried() -> None:
    with pytest.raises(UserError, match="not an image; use one of PNG"):
        read_image(encoded(Image.new("RGB", (16, 16)), "ICO"), channels=3, size=None)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises that many pixels, and no more than a header."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8_001, 10_000, 60_000])
def test_bombs_are_refused_from_the_header(side: int) -> None:
    for read in (
        lambda: read_image(bomb(side, side), channels=3, size=(32, 32)),
        lambda: read_header(bomb(side, side)),
    ):
        with pytest.raises(UserError, match="the upload is too large"):
            read()


def test_the_limit_can_be_chosen() -> None:
    assert read_image(encoded(noise()), channels=3, size=None, max_pixels=1200).shape == (3, 30, 40)
    with pytest.raises(UserError, match="40×30 pixels, where at most 1,199"):
        read_image(encoded(noise()), channels=3, size=None, max_pixels=1199)


def test_missing_files_folders_and_channels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none cannot be opened"):
        read_image(tmp_path / "none", channels=3, size=None)
    with pytest.raises(UserError, match="cannot be opened"):
        read_image(tmp_path, channels=3, size=None)
    with pytest.raises(UserError, match="not 4"):
        read_image(encoded(noise()), channels=4, size=None)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SAVED_AS), st.data())
def test_damage_never_escapes_as_anything_else(kind: str, data: st.DataObject) -> None:
    content = bytearray(encoded(noise(12, 9), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UserError):
        read_image(bytes(content), channels=3, size=(8, 8))


def test_threads_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    content = [encoded(noise(width, 20), "JPEG") for width in range(10, 40)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda one: read_image(one, channels=3, size=(8, 8)), content * 4))
    assert list(warnings.filters) == before
