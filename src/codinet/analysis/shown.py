"""The images a report shows, kept small beside the figures so that a report needs no data set."""

import torch
from torch.nn import functional as F

from codinet.analysis.usage import easiest_first, path_counts, sharing
from codinet.records import PathTable

SHOWN = 16  # easiest, and as many hardest
SHARED_PATHS, SHARED_IMAGES = 6, 8
LONGEST = 64  # pixels a side


def shown(paths: PathTable, images_TCHW: torch.Tensor) -> dict[str, torch.Tensor]:
    """`easiest`, `hardest` and `shared` hold places in the test set (−1: none); the images are stored once."""
    order_T = easiest_first(paths)
    groups = sharing(path_counts(paths.path_TN), paths=SHARED_PATHS, images=SHARED_IMAGES)
    shared_PI = torch.full((len(groups), SHARED_IMAGES), -1)
    for row_I, group in zip(shared_PI, groups, strict=True):
        row_I[: len(group)] = group
    strips = {"easiest": order_T[:SHOWN], "hardest": order_T.flip(0)[:SHOWN], "shared": shared_PI}
    index_I = torch.unique(torch.cat([strip.flatten() for strip in strips.values()]))
    index_I = index_I[index_I >= 0]
    return {**strips, "shown_index": index_I, "shown_images": small(images_TCHW[index_I.to(images_TCHW.device)].cpu())}


def small(images_ICHW: torch.Tensor) -> torch.Tensor:
    """Bytes again, with no side longer than LONGEST."""
    longest = max(images_ICHW.shape[2:])
    if longest <= LONGEST:
        return images_ICHW
    size = [max(1, side * LONGEST // longest) for side in images_ICHW.shape[2:]]
    return F.interpolate(images_ICHW.float(), size=size, mode="area").round().to(torch.uint8)
