"""Data sets: names and paths in, checked tensors of images and labels out.

Names are imported on first use, so that `codinet.data.catalogue` can be imported without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codinet.config import DATA_ROOT
    from codinet.data.dataset import Dataset, Split, check
    from codinet.data.images import read_image
    from codinet.data.loading import load, locate
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

_MODULES = {
    "DATA_ROOT": "codinet.config",
    "Dataset": "codinet.data.dataset",
    "Split": "codinet.data.dataset",
    "check": "codinet.data.dataset",
    "crop_flip": "codinet.data.views",
    "load": "codinet.data.loading",
    "locate": "codinet.data.loading",
    "normalise": "codinet.data.views",
    "random_views": "codinet.data.views",
    "read_image": "codinet.data.images",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
