"""A fixed, stratified split for data that comes without one.

The same labels in the same order always give the same split, on every machine and version: positions are
computed, never drawn. Knows nothing of images or files.
"""

import torch


def hold_out(labels_N: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(training indices, test indices), both ascending, with about `count` in the test part.

    Each class gives in proportion to its size (largest remainders first) and from evenly spaced places. A
    class of two or more gives at least one and keeps at least one, so tiny classes can move the total off
    `count`; a class of one stays in training.
    """
    total = len(labels_N)
    assert 0 <= count <= total, f"cannot hold out {count} of {total}"
    if total == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    sizes = torch.bincount(labels_N).tolist()
    quotas = [size * count // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: (-(sizes[label] * count % total), label))
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1

    places_per_class = torch.argsort(labels_N, stable=True).split(sizes)
    held = torch.zeros(total, dtype=torch.bool)
    for size, quota, places in zip(sizes, quotas, places_per_class, strict=True):
        quota = max(0, min(max(quota, 1), size - 1))
        if quota:
            # The middle of each of `quota` equal stretches of the class.
            held[places[(2 * torch.arange(quota) + 1) * size // (2 * quota)]] = True
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()
