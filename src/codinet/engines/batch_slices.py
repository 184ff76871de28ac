"""Split a batch into slices on the CPU, and compute them in one Python thread per torch thread.

Features of many images do not fit into a cache, and memory for large ones comes from the system anew each time, which
has to clear it. A 224-pixel network takes up to three times as long for each of 32 images as for each of 4.

By default torch splits every operation among its threads, which wait for each other when it ends. A slice goes through
the whole network without waiting. Short operations gain most, and so does a machine that is busy with other work. With
many threads Python's lock becomes the limit, and small slices are slow; then torch splits the operations as usual.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from codinet.records import RoutedOutput

Classify = Callable[[torch.Tensor, torch.Tensor | None], RoutedOutput]
MAX_THREADS = 4  # of Python
MIN_IMAGES = 8  # of a slice for a thread, or fewer if these fill it
SLICE_BYTES = 2**24  # of the largest features of a slice
TIMEOUT = 30.0  # seconds for threads to start; without them the batch is computed in one piece

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by threads and process


class LargestFeatures(TorchDispatchMode):
    """Records the size of the largest tensor that torch computes within this context, other than packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in args if _is_plain(each)}
        for each in output if isinstance(output, tuple | list) else (output,):
            if _is_plain(each) and each.untyped_storage().data_ptr() not in given:  # not a view
                self.bytes = max(self.bytes, each.numel() * each.element_size())
        return output


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided  # packed weights have another layout


def run_in_slices(
    classify: Classify, images_BCHW: torch.Tensor, force: torch.Tensor | None, at_once: int
) -> RoutedOutput:
    """`classify(images, force)` with all of torch's threads.

    Args:
        classify: Computes some images.
        images_BCHW: The images.
        force: A path as N or B×N, or None.
        at_once: How many images a thread should compute at once.
    """
    threads, number = torch.get_num_threads(), len(images_BCHW)
    if images_BCHW.device.type != "cpu":
        return classify(images_BCHW, force)
    pool = _pool(threads) if 1 < threads <= MAX_THREADS and number >= min(MIN_IMAGES, at_once) * threads else None
    slices = -(-number // (at_once * threads))  # that torch's threads share, or for each thread of the pool
    slices *= 1 if pool is None else threads
    if slices <= 1:
        return classify(images_BCHW, force)
    images = images_BCHW.tensor_split(slices)
    paths = [force] * slices if force is None or force.ndim == 1 else force.expand(number, -1).tensor_split(slices)
    work = torch.inference_mode()(classify)  # inference mode is set per thread
    outputs = (map if pool is None else pool.map)(work, images, paths)
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
