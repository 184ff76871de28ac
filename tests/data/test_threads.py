import sys
import threading

import torch

from codinet.data.threads import DaemonThreadPool, wait_for
from codinet.environment import torch_threads


def test_torch_uses_one_thread_in_each_thread_of_a_pool() -> None:
    with torch_threads(3):
        with DaemonThreadPool(2) as pool:
            found = wait_for([pool.submit(torch.get_num_threads) for _ in range(8)], "Counting")
            assert found == [1] * 8
            assert torch.get_num_threads() == 3
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]


def test_closing_never_waits_for_calls_that_a_thread_took() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(300):
            pool = DaemonThreadPool(2)
            for _ in range(number % 30):
                pool.submit(lambda: None)
            closing = threading.Thread(target=pool.close, daemon=True)
            closing.start()
            closing.join(30)
            assert not closing.is_alive()
    finally:
        sys.setswitchinterval(interval)
