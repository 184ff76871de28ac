"""The handwritten digits that come with codinet: 1,797 grey images of 8×8, for a first run without downloads.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
1998, doi 10.24432/C50P49, licensed CC BY 4.0. Changed: only the 1,797 images of the test part are
distributed, re-encoded as a NumPy archive (see `digits.LICENSE.txt`). The split into 1,297 and 500 is ours;
both parts hold images by the same writers, so accuracies here are not comparable with the literature's.
"""

import zipfile
from importlib import resources

import numpy as np
import torch

from codinet.data.channel_stats import channel_stats
from codinet.data.dataset import Dataset, Split
from codinet.data.holdout import hold_out
from codinet.errors import UserError

FILE = "digits.npz"
SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
_TEST_IMAGES = 500


def load_digits() -> Dataset:
    """The embedded digits as a data set of one channel."""
    try:
        with resources.files(__package__).joinpath(FILE).open("rb") as file, np.load(file) as archive:
            images_NHW = torch.from_numpy(archive["images"])
            labels_N = torch.from_numpy(archive["labels"].astype(np.int64))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError("the embedded digits are damaged; install codinet again.") from error
    # 0..16 onto 0..255, rounded, in integers.
    images_N1HW = ((images_NHW.int() * 255 + 8) // 16).to(torch.uint8)[:, None]
    everything = Split(images_N1HW, labels_N)
    train_indices, test_indices = hold_out(labels_N, _TEST_IMAGES)
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
