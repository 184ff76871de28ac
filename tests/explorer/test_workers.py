"""Bounds on what computes and what waits."""

import asyncio
import threading

import pytest

from codinet.explorer.workers import BusyError, Gate, Workers


def test_workers_run_a_few_at_a_time_and_turn_the_rest_away() -> None:
    running, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(60)
        with lock:
            running -= 1

    async def crowd() -> list[object]:
        workers = Workers(threads=2, waiting=3)
        tasks = [asyncio.create_task(workers.run(work)) for _ in range(8)]
        while running < 2:  # threads begin when the machine lets them
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # for a third to show itself, if there were one
        go.set()
        ended: list[object] = await asyncio.gather(*tasks, return_exceptions=True)
        assert await workers.run(lambda: 7) == 7  # room again
        workers.close()
        return ended

    ended = asyncio.run(crowd())
    assert [type(end) for end in ended] == [type(None)] * 5 + [BusyError] * 3
    assert most == 2


def test_an_error_in_a_worker_reaches_the_asker_and_frees_its_place() -> None:
    async def ask() -> None:
        workers = Workers(threads=1, waiting=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await workers.run(lambda: 1 / 0)
        workers.close()

    asyncio.run(ask())


def test_gate_admits_so_many_lets_so_many_wait_and_forgets_who_left() -> None:
    async def crowd() -> None:
        gate, inside = Gate(inside=2, waiting=1), 0
        go = asyncio.Event()

        async def visit() -> None:
            nonlocal inside
            async with gate.entered():
                inside += 1
                await go.wait()

        tasks = [asyncio.create_task(visit()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside == 2
        with pytest.raises(BusyError):
            await visit()
        tasks[2].cancel()  # the one that waits
        await asyncio.gather(tasks[2], return_exceptions=True)
        late = asyncio.create_task(visit())
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks[:2], late)
        assert inside == 3

    asyncio.run(crowd())
