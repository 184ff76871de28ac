"""Data sets from `.npz` files: the user's own, and the handwritten digits that are part of codinet.

Keys of a user's file: `x_train, y_train, x_test, y_test`, or one pair (`x, y` or `images, labels`), of which a fixed,
stratified fifth becomes the test split. `classes` may name the classes. Images are bytes, or floats in 0..1, as NHW,
NHWC or NCHW. Nothing in the file is executed.

The digits are 1,797 grey images of 8×8 from E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository, 1998, doi 10.24432/C50P49, licensed CC BY 4.0. Changed: only the original test images are
included, re-encoded as a NumPy archive (see `digits.LICENSE.txt`). The split into 1,297 and 500 is ours. Both splits
contain images by the same writers, so accuracies are not comparable with the literature.
"""

import errno
import sys
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codinet.data.catalogue import DIGITS_FILE
from codinet.data.dataset import Dataset, Split, channel_stats, hold_out, require_names
from codinet.data.free_memory import require_memory
from codinet.errors import UserError, first_line
from codinet.files import open_regular, unreadable

_PAIRS = (("x", "y"), ("images", "labels"))
_FOUR = ("x_train", "y_train", "x_test", "y_test")
_BLOCK = 2**22  # values that are converted together, so that a copy as floats takes little memory
_DIGITS_TEST = 500  # images


def load_npz(path: Path) -> Dataset:
    """Load a user's `.npz` file. It is augmented like an image folder: crops padded by an eighth, and mirrors."""
    arrays = _read(path)
    if all(key in arrays for key in _FOUR):
        train = _split(arrays, "x_train", "y_train", path)
        test = _split(arrays, "x_test", "y_test", path)
    else:
        pairs = [pair for pair in (_FOUR[:2], *_PAIRS) if all(key in arrays for key in pair)]
        if len(pairs) > 1:
            one, other = (", ".join(pair) for pair in pairs[:2])
            raise UserError(f"{path} contains both ({one}) and ({other}); keep one pair of images and labels.")
        if not pairs or pairs[0] not in _PAIRS:
            found = ", ".join(arrays) or "nothing"
            raise UserError(
                f"{path} has {found}; it needs x_train, y_train, x_test and y_test, or x and y, or images and labels."
            )
        everything = _split(arrays, *pairs[0], path)
        train_indices, test_indices = hold_out(everything.labels_N, max(1, round(len(everything) / 5)))
        if not len(test_indices):
            raise UserError(
                f"{path} has one image per class, so none is left for testing; add images or provide both splits "
                "(x_train, y_train, x_test and y_test)."
            )
        train, test = everything.subset(train_indices), everything.subset(test_indices)
    mean, std = channel_stats(train.images_NCHW)
    return Dataset(
        name=path.stem,
        train=train,
        test=test,
        classes=_class_names(arrays.get("classes"), train, test, path),
        mean=mean,
        std=std,
        pad=min(train.images_NCHW.shape[2:]) // 8,
        flip=True,
    )


