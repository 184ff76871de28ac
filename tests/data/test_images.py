import io
import os
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from codinet.data import images
from codinet.data.images import Header, read_header, read_image
from codinet.data.quiet import Quiet
from codinet.errors import UserError
from codinet.predictor import image_files

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


def test_resizing_covers_then_crops_the_centre() -> None:
    # Left third black, middle grey, right white: a square cut keeps the middle.
    strip = np.repeat(np.array([[0] * 10 + [100] * 10 + [255] * 10], dtype=np.uint8), 10, axis=0)
    read = read_image(encoded(Image.fromarray(strip)), channels=1, size=(5, 5))
    assert read.shape == (1, 5, 5)
    assert read[0, :, 1:4].unique().tolist() == [100]
    same = read_image(encoded(Image.fromarray(strip)), channels=1, size=(10, 30))
    assert torch.equal(same[0], torch.from_numpy(strip))


def test_a_crop_keeps_a_fraction_of_the_centre() -> None:
    picture = noise(60, 40)
    content, (left, top, side) = encoded(picture), (16, 6, 28)  # 0.7 of the shorter side
    box = picture.crop((left, top, left + side, top + side)).resize((14, 14), Image.Resampling.BILINEAR)
    cropped = read_image(content, channels=3, size=(14, 14), crop=0.7)
    assert (
        cropped[:, 1:-1, 1:-1].int() - torch.from_numpy(np.array(box)).permute(2, 0, 1)[:, 1:-1, 1:-1]
    ).abs().max() <= 1
    assert torch.equal(
        read_image(content, channels=3, size=(14, 14), crop=1), read_image(content, channels=3, size=(14, 14))
    )
    own = read_image(content, channels=3, size=None, crop=0.5)
    assert own.shape == (3, 40, 60)
    assert torch.equal(own, read_image(content, channels=3, size=(40, 60), crop=0.5))
    assert not torch.equal(own, read_image(content, channels=3, size=None))
    tiny = read_image(encoded(Image.new("L", (60_000, 1), 9)), channels=1, size=(8, 8), crop=0.01)
    assert tiny.unique().tolist() == [9]
    for crop in (0, 0.001, 1.5, float("nan"), None):
        with pytest.raises(UserError, match="crop must be a finite number from"):
            read_image(content, channels=3, size=(14, 14), crop=crop)  # type: ignore[arg-type]


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
def test_other_files_are_not_images(content: bytes) -> None:
    with pytest.raises(UserError, match="the upload is"):
        read_image(content, channels=3, size=None)


def test_other_formats_are_not_even_tried() -> None:
    with pytest.raises(UserError, match="not an image; use one of PNG"):
        read_image(encoded(Image.new("RGB", (16, 16)), "ICO"), channels=3, size=None)


