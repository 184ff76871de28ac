"""One image, safely, from any file or upload to bytes of a wanted shape.

Formats are an allow-list. Sizes are checked from the header before anything is decoded. Whatever Pillow raises or warns
about on a damaged file becomes one `UserError` that names it. Of an animation the first frame is used. Safe in many
threads at once. Knows nothing of data sets.

Memory: decoding takes at most 16 bytes per pixel besides the file, 0.4 GB for 25 megapixels.
"""

import io
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

# Imported here, so that threads do not: Pillow would import them when it opens the first file.
from PIL import (  # noqa: F401
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from codinet.checks import require_whole, shown
from codinet.data.quiet import Quiet
from codinet.errors import UserError, first_line
from codinet.files import open_regular

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"],
)
MAX_PIXELS = 64_000_000
MAX_SIDE = 65_535  # the most that JPEG allows; Pillow's memory depends on the sides, not only on their product
DECODING = 16  # bytes per pixel that decoding an image takes at most

_MAX_BYTES = 2**30  # of a file
_MAX_READS = 10_000  # of a header: parts of metadata, mostly
_MAX_TAG = 2**20  # bytes of numbers in one tag of a TIFF file
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_BIG_TIFF = 43
_BYTES = (1, 2, 7)  # types of tags that are not numbers
_MAX_SCANS = 200  # of a progressive JPEG, which usually has about 10
_GREY_MODES = frozenset(("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"))
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Without any handler Python prints the decoder's complaints itself; the application's own handlers still get them.
logging.getLogger("PIL").addHandler(logging.NullHandler())


def is_image_file(entry: Path) -> bool:
    """Whether a path has the name of an image and is not a folder. Reading it shows whether it is one."""
    return entry.suffix.lower() in SUFFIXES and is_visible(entry) and not entry.is_dir()


def is_visible(entry: Path) -> bool:
    """Whether a path is more than what archivers and file managers leave behind."""
    return not entry.name.startswith((".", "__MACOSX"))


class Header(NamedTuple):
    """What is known of an image before decoding it."""

    height: int
    width: int
    grey: bool


def read_image(
    source: Path | bytes,
    *,
    channels: int,
    size: tuple[int, int] | None,
    max_pixels: int = MAX_PIXELS,
) -> torch.Tensor:
    """The image upright as uint8 (C, H, W): grey for one channel, RGB for three, transparency over white.

    `size` is (height, width): the image is scaled to cover it, antialiased, and cut at the centre. None keeps the
    image's own size. `source` is a path or the content of a file.
    """
    if type(channels) is not int or channels not in (1, 3):
        raise UserError(f"images have 1 or 3 channels, not {shown(channels)}; use a network that takes one of these.")
    if size is not None:
        _require_size(size)
    require_whole("max_pixels", max_pixels, 1)
    with _errors_of(source):
        flat, mode = _flattened(_decoded(source, max_pixels)), "L" if channels == 1 else "RGB"
        flat = flat if flat.mode == mode else flat.convert(mode)
        if size is not None and (flat.height, flat.width) != size:
            height, width = size
            flat = flat.resize((width, height), Image.Resampling.BILINEAR, box=_centre(flat.size, size))
        values = np.array(flat)  # a copy: torch needs memory that it may write to
    return torch.from_numpy(values[None] if channels == 1 else values.transpose(2, 0, 1).copy())


def read_header(source: Path | bytes, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Size and colour without decoding; checks only that the header is one of an image."""
    with _errors_of(source), _opened(source, max_pixels) as image:
        width, height = image.size
        # Other formats are never turned, or report the turned size already.
        if image.format in ("JPEG", "MPO", "WEBP") and _orientation(image) >= 5:
            width, height = height, width
        return Header(height, width, image.mode in _GREY_MODES)


def _require_size(size: tuple[int, int]) -> None:
    if not isinstance(size, tuple) or len(size) != 2:
        raise UserError(f"the size of an image must be (height, width), got {shown(size)}.")
    for name, side in zip(("height", "width"), size, strict=True):
        require_whole(f"the {name} of an image", side, 1, MAX_SIDE)
    if math.prod(size) > MAX_PIXELS:
        raise UserError(f"the size of an image must be at most {MAX_PIXELS:,} pixels, got {shown(size)}.")


@contextmanager
def _errors_of(source: Path | bytes) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault, and the error names it."""
    name = _name(source)
    try:
        with Quiet():
            yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{name} needs more memory than there is; scale it down.") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} is too large: images have at most {MAX_PIXELS:,} pixels; scale it down.") from error
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is not an image; use one of {', '.join(FORMATS)}.") from error
    except Exception as error:
        # Decoders raise nearly every built-in exception on damaged files.
        raise UserError(f"{name} is damaged or cut short ({first_line(error)[:120]}); replace or remove it.") from error


