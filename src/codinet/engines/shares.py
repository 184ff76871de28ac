"""A batch cut into shares, one for each of torch's threads, each computed by a thread of its own.

Left to itself torch cuts every operation among its threads, which wait for each other at its end. A share goes through
the whole network without waiting: short operations gain most, and so does a machine that has other work to do. Beyond a
few threads Python's lock would be what they wait for, and small shares are slow, so there operations are cut after all.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from codinet.records import RoutedOutput

Classify = Callable[[torch.Tensor, torch.Tensor | None], RoutedOutput]
MOST, LEAST = 4, 8  # threads; images of a share


def in_shares(classify: Classify, images_BCHW: torch.Tensor, force: torch.Tensor | None) -> RoutedOutput:
    """`classify(images, force)`, on the CPU with all of torch's threads. A forced path is N or B×N."""
    threads, number = torch.get_num_threads(), len(images_BCHW)
    if images_BCHW.device.type != "cpu" or not 1 < threads <= MOST or number < LEAST * threads:
        return classify(images_BCHW, force)
    images = images_BCHW.tensor_split(threads)
    paths = [force] * threads if force is None or force.ndim == 1 else force.expand(number, -1).tensor_split(threads)
    work = torch.inference_mode()(classify)  # which is a thread's own affair
    parts = _pool(threads, os.getpid()).map(work, images, paths)
    return RoutedOutput(*(torch.cat(column) for column in zip(*parts, strict=True)))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one each. A fork has none of its parent's, hence the process."""
    started = threading.Barrier(threads + 1)

    def start() -> None:
        torch.get_num_threads()  # the first question sets the number, so it comes before the wish
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "codinet", start)
    for _ in range(threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(threads)  # for threads to come; those of the pool keep theirs
    return pool
