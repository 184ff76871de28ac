"""A folder of drawn shapes, as a small data set of a user's own: JPEGs of three classes and of mixed sizes."""

import math
import random
from pathlib import Path

from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle")
_CORNERS = {"circle": 40, "square": 4, "triangle": 3}


def save_shapes(folder: Path, images: int = 450, *, seed: int = 0) -> Path:
    """Draw shapes of random colour, place, size and rotation.

    Args:
        folder: Where to write; each class gets a subfolder.
        images: Number of files of all classes together.
        seed: Seed of the drawings.

    Returns:
        The folder.
    """
    draws = random.Random(seed)
    for number in range(images):
        name = CLASSES[number % len(CLASSES)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        _draw(name, draws).save(folder / name / f"{number:04}.jpg", quality=90)
    return folder


def _draw(name: str, draws: random.Random) -> Image.Image:
    width, height = draws.randint(60, 200), draws.randint(60, 200)
    background = tuple(draws.randint(0, 255) for _ in range(3))
    colour = tuple((value + draws.randint(70, 185)) % 256 for value in background)
    image = Image.new("RGB", (width, height), background)
    radius = draws.uniform(0.25, 0.42) * min(width, height)
    x, y = (side / 2 + draws.uniform(-0.08, 0.08) * min(width, height) for side in (width, height))
    turn, corners = draws.uniform(0, 2 * math.pi), _CORNERS[name]
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners)]
    ImageDraw.Draw(image).polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=colour)
    return image
