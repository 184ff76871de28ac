"""Reads one image safely, from any file or upload, as bytes of a given shape.

Only an allow-list of formats is opened, and sizes are checked in the header before anything is decoded. Every exception
or warning of Pillow on a damaged file becomes one `UserError` that names the file. Of an animation the first frame is
used. Safe in many threads at once.

Memory: decoding takes at most 16 bytes per pixel besides the file, 0.4 GB for 25 megapixels.
"""

import io
import logging
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

# Imported here, so that threads do not: Pillow would import the plugins when it opens the first file.
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

from codinet.checks import require_number, require_whole, shown
from codinet.config import SMALLEST_CROP
from codinet.data.quiet import Quiet
from codinet.data.random_crops import Box
from codinet.errors import UserError, first_line
from codinet.files import open_regular

try:
    import simplejpeg  # optional: decodes JPEG files faster
except ImportError:
    simplejpeg = None

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 64_000_000
MAX_SIDE = 65_535  # the limit of JPEG; Pillow's memory depends on the sides, not only on their product
DECODING = 16  # bytes per pixel: the most that decoding takes

_MAX_BYTES = 2**30  # of a file
_MAX_READS = 10_000  # of a header; nearly all are for metadata
_FORWARD = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # PNG and JPEG: Pillow reads their headers without seeking back
_MAX_TAG = 2**20  # bytes of numbers in one tag of a TIFF file
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_BIG_TIFF = 43
_BYTE_TYPES = (1, 2, 7)  # types of TIFF tags that are not numbers
_MAX_SCANS = 200  # of a progressive JPEG, which usually has about 10
_GREY_MODES = frozenset(("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"))
_ORIENTATION = 0x0112  # the EXIF tag
_ORIENTED = frozenset(("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"))  # metadata that may contain it
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Without any handler Python prints Pillow's messages itself. The handlers of the application still get them.
logging.getLogger("PIL").addHandler(logging.NullHandler())


View = tuple[Box, bool]  # the part of an image that a view shows, and whether it is mirrored


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
    crop: float = 1.0,
    max_pixels: int = MAX_PIXELS,
) -> torch.Tensor:
    """Read an image, turned upright by its EXIF orientation, with transparency over white.

    Args:
        source: A path, or the content of a file.
        channels: 1 for grey, 3 for RGB.
        size: (height, width). The image is scaled to cover it, antialiased, and cropped at the centre. None keeps the
            image's own size.
        crop: Fraction of the shorter side that is kept, at the centre, before scaling.
        max_pixels: Larger images are refused.

    Returns:
        uint8 (C, H, W).
    """
    if type(channels) is not int or channels not in (1, 3):
        raise UserError(f"channels must be 1 or 3, got {shown(channels)}; use a network with 1 or 3 input channels.")
    if size is not None:
        _require_size(size)
    require_number("crop", crop, SMALLEST_CROP, 1)
    require_whole("max_pixels", max_pixels, 1)
    _require_source(source)
    return torch.from_numpy(read_pixels(source, channels, size, crop, max_pixels).copy())


