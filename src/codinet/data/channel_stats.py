"""The mean and standard deviation of each colour channel, for data without published constants.

Counts bytes instead of adding floats, so the result does not depend on order or precision.
"""

import torch

from codinet.data.lazy import Images

_ENOUGH = 2**26  # values per channel; more would not change any digit that matters


def channel_stats(images_NCHW: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) per channel in bytes; of very many images, every k-th is used."""
    number, channels, height, width = images_NCHW.shape
    step = -(-number * height * width // _ENOUGH) or 1
    sample_NCHW = images_NCHW[::step]
    values_256 = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in range(channels):
        counts_256 = torch.bincount(sample_NCHW[:, channel].flatten(), minlength=256).double()
        share_256 = counts_256 / counts_256.sum()
        mean = (share_256 * values_256).sum()
        std = (share_256 * (values_256 - mean) ** 2).sum().sqrt()
        means.append(float(mean))
        # A channel of one colour has a standard deviation of zero, and normalising divides by it.
        stds.append(max(float(std), 1.0))
    return tuple(means), tuple(stds)
