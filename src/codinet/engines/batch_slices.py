"""Split a batch into slices, one per torch thread, and compute each slice in a Python thread of its own.

By default torch splits every operation among its threads, which wait for each other when it ends. A slice goes through
the whole network without waiting. Short operations gain most, and so does a machine that is busy with other work. With
many threads Python's lock becomes the limit, and small slices are slow; then torch splits the operations as usual.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from codinet.records import RoutedOutput

Classify = Callable[[torch.Tensor, torch.Tensor | None], RoutedOutput]
MAX_THREADS, MIN_IMAGES = 4, 8  # of a batch; of a slice
TIMEOUT = 30.0  # seconds for threads to start; without them the batch is computed in one piece

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by threads and process


def run_in_slices(classify: Classify, images_BCHW: torch.Tensor, force: torch.Tensor | None) -> RoutedOutput:
    """`classify(images, force)` with all of torch's threads; `force` is N, B×N or None."""
    threads, number = torch.get_num_threads(), len(images_BCHW)
    if images_BCHW.device.type != "cpu" or not 1 < threads <= MAX_THREADS or number < MIN_IMAGES * threads:
        return classify(images_BCHW, force)
    pool = _pool(threads)
    if pool is None:
        return classify(images_BCHW, force)
    images = images_BCHW.tensor_split(threads)
    paths = [force] * threads if force is None or force.ndim == 1 else force.expand(number, -1).tensor_split(threads)
    work = torch.inference_mode()(classify)  # inference mode is set per thread
    outputs = pool.map(work, images, paths)
    return RoutedOutput(*(torch.cat(column) for column in zip(*outputs, strict=True)))


def _pool(threads: int) -> ThreadPoolExecutor | None:
    """Python threads in which torch uses one thread each; None if they cannot be started now."""
    key = threads, os.getpid()  # after a fork the parent's threads do not exist
    if key not in _pools:  # without a lock, because a fork could leave it locked forever
        pool = _start(threads)
        if pool is None:
            return None
        if _pools.setdefault(key, pool) is not pool:  # another thread was faster
            pool.shutdown(wait=False)
    return _pools[key]


def _start(threads: int) -> ThreadPoolExecutor | None:
    """A pool whose threads are all running, so that `submit` never has to start one later.

    Every wait is bounded: tasks wait for `release`, which is always set, and the caller waits for `TIMEOUT`.
    """
    pool = ThreadPoolExecutor(threads, "codinet", _use_one_torch_thread)
    release = threading.Event()
    started = []
    try:
        for _ in range(threads):  # each task keeps its thread busy, so that the next one starts another
            started.append(pool.submit(release.wait, TIMEOUT))
    except RuntimeError:  # the system refuses another thread
        pass
    finally:
        release.set()
    done, _ = wait(started, timeout=TIMEOUT)
    # New threads start with the number that was set last, which the pool's threads have changed.
    torch.set_num_threads(threads)
    if len(done) == threads:
        return pool
    pool.shutdown(wait=False, cancel_futures=True)
    return None


def _use_one_torch_thread() -> None:
    torch.get_num_threads()  # the first call in a thread sets the number, so it must precede ours
    torch.set_num_threads(1)
