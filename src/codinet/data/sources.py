"""From a name or a path to a data set.

Names are known data sets, found under a root folder; anything else is a path to an image folder or an `.npz`.
A folder that shares a data set's name is reached as `./name`.
"""

import os
from collections.abc import Callable
from pathlib import Path

from codinet.data.arrays import load_arrays
from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import Dataset, check
from codinet.data.digits import load_digits
from codinet.data.folder import load_folder
from codinet.data.official import KNOWN
from codinet.data.svhn import load_svhn
from codinet.errors import UserError, perhaps

DATA_ROOT = Path(os.environ.get("CODINET_DATA", "data"))  # where named data sets lie unless told otherwise

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _root: load_digits(),
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
}


def load(name_or_path: str, root: Path, *, image_size: int | None = None) -> Dataset:
    """The data set, checked. `root` is where named ones lie; `image_size` is for image folders."""
    try:
        return check(_load(name_or_path, root, image_size))
    except OSError as error:
        # Mostly missing permission; the file is in the error, not in the name the user gave.
        raise UserError(
            f"{error.filename or name_or_path} cannot be read ({error.strerror or error}); check its permissions."
        ) from error


def _load(name_or_path: str, root: Path, image_size: int | None) -> Dataset:
    if name_or_path in _LOADERS:
        return _at_size(_LOADERS[name_or_path](root), image_size)
    path = Path(os.path.expanduser(name_or_path))  # unlike the method, leaves an unknown ~user alone
    if path.is_dir():
        return load_folder(path, image_size=image_size)
    if path.suffix.lower() == ".npz":
        return _at_size(load_arrays(path), image_size)
    if path.exists():
        raise UserError(f"{path} is neither an image folder nor an .npz file; give one of these or a name.")
    raise UserError(
        f"there is no data set, folder or .npz file called {name_or_path!r}{perhaps(name_or_path, KNOWN)}; "
        f"names are {', '.join(KNOWN)}."
    )


def _at_size(dataset: Dataset, image_size: int | None) -> Dataset:
    _, height, width = dataset.image_shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise UserError(
            f"{dataset.name} has images of {height}×{width}, and only image folders can be resized; "
            "leave the image size out."
        )
    return dataset