def load_digits() -> Dataset:
    """Load the handwritten digits that are part of codinet, with one channel."""
    try:
        with resources.files(__package__).joinpath(DIGITS_FILE).open("rb") as file, np.load(file) as archive:
            images_NHW = torch.from_numpy(archive["images"])
            labels_N = torch.from_numpy(archive["labels"].astype(np.int64))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError("The embedded digits are damaged; reinstall codinet.") from error
    # 0..16 to 0..255, rounded, in integers.
    images_N1HW = ((images_NHW.int() * 255 + 8) // 16).to(torch.uint8)[:, None]
    everything = Split(images_N1HW, labels_N)
    train_indices, test_indices = hold_out(labels_N, _DIGITS_TEST)
    train = everything.subset(train_indices)
    mean, std = channel_stats(train.images_NCHW)
    return Dataset(
        name="digits",
        train=train,
        test=everything.subset(test_indices),
        classes=tuple("0123456789"),
        mean=mean,
        std=std,
        pad=1,
        flip=False,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    known_keys = {*_FOUR, *(key for pair in _PAIRS for key in pair), "classes"}
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise UserError(f"The file {path} does not exist; check the path.") from error
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        with file:
            with zipfile.ZipFile(file) as archive:
                members = [
                    member for member in archive.infolist() if member.filename.removesuffix(".npy") in known_keys
                ]
            # Twice: for the arrays, and for the copy in the order that training uses.
            needed = 2 * sum(member.file_size for member in members)
            require_memory(needed, what=str(path), hint="use fewer or smaller images")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {key: _member(arrays, key, path) for key in arrays.files if key in known_keys}
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{path} needs more memory than is available; use fewer or smaller images.") from error
    except Exception as error:
        # The offsets in a damaged file can be invalid, and then reading fails with an OSError of that number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise unreadable(path, error) from error
        # zip, zlib and numpy each have their own errors for a damaged file.
        raise UserError(f"{path} is damaged or not an .npz file ({first_line(error)}); write it again.") from error


def _member(file: "np.lib.npyio.NpzFile", key: str, path: Path) -> np.ndarray:
    try:
        array: Any = file[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        kind = "text" if key == "classes" else "numbers"
        raise UserError(f"{path} has Python objects in {key!r}, which are not loaded; save {kind} instead.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path} has {key!r}, but it is not an array; write the file with numpy.savez.")
    return array


def _split(arrays: dict[str, np.ndarray], images_key: str, labels_key: str, path: Path) -> Split:
    # Removed, so that images that are copied are not in memory twice.
    images, labels = arrays.pop(images_key), arrays.pop(labels_key)
    if images.ndim and labels.ndim and len(images) != len(labels):
        raise UserError(
            f"{path} has {len(images)} images in {images_key!r} but {len(labels)} labels in "
            f"{labels_key!r}; each image needs one label."
        )
    images_NCHW = _images(images, images_key, path)
    labels_N = _labels(labels, labels_key, path)
    if len(labels_N) == 0:
        raise UserError(f"{path} has no images in {images_key!r}; add some.")
    return Split(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N))


def _images(array: np.ndarray, key: str, path: Path) -> np.ndarray:
    """Return the array as contiguous bytes in NCHW."""
    where = f"{key!r} in {path}"
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        raise UserError(f"{where} has shape {array.shape}; images are (N, H, W), (N, H, W, C) or (N, C, H, W).")
    if array.ndim == 3:
        images_NCHW = array[:, None]
    else:
        first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
        if first and last:
            raise UserError(
                f"{where} has shape {array.shape}, which could be (N, C, H, W) or (N, H, W, C); "
                "use images whose height and width are neither 1 nor 3, or (N, H, W) for grey ones."
            )
        if not first and not last:
            raise UserError(f"{where} has shape {array.shape}; images need 1 or 3 channels.")
        images_NCHW = array if first else array.transpose(0, 3, 1, 2)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(images_NCHW)
    if array.dtype.kind != "f":
        raise UserError(f"{where} has type {array.dtype}; images are uint8 in 0 to 255 or floats in 0 to 1.")
    # Written so that a NaN fails it too.
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise UserError(f"{where} has floats from {array.min()} to {array.max()}; scale them to 0 to 1 or save uint8.")
    bytes_NCHW = np.empty(images_NCHW.shape, np.uint8)
    step = max(1, _BLOCK // max(1, images_NCHW[:1].size))
    for start in range(0, len(images_NCHW), step):
        block = images_NCHW[start : start + step]
        bytes_NCHW[start : start + step] = (block.astype(np.float32) * 255 + 0.5).astype(np.uint8)
    return bytes_NCHW


def _labels(array: np.ndarray, key: str, path: Path) -> np.ndarray:
    where = f"{key!r} in {path}"
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{where} has shape {array.shape}; labels are one integer per image.")
    if array.dtype.kind not in "iu":
        raise UserError(f"{where} has type {array.dtype}; labels are integers from 0, and 'classes' may name them.")
    if array.size and (array.min() < 0 or array.max() >= 2**31):
        raise UserError(f"{where} runs from {array.min()} to {array.max()}; labels are integers from 0.")
    return array.astype(np.int64)


def _class_names(names: np.ndarray | None, train: Split, test: Split, path: Path) -> tuple[str, ...]:
    """Return the given names, or the labels as text."""
    unseen = set(test.labels_N.unique().tolist()) - set(train.labels_N.unique().tolist())
    if unseen:
        raise UserError(
            f"{path} has a test label {min(unseen)} that no training image has; give both splits the same classes."
        )
    if names is not None:
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise UserError(f"'classes' in {path} must be a list of text, one name per class.")
        if not _is_unicode(names):
            raise UserError(f"'classes' in {path} has a name that is not Unicode; save the names as text.")
        given = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
        require_names(given, f"'classes' in {path}")
        return given
    low = int(train.labels_N.min())
    number = 1 + max(int(train.labels_N.max()), int(test.labels_N.max()))
    if low > 0:
        raise UserError(f"the training labels in {path} start at {low}; number the classes from 0 or add 'classes'.")
    if number > len(train) + len(test):
        raise UserError(f"{path} has a label {number - 1} but fewer images than that; number the classes from 0.")
    return tuple(str(label) for label in range(number))


def _is_unicode(names: np.ndarray) -> bool:
    """Return whether every name is valid text: numpy does not check, and creates strings that crash Python."""
    if names.dtype.kind == "U":
        code_points = np.frombuffer(names.tobytes(), np.dtype(np.uint32).newbyteorder(names.dtype.byteorder))
        return bool(code_points.max(initial=0) <= sys.maxunicode)
    try:
        return all(bytes(name).decode() is not None for name in names)
    except UnicodeDecodeError:
        return False
