"""Loads a data set by name or path.

Names are those of the known data sets, whose files are under a root folder. Anything else is a path to an image folder
or an `.npz` file. Use `./name` for a folder with the name of a known data set. A folder or file that does not exist at
its path may have been moved; it is searched by its name under the root folder and in the current folder.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codinet.checks import require_whole, shown
from codinet.data.catalogue import KNOWN
from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import Dataset, check, is_printable
from codinet.data.image_folder import load_folder
from codinet.data.npz import load_digits, load_npz
from codinet.data.svhn import load_svhn
from codinet.errors import UserError, suggestion
from codinet.files import unreadable

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _root: load_digits(),
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
}


def load(name_or_path: str, root: Path, *, image_size: int | None = None) -> Dataset:
    """Load and check a data set.

    Args:
        name_or_path: The name of a known data set, an image folder or an `.npz` file.
        root: The folder of known data sets.
        image_size: The side that images of a folder are scaled to.
    """
    _require_arguments(name_or_path, root)
    if image_size is not None:
        require_whole("the image size", image_size, 1)
    with _read_errors(name_or_path):
        return check(_load(name_or_path, root, image_size))


def locate(name_or_path: str, root: Path) -> str:
    """Return what `load` would load, independent of the current folder.

    Args:
        name_or_path: The name of a known data set, an image folder or an `.npz` file.
        root: The folder of known data sets.

    Returns:
        The name of a known data set unchanged, or the absolute path where the data was found.
    """
    _require_arguments(name_or_path, root)
    if name_or_path in _LOADERS:
        return name_or_path
    with _read_errors(name_or_path):
        path = _find(name_or_path, root)
        # Links are kept, because their target may change; with `..` in the path they must be followed.
        located = str(path.resolve() if ".." in path.parts else path.absolute())
    _require_printable(located)
    return located


def _require_arguments(name_or_path: str, root: Path) -> None:
    if not isinstance(name_or_path, str):
        raise UserError(f"A data set must be a name or a path as text, got {shown(name_or_path)}.")
    if not name_or_path:  # as a path it would be the current folder
        raise UserError("The name of a data set must not be empty; give a name, an image folder or an .npz file.")
    _require_printable(name_or_path)
    if not isinstance(root, Path):
        raise UserError(f"The folder of known data sets must be a pathlib.Path, got {shown(root)}.")


def _require_printable(path: str) -> None:
    """Runs store the path of their data set as JSON."""
    if not is_printable(path):
        raise UserError(f"The path {shown(path)} is not printable Unicode; rename the data set or its folder.")


@contextmanager
def _read_errors(name_or_path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Usually a missing permission; the error names the file.
        raise unreadable(error.filename or name_or_path, error) from error
    except MemoryError as error:
        raise UserError(f"{name_or_path} needs more memory than is available; use fewer or smaller images.") from error


def _load(name_or_path: str, root: Path, image_size: int | None) -> Dataset:
    if name_or_path in _LOADERS:
        return _require_image_size(_LOADERS[name_or_path](root), image_size)
    path = _find(name_or_path, root)
    if path.is_dir():
        return load_folder(path, image_size=image_size)
    if _is_npz(path):
        return _require_image_size(load_npz(path), image_size)
    raise UserError(
        f"{path} is neither an image folder nor an .npz file; give one of these, or the name of a data set."
    )


def _find(name_or_path: str, root: Path) -> Path:
    """Return the path, or another location of a folder or an .npz file of that name; else raise a `UserError`."""
    path = Path(os.path.expanduser(name_or_path))  # unlike Path.expanduser, ignores an unknown ~user
    if path.exists():
        return path
    for candidate in (root / path.name, Path(path.name)):
        if path.name != ".." and (candidate.is_dir() or (_is_npz(candidate) and candidate.exists())):
            return candidate
    if _is_npz(path):
        raise UserError(
            f"The file {path} does not exist, and there is no {path.name} here or under {root}; check the path, or set "
            "--data-root to the folder that contains it."
        )
    raise UserError(
        f"Unknown data set {name_or_path!r}{suggestion(name_or_path, KNOWN)}; choose from {', '.join(KNOWN)}, "
        f"or give an image folder or .npz file (no {path.name} here or under {root}; "
        "--data-root sets where else to look)."
    )


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _require_image_size(dataset: Dataset, image_size: int | None) -> Dataset:
    _, height, width = dataset.image_shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise UserError(
            f"{dataset.name} has images of {height}×{width}, and only image folders can be resized; "
            "omit the image size."
        )
    return dataset