def _name(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return "the upload"
    if isinstance(source, Path):
        return str(source)
    raise UserError(f"an image is a pathlib.Path or the bytes of a file, not {shown(source)}.")


@contextmanager
def _opened(source: Path | bytes, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """The image with only its header read, if it is not too large."""
    with _stream(source) as stream:
        _check_tiff(stream)
        with Image.open(stream, formats=FORMATS) as image:
            assert isinstance(image, ImageFile.ImageFile)
            stream.left = sys.maxsize
            width, height = image.size
            if width * height > max_pixels or max(width, height) > MAX_SIDE:
                raise UserError(
                    f"{_name(source)} is too large: {width}×{height} pixels, where at most {max_pixels:,} and "
                    f"{MAX_SIDE:,} a side are read; scale it down."
                )
            tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
            # The decoder unpacks whole tiles, which may be larger than the image.
            if tags.get(_TILE_WIDTH, 1) * tags.get(_TILE_LENGTH, 1) > max_pixels:
                raise ValueError(f"its tiles have more than {max_pixels:,} pixels")
            yield image


class _Stream(io.BufferedReader):
    """A file that counts how often it is read: Pillow takes a microsecond or more for every part of a header."""

    left = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"its header has more than {_MAX_READS:,} parts")
        return super().read(size)


def _stream(source: Path | bytes) -> _Stream:
    if isinstance(source, bytes):
        return _Stream(io.BytesIO(source))
    try:
        file = open_regular(source)
    except OSError as error:
        raise UserError(f"{source} cannot be opened ({error.strerror}); check the path.") from error
    if os.fstat(file.fileno()).st_size > _MAX_BYTES:
        file.close()
        raise UserError(f"{source} is too large: image files have at most {_MAX_BYTES:,} bytes; scale it down.")
    return _Stream(file.detach())


def _check_tiff(stream: _Stream) -> None:
    """Refuse a TIFF file with very many numbers in a tag: Pillow makes objects of them when it opens the file."""
    header = stream.read(8)
    if header.startswith(tuple(TiffImagePlugin.PREFIXES)):
        header += stream.read(8) if header[2] == _BIG_TIFF else b""
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        stream.seek(tags.next)
        tags.load(stream)
        for tag, kind in tags.tagtype.items():
            if kind not in _BYTES and len(tags._tagdata[tag]) > _MAX_TAG:
                raise ValueError(f"its tag {tag} has more than {_MAX_TAG:,} bytes of numbers")
    stream.seek(0)


def _decoded(source: Path | bytes, max_pixels: int) -> Image.Image:
    """The pixels, upright. The file and the decoder's buffers, which may be larger than the pixels, are freed."""
    with _opened(source, max_pixels) as image:
        if image.format == "PPM" and image.tile[0][0] in ("ppm", "ppm_plain"):
            return _decoded_pnm(image)
        _check_scans(image)
        image.load()
        upright = _UPRIGHT.get(_orientation(image))
        return image._new(image.im) if upright is None else image.transpose(upright)


def _check_scans(image: Image.Image) -> None:
    """Refuse a JPEG file whose scans would keep the decoder busy: each takes a few bytes and visits every pixel."""
    fp = getattr(image, "fp", None)
    if image.format not in ("JPEG", "MPO") or not image.info.get("progressive") or fp is None:
        return
    place = fp.tell()
    fp.seek(0)
    if fp.read().count(b"\xff\xda") > _MAX_SCANS:
        raise ValueError(f"it has more than {_MAX_SCANS} scans")
    fp.seek(place)


def _decoded_pnm(image: ImageFile.ImageFile) -> Image.Image:
    """The same as Pillow gives for PNM files of text or of unusual depth, where it loops over the values in Python."""
    tile: Any = image.tile[0]
    codec, _, offset, (_, highest) = tile if image.mode != "1" else (*tile[:3], ("1", 1))
    depth = 65535 if image.mode == "I" else 255
    count = image.width * image.height * len(image.getbands())
    assert image.fp is not None
    image.fp.seek(offset)
    values: np.ndarray
    if codec == "ppm":
        kind = np.dtype(">u2" if highest > 255 else "u1")
        values = np.frombuffer(image.fp.read(count * kind.itemsize), kind, count)
    else:
        text = image.fp.read()
        if text.count(b"#") > _MAX_READS:
            raise ValueError(f"more than {_MAX_READS:,} comments")
        text = re.sub(rb"#[^\r\n]*[\r\n]?", b"", text)
        if image.mode == "1":
            bits = np.frombuffer(text.translate(None, b" \t\n\r\v\f"), np.uint8, count)
            if ((bits != ord("0")) & (bits != ord("1"))).any():
                raise ValueError("a bit is neither 0 nor 1")
            return Image.frombytes("L", image.size, ((ord("1") - bits) * 255).tobytes())
        if re.search(rb"[^\s\d]|\d{10}", text):
            raise ValueError("a value is not a small number")
        values = np.fromstring(text, np.int32, sep=" ")[:count]
        if len(values) < count or values.max() > highest:
            raise ValueError(f"it needs {count:,} values up to {highest}")
    table = [min(depth, round(value / highest * depth)) for value in range(2 ** (8 * min(2, values.itemsize)))]
    pixels = np.array(table, np.int32 if image.mode == "I" else np.uint8)[values]
    return Image.frombytes(image.mode, image.size, pixels.tobytes())


def _orientation(image: Image.Image) -> int:
    """1 (upright) to 8; damaged or missing metadata counts as upright."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _flattened(image: Image.Image) -> Image.Image:
    """8 bits a channel without transparency, as L or RGB if the image is so already."""
    if image.mode.startswith("I"):
        values_HW = np.array(image, np.int32)
        np.clip(values_HW, 0, 65535, out=values_HW)
        values_HW *= 255
        values_HW += 32767
        values_HW //= 65535
        return Image.fromarray(values_HW.astype(np.uint8))
    if image.mode == "F":
        floats_HW = np.asarray(image)
        if not (floats_HW.min() >= 0 and floats_HW.max() <= 1):
            raise ValueError("floating-point values outside 0 to 1")
        floats_HW = floats_HW * 255
        floats_HW += 0.5
        return Image.fromarray(floats_HW.astype(np.uint8))
    if image.has_transparency_data:
        picture = image if image.mode == "RGBA" else image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _centre(own: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest centred box of the wanted proportions.

    Cutting first and scaling once equals scaling first, without ever making the long side of a thin strip.
    """
    width, height = own
    scale = min(width / size[1], height / size[0])
    box_width, box_height = min(scale * size[1], width), min(scale * size[0], height)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height
