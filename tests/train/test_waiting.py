import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.config import RunConfig
from codinet.data import Dataset
from codinet.data.batches import Stream
from codinet.runs import DATA_WAIT, RunFolder
from codinet.train.accelerate import Execution
from codinet.train.waiting import DataWait, HostMark


class Device:
    """A device that works through a queue while the host goes on. Times are in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0  # of the host
        self.free_at = 0.0  # when the device has done all that it was given
        self.syncs = 0

    def launch(self, duration: float) -> None:
        """Queue work; the host does not wait."""
        self.free_at = max(self.free_at, self.now) + duration

    def mark(self) -> "Event":
        self.launch(0)
        return Event(self, self.free_at)


class Event:
    def __init__(self, device: Device, at: float) -> None:
        self.device, self.at = device, at

    def query(self) -> bool:
        return self.at <= self.device.now

    def synchronize(self) -> None:
        self.device.syncs += 1
        self.device.now = max(self.device.now, self.at)

    def elapsed_time(self, end_event: "Event", /) -> float:
        assert self.query()
        assert end_event.query(), "an event was read before the device had passed it"
        return end_event.at - self.at


def epoch(device: Device, *, load: float, step: float, copy: float = 0.0, steps: int = 10) -> DataWait:
    """Steps whose batch the host waits `load` for, whatever the device does meanwhile."""

    def batches() -> Iterator[int]:
        for number in range(steps):
            device.now += load
            device.launch(copy)
            yield number

    wait = DataWait(device.mark)
    for _ in wait.over(batches()):
        device.launch(step)
    return wait


def test_a_host_that_waits_while_the_device_computes_counts_as_nothing() -> None:
    device = Device()
    wait = epoch(device, load=4, step=10)
    assert device.syncs == 0  # nothing has waited for the device yet
    assert wait.fraction() == pytest.approx(4 / 104)  # for the first batch only
    assert device.syncs == 1


def test_a_device_without_work_counts() -> None:
    # Each batch takes 10 and each step 4, so the device has nothing to do for 6 of 10, and for the first batch.
    wait = epoch(Device(), load=10, step=4)
    assert wait.fraction() == pytest.approx((10 + 9 * 6) / 104)
    assert not wait.fetched


def test_the_copy_of_a_batch_counts() -> None:
    wait = epoch(Device(), load=0, step=9, copy=1)
    assert wait.fraction() == pytest.approx(0.1)


def test_events_are_read_as_soon_as_they_have_passed() -> None:
    wait = epoch(Device(), load=10, step=4, steps=1000)
    assert len(wait.fetched) <= 2


def test_an_epoch_without_steps() -> None:
    wait = epoch(Device(), load=10, step=4, steps=0)
    assert wait.fraction() == 0
    assert DataWait(Device().mark).fraction() == 0


def test_the_clock_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def batches() -> Iterator[int]:
        nonlocal now
        for number in range(4):
            now += 1
            yield number
        now += 100  # threads are stopped after the last batch; no step waits for that

    wait = DataWait.on(torch.device("cpu"))
    assert wait.mark is HostMark
    for number, batch in enumerate(wait.over(batches())):
        assert batch == number
        now += 3
    now -= 100
    assert wait.fraction() == pytest.approx(0.25)


def test_a_slow_loader_is_measured(
    train: Any, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Stream.deliver

    def slowly(self: Stream, *args: Any) -> Iterator[torch.Tensor]:
        for batch in fetch(self, *args):
            time.sleep(0.5)
            yield batch

    monkeypatch.setattr(Stream, "deliver", slowly)
    config = replace(small_run, schedule=replace(small_run.schedule, epochs=1, finetune=0))
    train(tmp_path / "run", config, few, execution=Execution(loader="stream"))
    (row,) = RunFolder.open(tmp_path / "run").metrics()
    assert 0.3 < row[DATA_WAIT] <= 1