def bomb(width: int, height: int) -> bytes:
    """A PNG that consists of a header with that many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"),
    [(8_001, 8_001), (10_000, 10_000), (60_000, 60_000), (1, 25_000_000), (25_000_000, 1), (1, 65_536)],
)
def test_bombs_are_refused_from_the_header(width: int, height: int) -> None:
    for read in (
        lambda: read_image(bomb(width, height), channels=3, size=(32, 32)),
        lambda: read_header(bomb(width, height)),
    ):
        with pytest.raises(UserError, match="the upload is too large"):
            read()


def tiff(*tags: tuple[int, int, int, bytes], data: bytes = b"") -> bytes:
    """A TIFF file of an 8×8 grey image with more tags: (tag, type, count, value). The data come last."""
    usual = [(256, 8), (257, 8), (258, 8), (262, 1), (277, 1)]
    entries = sorted([*tags, *((tag, 4, 1, struct.pack("<I", value)) for tag, value in usual)])
    end = 8 + 2 + 12 * len(entries) + 4
    table, rest = b"", b""
    for tag, kind, count, value in entries:
        table += struct.pack("<HHI", tag, kind, count)
        table += value if len(value) == 4 else struct.pack("<I", end + len(rest))
        rest += value if len(value) != 4 else b""
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + b"\0\0\0\0" + rest + data


def word(value: int) -> bytes:
    return struct.pack("<I", value)


def test_tiff_files_written_here_can_be_read() -> None:
    strip = [(273, 4, 1, word(8)), (278, 4, 1, word(8)), (279, 4, 1, word(64))]
    assert read_image(tiff(*strip, data=b"\0" * 64), channels=1, size=None).shape == (1, 8, 8)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        # A small image in a tile of 10,000 million pixels, which the decoder would unpack.
        (tiff((259, 3, 1, word(8)), *((tag, 4, 1, word(100_000)) for tag in (322, 323, 324, 325))), "its tiles have"),
        # Two million strips: a gigabyte of objects.
        (tiff((273, 4, 2**21, word(8) * 2**21), (278, 4, 1, word(1)), (279, 4, 1, word(8))), "its tag 273 has more"),
        # Comments that are removed one by one, each time with a copy of the rest.
        (b"P1 9 9\n" + b"#\n" * 500_000, "more than 10,000 comments"),
        # Metadata in a hundred thousand parts, which are joined one by one.
        (b"\xff\xd8" + b"\xff\xe1\0\x09Exif\0\0x" * 100_000, "its header has more than 10,000 parts"),
        (bomb(8, 8)[:33] + (b"\0\0\0\0abCd" + struct.pack(">I", zlib.crc32(b"abCd"))) * 100_000, "its header has more"),
    ],
    ids=["tile", "strips", "comments", "exif", "chunks"],
)
def test_a_small_file_takes_little_time_and_memory(content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=f"the upload is damaged or truncated .{words}"):
        read_image(content, channels=3, size=(32, 32))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["P1", "P2", "P3", "P5", "P6"]), st.integers(1, 65535), st.integers(0, 2**32), st.booleans())
def test_text_and_unusual_depths_give_what_pillow_gives(kind: str, highest: int, seed: int, spaced: bool) -> None:
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(1, 6, 2))
    count = width * height * (3 if kind in ("P3", "P6") else 1)
    values = rng.integers(0, 2 if kind == "P1" else highest + 1, count)
    head = f"{kind}\n# a comment\n{width} {height}\n" + (f"{highest}\n" if kind != "P1" else "")
    if kind in ("P5", "P6"):
        body = values.astype(">u2" if highest > 255 else "u1").tobytes()
    else:
        body = ("\n# 7\n " if spaced else " ").join(map(str, values)).encode()
    content = head.encode() + body
    with Image.open(io.BytesIO(content)) as image:
        wanted = np.array(image, np.int64)
        mode = image.mode
    if mode == "1":
        wanted *= 255
    if mode == "I":
        wanted = (wanted * 255 + 32767) // 65535
    read = read_image(content, channels=3 if count > width * height else 1, size=None)
    assert read.squeeze(0).numpy().tolist() == (wanted.transpose(2, 0, 1) if wanted.ndim == 3 else wanted).tolist()


def test_the_limit_can_be_chosen() -> None:
    assert read_image(encoded(noise()), channels=3, size=None, max_pixels=1200).shape == (3, 30, 40)
    with pytest.raises(UserError, match="40×30 pixels; images may have at most 1,199"):
        read_image(encoded(noise()), channels=3, size=None, max_pixels=1199)
    wrong: Any
    for wrong in (0, -1, 1e9, None):
        with pytest.raises(UserError, match="max_pixels must be a whole number of 1 or more"):
            read_image(encoded(noise()), channels=3, size=None, max_pixels=wrong)


def test_missing_files_folders_and_channels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none cannot be opened"):
        read_image(tmp_path / "none", channels=3, size=None)
    with pytest.raises(UserError, match="cannot be opened"):
        read_image(tmp_path, channels=3, size=None)
    wrong: Any
    for wrong in (4, True, 3.0, None):
        with pytest.raises(UserError, match=f"channels must be 1 or 3, got {wrong}"):
            read_image(encoded(noise()), channels=wrong, size=None)
    for wrong in ((8,), (8, 8, 8), [8, 8], 8):
        with pytest.raises(UserError, match=r"the size of an image must be \(height, width\), got"):
            read_image(encoded(noise()), channels=3, size=wrong)
    for wrong in (0, -1, 8.0, 70_000, None):
        with pytest.raises(
            UserError, match=f"the width of an image must be a whole number from 1 to 65535, got {wrong}"
        ):
            read_image(encoded(noise()), channels=3, size=(8, wrong))
    with pytest.raises(UserError, match=r"must be at most 64,000,000 pixels, got \(8001, 8000\)"):
        read_image(encoded(noise()), channels=3, size=(8001, 8000))
    for wrong in ("picture.png", None, 7):
        with pytest.raises(UserError, match=r"An image must be a pathlib\.Path or the bytes of a file, got"):
            read_image(wrong, channels=3, size=None)


def test_paths_for_predictions(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "notes.txt", ".hidden.png"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    images = [tmp_path / name for name in ("a.JPG", "b.png", "pipe.png")]
    assert image_files([tmp_path, tmp_path / "empty", tmp_path / "none"]) == [
        *images,
        tmp_path / "empty",
        tmp_path / "none",
    ]
    with pytest.raises(UserError, match=r"cannot be read \(File name too long\); check the path"):
        image_files([Path("x" * 5000)])


@pytest.mark.timeout(30)
def test_pipes_devices_and_huge_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(UserError, match=rf"{name} cannot be opened \(Not a regular file"):
            read_image(tmp_path / name, channels=3, size=None)
        with pytest.raises(UserError, match=name):
            read_header(tmp_path / name)
    with (tmp_path / "huge.webp").open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\xffWEBPVP8L")
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"huge\.webp is too large: image files may have at most 1,073,741,824 bytes"):
        read_image(tmp_path / "huge.webp", channels=3, size=None)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SAVED_AS), st.data())
def test_damage_never_escapes_as_anything_else(kind: str, data: st.DataObject) -> None:
    content = bytearray(encoded(noise(12, 9), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UserError):
        read_image(bytes(content), channels=3, size=(8, 8))


def damaged_tiff() -> bytes:
    """A compressed file whose decoder prints an error, and whose tags make Pillow warn."""
    content = bytearray(encoded(noise(), "TIFF", compression="tiff_adobe_deflate"))
    content[200:260] = b"\xff" * 60
    return bytes(content)


def test_damaged_files_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def read(_: int) -> None:
        with pytest.raises(UserError, match="the upload is damaged"):
            read_image(damaged_tiff(), channels=3, size=(8, 8))

    with suppress(Exception), Image.open(io.BytesIO(damaged_tiff())) as image:
        image.load()
    assert "ZIPDecode" in capfd.readouterr().err  # what the decoder prints
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(60)))
    assert capfd.readouterr().err == ""
    with suppress(Exception), Image.open(io.BytesIO(damaged_tiff())) as image:
        image.load()
    assert "ZIPDecode" in capfd.readouterr().err  # and prints again to others


def test_only_threads_that_read_images_ignore_warnings() -> None:
    inside, done = threading.Event(), threading.Event()

    def read() -> None:
        with Quiet():
            warnings.warn("of an image", stacklevel=1)
            inside.set()
            done.wait(30)
            warnings.warn("of an image", stacklevel=1)

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(read)
        assert inside.wait(30)
        with pytest.warns(UserWarning, match="of the training"):
            warnings.warn("of the training", stacklevel=1)
        done.set()
        result.result(30)


def test_overlapping_threads_do_not_silence_warnings_for_good() -> None:
    """`catch_warnings` in another thread may end after the reading of an image that began before it."""
    inside, caught, left = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        with Quiet():
            inside.set()
            caught.wait(30)
        left.set()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(read)
        assert inside.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            caught.set()
            assert left.wait(30)
        result.result(30)
    with pytest.raises(UserWarning, match="still an error"):
        warnings.warn("still an error", stacklevel=1)
    with Quiet(), Quiet():
        warnings.warn("ignored", stacklevel=1)


def test_scikit_learn_copies_the_filter_that_ignores_warnings() -> None:
    """It takes the text of every filter into its threads, as in the t-SNE of an analysis after a prediction."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    with Quiet():
        pass
    nearest = neighbors.NearestNeighbors(n_neighbors=2).fit([[0.0], [1.0], [3.0]])
    assert nearest.kneighbors([[0.9]], return_distance=False).tolist() == [[1, 0]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_small_files_are_read_like_large_ones(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(noise(), kind)
    (tmp_path / "image").write_bytes(content)
    small = [read_image(source, channels=3, size=(9, 7)) for source in (tmp_path / "image", content)]
    monkeypatch.setattr(images, "_MAX_READS", len(content) - 1)
    large = [read_image(source, channels=3, size=(9, 7)) for source in (tmp_path / "image", content)]
    assert all(torch.equal(image, small[0]) for image in small + large)


def test_errors_keep_their_cause(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened") as missing:
        read_image(tmp_path / "none.png", channels=3, size=None)
    assert isinstance(missing.value.__cause__, FileNotFoundError)
