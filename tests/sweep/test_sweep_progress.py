import time

import pytest

from codinet.sweep import PlannedRun
from codinet.sweep.sweep_progress import Progress


def test_the_remaining_time_is_estimated_from_the_work_of_this_session(
    planned: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    progress.start(planned, {planned[0].name}, {planned[1].name: 2})  # of 3 epochs
    assert progress.seconds_left() is None
    now = 110.0
    progress.finished(planned[1])
    assert progress.seconds_left() == pytest.approx(60)  # one epoch in ten seconds, six to go
    progress.failed(planned[2], "")
    assert progress.seconds_left() == pytest.approx(30)
