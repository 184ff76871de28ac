"""A fixed, stratified split for data without one.

The same labels in the same order always give the same split, on every machine and in every version: positions are
computed, not drawn at random. Knows nothing of images or files.
"""

import torch


def hold_out(labels_N: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(training indices, test indices), both ascending, with about `count` in the test part.

    Each class contributes in proportion to its size (largest remainders first), from evenly spaced places. A class of
    two or more contributes at least one and keeps at least one, so tiny classes can change the total. A class of one
    stays in training.
    """
    total = len(labels_N)
    assert 0 <= count <= total, f"cannot hold out {count} of {total}"
    if total == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    # Only classes that occur: a single huge label must not cost time and memory.
    sizes = torch.unique(labels_N, return_counts=True)[1].tolist()
    quotas = [size * count // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: (-(sizes[label] * count % total), label))
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1

    places_per_class = torch.argsort(labels_N, stable=True).split(sizes)
    held = torch.zeros(total, dtype=torch.bool)
    for size, quota, places in zip(sizes, quotas, places_per_class, strict=True):
        quota = max(0, min(max(quota, 1), size - 1))
        if quota:
            # The class is cut into `quota` equal parts; the middle of each is taken.
            held[places[(2 * torch.arange(quota) + 1) * size // (2 * quota)]] = True
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()
