"""Tensors as PNG files in memory."""

import base64
import io

import torch
from PIL import Image

THUMBNAIL = 96  # pixels on the longer side


def png(image_CHW: torch.Tensor, *, longest: int | None = None) -> bytes:
    """A uint8 image of one or three channels, every pixel kept unless a longer side is scaled to `longest`."""
    values = image_CHW.cpu().numpy()
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0).copy())
    if longest is not None:
        picture.thumbnail((longest, longest))  # never enlarges: the browser does that better
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def data_url(image_CHW: torch.Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image_CHW)).decode()
