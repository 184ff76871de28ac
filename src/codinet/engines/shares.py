"""A batch split into shares, one per torch thread, each computed by its own Python thread.

By default torch splits every operation among its threads, which wait for each other at its end. A share goes through
the whole network without waiting. Short operations gain most, and so does a machine with other work to do. With more
than a few threads Python's lock would be the limit, and small shares are slow; there torch splits the operations.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from codinet.records import RoutedOutput

Classify = Callable[[torch.Tensor, torch.Tensor | None], RoutedOutput]
MOST, LEAST = 4, 8  # threads; images of a share
PATIENCE = 30.0  # seconds for threads to start; without them the batch is computed in one piece

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by threads and process


def in_shares(classify: Classify, images_BCHW: torch.Tensor, force: torch.Tensor | None) -> RoutedOutput:
    """`classify(images, force)`, on the CPU with all of torch's threads. A forced path is N or B×N."""
    threads, number = torch.get_num_threads(), len(images_BCHW)
    if images_BCHW.device.type != "cpu" or not 1 < threads <= MOST or number < LEAST * threads:
        return classify(images_BCHW, force)
    pool = _pool(threads)
    if pool is None:
        return classify(images_BCHW, force)
    images = images_BCHW.tensor_split(threads)
    paths = [force] * threads if force is None or force.ndim == 1 else force.expand(number, -1).tensor_split(threads)
    work = torch.inference_mode()(classify)  # inference mode is set per thread
    parts = pool.map(work, images, paths)
    return RoutedOutput(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _pool(threads: int) -> ThreadPoolExecutor | None:
    """Python threads in which torch uses one thread each; None if they cannot be started now."""
    key = threads, os.getpid()  # after a fork the parent's threads do not exist
    if key not in _pools:  # no lock, which a fork could leave closed for ever
        made = _start(threads)
        if made is None:
            return None
        if _pools.setdefault(key, made) is not made:  # another thread was faster
            made.shutdown(wait=False)
    return _pools[key]


def _start(threads: int) -> ThreadPoolExecutor | None:
    """A pool whose threads are all running, so that `submit` never has to start one later.

    Every wait here ends: tasks wait for `release`, which is set whatever happens, and the caller waits `PATIENCE`.
    """
    pool = ThreadPoolExecutor(threads, "codinet", _use_one_torch_thread)
    release = threading.Event()
    started = []
    try:
        for _ in range(threads):  # each task keeps its thread busy, so that the next one starts another
            started.append(pool.submit(release.wait, PATIENCE))
    except RuntimeError:  # the system refuses another thread
        pass
    finally:
        release.set()
    done, _ = wait(started, timeout=PATIENCE)
    # Threads that torch meets later start with the number set last, which the pool's threads have changed.
    torch.set_num_threads(threads)
    if len(done) == threads:
        return pool
    pool.shutdown(wait=False, cancel_futures=True)
    return None


def _use_one_torch_thread() -> None:
    torch.get_num_threads()  # the first call in a thread sets the number, so it has to come before ours
    torch.set_num_threads(1)