def read_pixels(
    source: Path | str | bytes,
    channels: int,
    size: tuple[int, int] | None,
    crop: float = 1.0,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Like `read_image`, but return a read-only view (C, H, W), and do not check the arguments."""
    try:
        with Quiet():
            with _opened(source, max_pixels) as opened:
                image = _decode(opened)
            image = _converted(image, channels)
            own = image.height, image.width
            size = size or own
            if crop != 1 or own != size:
                box = _centre_box(image.size, size, crop)
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
            pixels_HWC = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, channels)
    except UserError:
        raise
    except Exception as error:
        raise _user_error(source, error) from error
    return pixels_HWC.transpose(2, 0, 1)


def read_views(
    source: Path | str | bytes,
    choose: Callable[[int, int], Sequence[View]],
    out_MHWC: np.ndarray,
) -> None:
    """Decode an image once and write several views of it. The arguments are not checked.

    Args:
        source: A path, or the content of a file.
        choose: Called with height and width of the upright image; returns the views. Views that `out_MHWC` has no
            room for only make sure that a JPEG file is decoded finely enough for them.
        out_MHWC: A uint8 array for the views. The number of channels is 1 or 3.
    """
    _, height, width, channels = out_MHWC.shape
    try:
        with Quiet():
            pixels_HWC, views, shrink = _decode_for_views(source, choose, (height, width), channels)
            for out_HWC, (box, mirror) in zip(out_MHWC, views, strict=False):
                top, left = box.top // shrink, box.left // shrink
                bottom, right = -(-(box.top + box.height) // shrink), -(-(box.left + box.width) // shrink)
                part_HWC = torch.from_numpy(pixels_HWC[top:bottom, left:right])
                # With the pixels next to each other in memory, torch scales twice as fast and keeps the layout.
                part_HWC = part_HWC.flip(1) if mirror else part_HWC.contiguous()
                part_BCHW = part_HWC[None].permute(0, 3, 1, 2)
                scaled_BCHW = F.interpolate(part_BCHW, (height, width), mode="bilinear", antialias=True)
                out_HWC[:] = scaled_BCHW[0].permute(1, 2, 0).numpy()
    except UserError:
        raise
    except Exception as error:
        raise _user_error(source, error) from error


def _decode_for_views(
    source: Path | str | bytes, choose: Callable[[int, int], Sequence[View]], size: tuple[int, int], channels: int
) -> tuple[np.ndarray, Sequence[View], int]:
    """Return pixels, views, and by which factor the pixels are smaller than the image: JPEG decodes to a fraction."""
    with _opened(source, MAX_PIXELS) as image:
        views, shrink = None, 1
        if image.format == "JPEG" and image.mode in ("L", "RGB"):
            views = choose(*_upright_size(image))
            least = min(min(box.height / size[0], box.width / size[1]) for box, _ in views)
            shrink = next(factor for factor in (8, 4, 2, 1) if factor <= max(1.0, least))
            if channels == 3 and _orientation(image) == 1:
                pixels_HWC = _decode_jpeg_faster(image, shrink)
                if pixels_HWC is not None:
                    return pixels_HWC, views, shrink
            if shrink > 1:
                image.draft(image.mode, (image.width // shrink, image.height // shrink))
        picture = _decode(image)
    picture = _converted(picture, channels)
    pixels_HWC = np.asarray(picture).reshape(picture.height, picture.width, channels)
    return pixels_HWC, views or choose(picture.height, picture.width), shrink


def _decode_jpeg_faster(image: ImageFile.ImageFile, shrink: int) -> np.ndarray | None:
    """Return the pixels of a JPEG file by simplejpeg; None if it is not installed or refuses the file.

    Pillow uses the same library, libjpeg-turbo, and gives the same pixels, but copies them more often.
    """
    if simplejpeg is None or image.fp is None:
        return None
    _check_scans(image)
    position = image.fp.tell()
    image.fp.seek(0)
    content = image.fp.read()
    image.fp.seek(position)
    height, width = -(-image.height // shrink), -(-image.width // shrink)
    try:
        pixels_HWC = simplejpeg.decode_jpeg(
            content, colorspace="RGB", fastdct=False, fastupsample=False, min_height=height, min_width=width
        )
    except ValueError:  # damaged or unusual; Pillow decides
        return None
    return pixels_HWC if pixels_HWC.shape[:2] == (height, width) else None


def read_header(source: Path | bytes, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Read the size and colour of an image without decoding it."""
    _require_source(source)
    try:
        with Quiet(), _opened(source, max_pixels) as image:
            return Header(*_upright_size(image), image.mode in _GREY_MODES)
    except UserError:
        raise
    except Exception as error:
        raise _user_error(source, error) from error


def _upright_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """Return the height and width of an opened image after it is turned upright."""
    # Other formats have no orientation, or Pillow reports the upright size.
    turned = image.format in ("JPEG", "MPO", "WEBP") and _orientation(image) >= 5
    return (image.width, image.height) if turned else (image.height, image.width)


def _require_source(source: Path | bytes) -> None:
    if not isinstance(source, Path | bytes):
        raise UserError(f"An image must be a pathlib.Path or the bytes of a file, got {shown(source)}.")


def _require_size(size: tuple[int, int]) -> None:
    if not isinstance(size, tuple) or len(size) != 2:
        raise UserError(f"the size of an image must be (height, width), got {shown(size)}.")
    for name, side in zip(("height", "width"), size, strict=True):
        require_whole(f"the {name} of an image", side, 1, MAX_SIDE)
    if math.prod(size) > MAX_PIXELS:
        raise UserError(f"the size of an image must be at most {MAX_PIXELS:,} pixels, got {shown(size)}.")


def _user_error(source: Path | str | bytes, error: Exception) -> UserError:
    """Return the error that names the file for anything that went wrong while reading it."""
    name = _name(source)
    if isinstance(error, MemoryError):
        return UserError(f"{name} needs more memory than is available; scale it down.")
    if isinstance(error, Image.DecompressionBombError):
        return UserError(f"{name} is too large: images may have at most {MAX_PIXELS:,} pixels; scale it down.")
    if isinstance(error, UnidentifiedImageError):
        return UserError(f"{name} is not an image; use one of {', '.join(FORMATS)}.")
    # Decoders raise nearly every built-in exception on damaged files.
    return UserError(f"{name} is damaged or truncated ({first_line(error)[:120]}); replace or remove it.")


def _name(source: Path | str | bytes) -> str:
    return "the upload" if isinstance(source, bytes) else str(source)


@contextmanager
def _opened(source: Path | str | bytes, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """Open the image and read its header; refuse images that are too large."""
    with _stream(source) as stream:
        if isinstance(stream, _CountedStream):
            _check_tiff(stream)
        with Image.open(stream, formats=FORMATS) as image:
            if isinstance(stream, _CountedStream):
                stream.left = sys.maxsize
            width, height = image.size
            if width * height > max_pixels or max(width, height) > MAX_SIDE:
                raise UserError(
                    f"{_name(source)} is too large: {width}×{height} pixels; images may have at most {max_pixels:,} "
                    f"pixels and {MAX_SIDE:,} per side; scale it down."
                )
            tags: Any = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
            # The decoder unpacks whole tiles, which may be larger than the image.
            if tags.get(_TILE_WIDTH, 1) * tags.get(_TILE_LENGTH, 1) > max_pixels:
                raise ValueError(f"its tiles have more than {max_pixels:,} pixels")
            yield image


class _CountedStream(io.BufferedReader):
    """A file that limits how often it is read: Pillow takes a microsecond or more for every part of a header."""

    left = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"its header has more than {_MAX_READS:,} parts")
        return super().read(size)


def _stream(source: Path | str | bytes) -> io.BytesIO | _CountedStream:
    try:
        content = source if isinstance(source, bytes) else _read_small_file(source)
        # Every read of a forward-only header takes at least one byte, so a small file needs no counting.
        if content is not None and len(content) <= _MAX_READS and content.startswith(_FORWARD):
            return io.BytesIO(content)
        if isinstance(source, bytes):
            return _CountedStream(io.BytesIO(source))
        file = open_regular(source)
    except OSError as error:
        raise UserError(f"{source!s} cannot be opened ({error.strerror}); check the path.") from error
    if os.fstat(file.fileno()).st_size > _MAX_BYTES:
        file.close()
        raise UserError(f"{source} is too large: image files may have at most {_MAX_BYTES:,} bytes; scale it down.")
    return _CountedStream(file.detach())


def _read_small_file(path: Path | str) -> bytes | None:
    """Return the content of a small regular file, faster than a file object can; None for any other file."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(handle)
        if status.st_size > _MAX_READS or not stat.S_ISREG(status.st_mode):
            return None
        content = os.read(handle, _MAX_READS)
        return content if len(content) == status.st_size else None
    finally:
        os.close(handle)


def _check_tiff(stream: _CountedStream) -> None:
    """Refuse a TIFF file with very many numbers in a tag: Pillow creates an object for each when it opens the file."""
    header = stream.read(8)
    if header.startswith(tuple(TiffImagePlugin.PREFIXES)):
        header += stream.read(8) if header[2] == _BIG_TIFF else b""
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        stream.seek(tags.next)
        tags.load(stream)
        for tag, kind in tags.tagtype.items():
            if kind not in _BYTE_TYPES and len(tags._tagdata[tag]) > _MAX_TAG:
                raise ValueError(f"its tag {tag} has more than {_MAX_TAG:,} bytes of numbers")
    stream.seek(0)


def _decode(image: ImageFile.ImageFile) -> Image.Image:
    """Return the upright pixels, without the file and the decoder's buffers, which may be larger."""
    if image.format == "PPM" and image.tile[0][0] in ("ppm", "ppm_plain"):
        return _decode_pnm(image)
    _check_scans(image)
    image.load()
    transpose = _TRANSPOSE.get(_orientation(image))
    return image._new(image.im) if transpose is None else image.transpose(transpose)


def _check_scans(image: ImageFile.ImageFile) -> None:
    """Refuse a JPEG file with very many scans: each takes few bytes, and the decoder visits every pixel for it."""
    if image.format not in ("JPEG", "MPO") or not image.info.get("progressive") or image.fp is None:
        return
    position = image.fp.tell()
    image.fp.seek(0)
    if image.fp.read().count(b"\xff\xda") > _MAX_SCANS:
        raise ValueError(f"it has more than {_MAX_SCANS} scans")
    image.fp.seek(position)


def _decode_pnm(image: ImageFile.ImageFile) -> Image.Image:
    """Decode PNM files of text or of unusual depth as Pillow does, but without its Python loop over the values."""
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
    """Return the EXIF orientation, 1 (upright) to 8; 1 if the metadata is damaged or missing."""
    if image.format != "TIFF" and _ORIENTED.isdisjoint(image.info):
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _converted(image: Image.Image, channels: int) -> Image.Image:
    """Return the image as L or RGB, over white where it is transparent."""
    mode, image = "L" if channels == 1 else "RGB", _flatten(image)
    return image if image.mode == mode else image.convert(mode)


def _flatten(image: Image.Image) -> Image.Image:
    """Return the image with 8 bits per channel and without transparency; images in L or RGB keep their mode."""
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


def _centre_box(own: tuple[int, int], size: tuple[int, int], crop: float) -> tuple[float, float, float, float]:
    """Return the centred box with the proportions of `size` and a fraction `crop` of the sides of the largest one.

    Cropping before scaling gives the same pixels, and never creates the long side of a thin strip.
    """
    width, height = own
    scale = crop * min(width / size[1], height / size[0])
    box_width, box_height = min(scale * size[1], width), min(scale * size[0], height)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height
