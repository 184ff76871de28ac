"""Loads a data set by name or path.

Names are those of the known data sets, whose files are under a root folder. Anything else is a path to an image folder
or an `.npz` file. Use `./name` for a folder with the name of a known data set. A folder or file that does not exist at
its path may have been moved; it is searched by its name under the root folder and in the current folder.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

from codinet.checks import require_choice, require_flag, require_number, require_whole, shown
from codinet.config import RESIZED, SMALLEST_CROP, DataConfig
from codinet.data.catalogue import KNOWN
from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import DamagedFiles, Dataset, check, is_printable
from codinet.data.folder_index import FolderIndex, Sizes
from codinet.data.image_folder import OnDamaged, default_size, load_folder
from codinet.data.npz import load_digits, load_npz
from codinet.data.remote import Bucket, is_url
from codinet.data.shards import is_packed, load_shards, read_manifest
from codinet.data.svhn import load_svhn
from codinet.errors import UserError, suggestion
from codinet.files import unreadable

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _root: load_digits(),
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
}


def load_for(source: str, root: Path, settings: DataConfig) -> Dataset:
    """Load and check a data set as the settings of a run say."""
    return load(
        source,
        root,
        image_size=settings.image_size,
        crop=settings.crop,
        whole=settings.view == RESIZED,
        on_damaged=settings.on_damaged,
    )


def load(
    name_or_path: str,
    root: Path,
    *,
    image_size: int | None = None,
    crop: float | None = None,
    whole: bool = False,
    on_damaged: OnDamaged = "stop",
) -> Dataset:
    """Load and check a data set.

    Args:
        name_or_path: The name of a known data set, an image folder, a packed data set, which may be the address of a
            bucket, or an `.npz` file.
        root: The folder of known data sets.
        image_size: The side that images of a folder are scaled to.
        crop: Fraction of the shorter side of a folder's image that is kept, at the centre; None keeps all of it.
        whole: Whether training will show any part of a folder's images, so that they are decoded on use.
        on_damaged: Whether a folder's image that cannot be read is an error ("stop") or is skipped ("skip").
    """
    _require_arguments(name_or_path, root)
    if image_size is not None:
        require_whole("the image size", image_size, 1)
    crop = 1.0 if crop is None else crop
    require_number("the crop", crop, SMALLEST_CROP, 1)
    require_flag("whole", whole)
    require_choice("on_damaged", on_damaged, get_args(OnDamaged))
    with _read_errors(name_or_path):
        if is_url(name_or_path):
            return check(load_shards(name_or_path, image_size=image_size, crop=crop, on_damaged=on_damaged))
        path = None if name_or_path in _LOADERS else _find(name_or_path, root)
        if path is not None and is_packed(path):
            return check(load_shards(str(path), image_size=image_size, crop=crop, on_damaged=on_damaged))
        if path is not None and path.is_dir():
            return check(load_folder(path, image_size=image_size, crop=crop, whole=whole, on_damaged=on_damaged))
        dataset = _LOADERS[name_or_path](root) if path is None else _load_file(path)
        return check(_require_own_size(dataset, image_size, crop))


class MissingDataError(UserError):
    """An image folder or an `.npz` file that does not exist."""


class Summary(NamedTuple):
    """The content of an image folder or a packed data set, without its pixels."""

    train: int  # number of training images
    channels: int


def holds_files(source: str) -> bool:
    """Return whether a located source is an image folder or a packed data set, whose images can be scaled."""
    return is_url(source) or Path(source).is_dir()


def summarise(source: str, *, most: int, on_damaged: OnDamaged = "stop") -> Summary | None:
    """Return the number of training images of a source that `holds_files`, and their channels.

    Only the headers of images are read; none if there are `most` or more training images, and the result is None.
    """
    if _is_packed(source):
        manifest = read_manifest(Bucket(source))
        return None if manifest.train >= most else Summary(manifest.train, manifest.channels)
    index = _index(source, on_damaged)
    number = len(index.train.paths)
    return None if number >= most else Summary(number, 1 if index.all_grey() else 3)


def default_sides(source: str, *, on_damaged: OnDamaged = "stop") -> tuple[int, int]:
    """Return the height and width that images of a source that `holds_files` get by default."""
    if _is_packed(source):
        return default_size(Sizes(*read_manifest(Bucket(source)).sizes))
    return default_size(_index(source, on_damaged).sizes())


def _is_packed(source: str) -> bool:
    return is_url(source) or is_packed(Path(source))


def _index(source: str, on_damaged: OnDamaged) -> FolderIndex:
    return FolderIndex(Path(source), DamagedFiles() if on_damaged == "skip" else None)


def locate(name_or_path: str, root: Path) -> str:
    """Return what `load` would load, independent of the current folder.

    Args:
        name_or_path: The name of a known data set, an image folder or an `.npz` file.
        root: The folder of known data sets.

    Returns:
        The name of a known data set unchanged, or the absolute path where the data was found.
    """
    _require_arguments(name_or_path, root)
    if name_or_path in _LOADERS or is_url(name_or_path):
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


def _load_file(path: Path) -> Dataset:
    if _is_npz(path):
        return load_npz(path)
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
    if _is_npz(path) or path.parent != Path():
        raise MissingDataError(
            f"The {'file' if _is_npz(path) else 'folder'} {path} does not exist, and there is no {path.name} here or "
            f"under {root}; check the path, or set --data-root to the folder that contains it."
        )
    raise UserError(
        f"Unknown data set {name_or_path!r}{suggestion(name_or_path, KNOWN)}; choose from {', '.join(KNOWN)}, "
        f"or give an image folder or .npz file (no {path.name} here or under {root}; "
        "--data-root sets where else to look)."
    )


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _require_own_size(dataset: Dataset, image_size: int | None, crop: float) -> Dataset:
    _, height, width = dataset.image_shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise UserError(
            f"{dataset.name} has images of {height}×{width}, and only image folders can be resized; "
            "omit the image size."
        )
    if crop != 1:
        raise UserError(f"Only image folders can be cropped, and {dataset.name} is none; omit the crop.")
    return dataset
