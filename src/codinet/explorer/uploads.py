"""From a request's body to an image, within bounds that hold while it arrives, not after."""

import asyncio

import torch
from fastapi import Request
from starlette.requests import ClientDisconnect

from codinet.data import read_image
from codinet.errors import UserError
from codinet.explorer.limits import Limits
from codinet.explorer.problems import RefusedError

# Not one of the types that a form of another page can send without the browser asking us first.
CONTENT_TYPE = "application/octet-stream"


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, or a `RefusedError` as soon as it is too long, too slow or not what was announced."""
    if request.headers.get("content-type") != CONTENT_TYPE:
        raise RefusedError(415, f"Send the image's bytes as {CONTENT_TYPE}.")
    # A length that is announced is refused before a byte is read; one that is not is counted.
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > limits.upload_bytes:
        raise _too_long(limits)
    parts, length = [], 0
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for part in request.stream():
                length += len(part)
                if length > limits.upload_bytes:
                    raise _too_long(limits)
                parts.append(part)
    except TimeoutError:
        raise RefusedError(408, "The upload took too long; try again.", hang_up=True) from None
    except ClientDisconnect:
        raise RefusedError(400, "The upload broke off.") from None
    if not length:
        raise RefusedError(422, "The upload is empty; choose an image file.")
    return b"".join(parts)


def decode(content: bytes, image_shape: tuple[int, int, int], limits: Limits) -> torch.Tensor:
    """The image as the network's uint8 (C, H, W), its size checked from the header before it is decoded."""
    channels, height, width = image_shape
    try:
        return read_image(content, channels=channels, size=(height, width), max_pixels=limits.upload_pixels)
    except UserError as error:
        sentence = str(error)
        raise RefusedError(422, sentence[:1].upper() + sentence[1:]) from None


def _too_long(limits: Limits) -> RefusedError:
    most = f"{limits.upload_bytes / 1e6:g} MB"
    return RefusedError(413, f"The upload is too large: at most {most} are taken; scale it down.", hang_up=True)
