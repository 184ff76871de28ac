"""One image, safely, from any file or upload to bytes of a wanted shape.

Formats are an allow-list; sizes are checked from the header before anything is decoded; whatever Pillow
raises or warns about on a damaged file becomes one `UserError` that names it. Of animations the first frame
counts. Knows nothing of data sets.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from codinet.data.quiet import no_warnings
from codinet.errors import UserError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"],
)
MAX_PIXELS = 64_000_000

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
    """Whether a file has the name of an image; whether it is one, only its header tells."""
    return entry.suffix.lower() in SUFFIXES and is_visible(entry) and entry.is_file()


def is_visible(entry: Path) -> bool:
    """Whether it is more than what archivers and file managers leave behind."""
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

    `size` is (height, width): the image is scaled to cover it, antialiased, and cut at the centre. None
    keeps the image's own size.
    """
    if channels not in (1, 3):
        raise UserError(f"images have 1 or 3 channels, not {channels}; use a network that takes one of these.")
    with _opened(source, max_pixels) as image:
        image.load()
        upright = _UPRIGHT.get(_orientation(image))
        if upright is not None:
            image = image.transpose(upright)
        flat = _flattened(image).convert("L" if channels == 1 else "RGB")
        if size is not None and (flat.height, flat.width) != size:
            height, width = size
            flat = flat.resize((width, height), Image.Resampling.BILINEAR, box=_centre(flat.size, size))
        values = np.array(flat)  # a copy: torch wants memory it may write to
    return torch.from_numpy(values[None] if channels == 1 else values.transpose(2, 0, 1).copy())


def read_header(source: Path | bytes, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Size and colour without decoding; checks no more than that the header is an image's."""
    with _opened(source, max_pixels) as image:
        width, height = image.size
        # Others either are never turned or already report the turned size.
        if image.format in ("JPEG", "MPO", "WEBP") and _orientation(image) >= 5:
            width, height = height, width
        return Header(height, width, image.mode in _GREY_MODES)


@contextmanager
def _opened(source: Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """The image with only its header read; any trouble until the block ends is the file's."""
    name = "the upload" if isinstance(source, bytes) else str(source)
    try:
        stream = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    except OSError as error:
        raise UserError(f"{name} cannot be opened ({error.strerror}); check the path.") from error
    with stream, no_warnings():
        try:
            with Image.open(stream, formats=FORMATS) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise _too_large(name, f"{image.width}×{image.height} pixels", max_pixels)
                yield image
        except UserError:
            raise
        except Image.DecompressionBombError as error:
            raise _too_large(name, "far more", max_pixels) from error
        except UnidentifiedImageError as error:
            raise UserError(f"{name} is not an image; use one of {', '.join(FORMATS)}.") from error
        except Exception as error:
            # Decoders raise nearly every built-in exception on damaged files.
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise UserError(f"{name} is damaged or cut short ({reason}); replace or remove it.") from error


def _too_large(name: str, found: str, max_pixels: int) -> UserError:
    return UserError(f"{name} is too large: {found}, where at most {max_pixels:,} are read; scale it down.")


def _orientation(image: Image.Image) -> int:
    """1 (upright) to 8; damaged or missing metadata counts as upright."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _flattened(image: Image.Image) -> Image.Image:
    """8 bits a channel without transparency, as L or RGB where the image is so already."""
    if image.mode.startswith("I"):
        values_HW = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((values_HW * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode == "F":
        floats_HW = np.asarray(image)
        if not (floats_HW.min() >= 0 and floats_HW.max() <= 1):
            raise ValueError("floating-point values outside 0 to 1")
        return Image.fromarray((floats_HW * 255 + 0.5).astype(np.uint8))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
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
