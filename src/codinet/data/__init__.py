"""Images in, data sets out. Downloads and checks are `codinet.data.catalogue`'s."""

from codinet.data.dataset import Dataset, Split, check
from codinet.data.images import read_image
from codinet.data.sources import DATA_ROOT, load, locate
from codinet.data.views import crop_flip, normalise, random_views

__all__ = [
    "DATA_ROOT",
    "Dataset",
    "Split",
    "check",
    "crop_flip",
    "load",
    "locate",
    "normalise",
    "random_views",
    "read_image",
]
