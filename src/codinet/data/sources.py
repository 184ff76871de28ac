"""From a name or a path to a data set.

Names are known data sets, found under a root folder; anything else is a path to an image folder or an `.npz`.
A folder that shares a data set's name is reached as `./name`. Folders and files that are not where they are said to
be, for they may have been moved, are looked for by their names under the root folder and here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codinet.data.arrays import load_arrays
from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import Dataset, check
from codinet.data.digits import load_digits
from codinet.data.folder import load_folder
from codinet.data.official import KNOWN
from codinet.data.svhn import load_svhn
from codinet.errors import UserError, perhaps
from codinet.files import unreadable

DATA_ROOT = Path(os.environ.get("CODINET_DATA", "data"))  # where named data sets lie unless told otherwise

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _root: load_digits(),
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
}


def load(name_or_path: str, root: Path, *, image_size: int | None = None) -> Dataset:
    """The data set, checked. `root` is where named ones lie; `image_size` is for image folders."""
    with _readable(name_or_path):
        return check(_load(name_or_path, root, image_size))


def locate(name_or_path: str, root: Path) -> str:
    """What `load` would load: a known name as it is, anything else as the absolute path at which it was found, which
    means the same wherever it is read."""
    if name_or_path in _LOADERS:
        return name_or_path
    with _readable(name_or_path):
        path = _find(name_or_path, root)
        # Links stay as they are: whoever made them may point them elsewhere. Beside dots they must be followed.
        return str(path.resolve() if ".." in path.parts else path.absolute())


@contextmanager
def _readable(name_or_path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Mostly missing permission; the file is in the error, not in the name the user gave.
        raise unreadable(error.filename or name_or_path, error) from error


def _load(name_or_path: str, root: Path, image_size: int | None) -> Dataset:
    if name_or_path in _LOADERS:
        return _at_size(_LOADERS[name_or_path](root), image_size)
    path = _find(name_or_path, root)
    if path.is_dir():
        return load_folder(path, image_size=image_size)
    if _is_npz(path):
        return _at_size(load_arrays(path), image_size)
    raise UserError(f"{path} is neither an image folder nor an .npz file; give one of these or a name.")


def _find(name_or_path: str, root: Path) -> Path:
    """The path, or where else there is a folder or an .npz file of its name; `UserError` where there is none."""
    if not name_or_path:  # which as a path would be the current folder
        raise UserError("the data set has no name; give one, an image folder or an .npz file.")
    path = Path(os.path.expanduser(name_or_path))  # unlike the method, leaves an unknown ~user alone
    if path.exists():
        return path
    for place in (root / path.name, Path(path.name)):
        if path.name != ".." and (place.is_dir() or (_is_npz(place) and place.exists())):
            return place
    if _is_npz(path):
        raise UserError(
            f"there is no file {path}, nor a {path.name} here or under {root}; check the path, or point --data-root "
            "to the folder that holds it."
        )
    nor = "" if path.name == name_or_path else f"nor a {path.name} "
    raise UserError(
        f"there is no data set, folder or .npz file called {name_or_path!r}{perhaps(name_or_path, KNOWN)}, {nor}here "
        f"or under {root}; names are {', '.join(KNOWN)}, and --data-root says where else to look."
    )


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _at_size(dataset: Dataset, image_size: int | None) -> Dataset:
    _, height, width = dataset.image_shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise UserError(
            f"{dataset.name} has images of {height}×{width}, and only image folders can be resized; "
            "leave the image size out."
        )
    return dataset
