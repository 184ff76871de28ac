"""From a name or a path to a data set.

Names are known data sets, found under a root folder. Anything else is a path to an image folder or an `.npz` file. Use
`./name` for a folder that has the name of a known data set. A folder or file that does not exist at its path may have
been moved; it is searched by its name under the root folder and in the current folder.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codinet.checks import require_whole, shown
from codinet.data.arrays import load_arrays
from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import Dataset, check, is_printable
from codinet.data.digits import load_digits
from codinet.data.folder import load_folder
from codinet.data.official import KNOWN
from codinet.data.svhn import load_svhn
from codinet.errors import UserError, perhaps
from codinet.files import unreadable

DATA_ROOT = Path(os.environ.get("CODINET_DATA", "data"))  # where known data sets are, by default

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _root: load_digits(),
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
}


def load(name_or_path: str, root: Path, *, image_size: int | None = None) -> Dataset:
    """The data set, checked.

    `name_or_path` is a known name, an image folder or an `.npz` file. `root` is the folder that holds known data sets.
    `image_size` is the side that images of a folder are scaled to.
    """
    _require_arguments(name_or_path, root)
    if image_size is not None:
        require_whole("the image size", image_size, 1)
    with _readable(name_or_path):
        return check(_load(name_or_path, root, image_size))


def locate(name_or_path: str, root: Path) -> str:
    """What `load` would load: a known name unchanged, anything else as the absolute path where it was found.

    The result means the same in every current folder.
    """
    _require_arguments(name_or_path, root)
    if name_or_path in _LOADERS:
        return name_or_path
    with _readable(name_or_path):
        path = _find(name_or_path, root)
        # Links are kept, because they may be changed to point elsewhere; with `..` in the path they must be followed.
        located = str(path.resolve() if ".." in path.parts else path.absolute())
    _require_printable(located)
    return located


def _require_arguments(name_or_path: str, root: Path) -> None:
    if not isinstance(name_or_path, str):
        raise UserError(f"a data set is a name or a path, given as text, not {shown(name_or_path)}.")
    if not name_or_path:  # as a path it would be the current folder
        raise UserError("the data set has no name; give a name, an image folder or an .npz file.")
    _require_printable(name_or_path)
    if not isinstance(root, Path):
        raise UserError(f"the folder of known data sets is a pathlib.Path, not {shown(root)}.")


def _require_printable(path: str) -> None:
    """Runs note the path of their data set as JSON."""
    if not is_printable(path):
        raise UserError(f"the path {shown(path)} is not printable Unicode; rename the data set or its folder.")


@contextmanager
def _readable(name_or_path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Mostly missing permission, for a file that is named in the error.
        raise unreadable(error.filename or name_or_path, error) from error
    except MemoryError as error:
        raise UserError(f"{name_or_path} needs more memory than there is; use fewer or smaller images.") from error


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
    """The path, or another place with a folder or an .npz file of that name; `UserError` if there is none."""
    path = Path(os.path.expanduser(name_or_path))  # unlike Path.expanduser, ignores an unknown ~user
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
