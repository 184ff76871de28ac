"""SVHN's cropped digits from `train_32x32.mat` and `test_32x32.mat`, in a root folder or its `svhn` folder.

The additional `extra_32x32.mat` is not used. Knows nothing of the MATLAB format (`matlab` does).
"""

from pathlib import Path

import numpy as np
import torch

from codinet.data.dataset import Dataset, Split
from codinet.data.matlab import read_arrays
from codinet.data.official import KNOWN
from codinet.errors import UserError


def load_svhn(root: Path) -> Dataset:
    """SVHN with its ten digits."""
    known = KNOWN["svhn"]
    folder, layout = known.found(root)
    train_file, test_file = layout.files
    return Dataset(
        name=known.name,
        train=_read(folder / train_file.name),
        test=_read(folder / test_file.name),
        classes=tuple("0123456789"),
        mean=(111.6, 113.2, 120.6),
        std=(50.5, 51.3, 50.2),
        pad=4,
        flip=False,
    )


def _read(path: Path) -> Split:
    way_out = KNOWN["svhn"].way_out
    if not path.is_file():
        raise UserError(f"{path} is missing; {way_out}.")
    arrays = read_arrays(path)
    images_HWCN, labels_N1 = arrays.get("X"), arrays.get("y")
    if images_HWCN is None or labels_N1 is None:
        raise UserError(f"{path} has no arrays X and y; {way_out}.")
    number = images_HWCN.shape[-1]
    if images_HWCN.dtype != np.uint8 or images_HWCN.shape != (32, 32, 3, number) or number == 0:
        raise UserError(
            f"{path} has X of shape {images_HWCN.shape} and type {images_HWCN.dtype}, "
            f"expected (32, 32, 3, N) bytes; {way_out}."
        )
    if labels_N1.size != number:
        raise UserError(f"{path} has {number} images and {labels_N1.size} labels; {way_out}.")
    labels_N = labels_N1.reshape(-1)
    if not np.isin(labels_N, np.arange(1, 11)).all():
        raise UserError(f"{path} has labels outside 1 to 10; the file is damaged, {way_out}.")
    # The file calls the digit 0 "10".
    digits_N = labels_N.astype(np.int64) % 10
    images_NCHW = np.ascontiguousarray(images_HWCN.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(images_NCHW), torch.from_numpy(digits_N))
