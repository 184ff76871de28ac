import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from codinet.data import images
from codinet.data.images import View, read_image, read_views
from codinet.data.random_crops import Box
from codinet.errors import UserError


def photo(height: int = 60, width: int = 80, mode: str = "RGB") -> Image.Image:
    """Smooth colours, so that codecs and scaling change little."""
    down, across = np.mgrid[0:height, 0:width]
    levels = np.stack([255 * down / height, 255 * across / width, 127 + 60 * np.sin(down / 9 + across / 7)], -1)
    return Image.fromarray(levels.astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def views_of(source: bytes, views: list[View], size: tuple[int, int], channels: int = 3) -> np.ndarray:
    out_MHWC = np.zeros((len(views), *size, channels), np.uint8)
    read_views(source, lambda _height, _width: views, out_MHWC)
    return out_MHWC


def difference(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first.astype(int) - second).max())


def test_views_are_parts_mirrored_and_scaled() -> None:
    image = photo()
    source = encoded(image, "PNG")
    pixels = np.asarray(image)
    whole, part, mirrored = views_of(
        source, [(Box(0, 0, 60, 80), False), (Box(10, 20, 30, 40), False), (Box(10, 20, 30, 40), True)], (30, 40)
    )
    assert np.array_equal(part, pixels[10:40, 20:60])
    assert np.array_equal(mirrored, part[:, ::-1])
    assert difference(whole, np.asarray(image.resize((40, 30), Image.Resampling.BILINEAR))) <= 1


@pytest.mark.parametrize("decoder", ["simplejpeg", "Pillow"])
@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 3), ("L", 1), ("RGB", 1)])
def test_views_of_jpeg_files(decoder: str, mode: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if decoder == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(images, "simplejpeg", None)
    source = encoded(photo(61, 83, mode), "JPEG", quality=95)
    expected = read_image(source, channels=channels, size=None).permute(1, 2, 0).numpy()
    (view,) = views_of(source, [(Box(5, 7, 40, 50), False)], (40, 50), channels)
    assert np.array_equal(view, expected[5:45, 7:57])


def test_both_decoders_give_the_same_views(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    for height, width, quality in ((61, 83, 60), (240, 333, 90), (500, 375, 75)):
        source = encoded(photo(height, width), "JPEG", quality=quality)
        views = [(Box(height // 5, 0, height // 2, width), True), (Box(0, 0, height, width), False)]
        fast = views_of(source, views, (24, 24))
        with monkeypatch.context() as patched:
            patched.setattr(images, "simplejpeg", None)
            assert np.array_equal(views_of(source, views, (24, 24)), fast)


def test_large_jpeg_files_are_decoded_to_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    image = photo(400, 640)
    source = encoded(image, "JPEG", quality=95)
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(images, "simplejpeg", None)
        for box, shrink in ((Box(0, 0, 400, 640), 8), (Box(0, 0, 200, 640), 4), (Box(300, 500, 60, 70), 1)):
            pixels_HWC, _, found = images._decode_for_views(source, lambda *_, box=box: [(box, False)], (48, 48), 3)
            assert found == shrink
            assert pixels_HWC.shape[:2] == (400 // shrink, 640 // shrink)
            (view,) = views_of(source, [(box, False)], (48, 48))
            edges = (box.left, box.top, box.left + box.width, box.top + box.height)
            expected = np.asarray(image.resize((48, 48), Image.Resampling.BILINEAR, box=edges))
            assert difference(view, expected) <= 12  # next to the edges, where a pixel is the mean of others


@pytest.mark.parametrize("orientation", range(1, 9))
def test_views_are_of_the_upright_image(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = encoded(photo(40, 64), "JPEG", quality=95, exif=exif)
    expected = read_image(source, channels=3, size=None).permute(1, 2, 0).numpy()
    height, width = expected.shape[:2]
    seen: list[tuple[int, int]] = []
    out = np.zeros((1, 20, 24, 3), np.uint8)

    def choose(height: int, width: int) -> list[View]:
        seen.append((height, width))
        return [(Box(height - 20, width - 24, 20, 24), False)]

    read_views(source, choose, out)
    assert seen == [(height, width)]
    assert np.array_equal(out[0], expected[-20:, -24:])


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", "RGBA"), ("PNG", "I;16"), ("GIF", "P"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("TIFF", "RGB")],
)
def test_views_of_other_formats_are_as_images_are_read(kind: str, mode: str) -> None:
    image = (
        Image.fromarray(np.linspace(0, 65535, 40 * 50).reshape(40, 50).astype(np.uint16))
        if mode == "I;16"
        else photo(40, 50).convert(mode)
    )
    source = encoded(image, kind)
    expected = read_image(source, channels=3, size=None).permute(1, 2, 0).numpy()
    (view,) = views_of(source, [(Box(3, 5, 30, 20), False)], (30, 20))
    assert np.array_equal(view, expected[3:33, 5:25])


@pytest.mark.parametrize("kept", [0, 20, 300, 0.6])
def test_views_of_damaged_files_are_refused(kept: float) -> None:
    source = encoded(photo(), "JPEG", quality=95)
    cut = source[: int(kept * len(source)) if isinstance(kept, float) else kept]
    with pytest.raises(UserError, match=r"the upload (is damaged or truncated|is not an image)"):
        views_of(cut, [(Box(0, 0, 60, 80), False)], (20, 20))
