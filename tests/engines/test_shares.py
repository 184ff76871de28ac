"""A batch in shares: the same answer in the same order, and torch's threads as they were."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from codinet.engines import shares
from codinet.engines.gather import GatherEngine
from codinet.engines.shares import LEAST, MOST, in_shares
from codinet.engines.static import StaticEngine
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _seen(batch: int) -> list[tuple[int, int, bool]]:
    """How a batch was cut: images, torch's threads and whether gradients were off, of each share."""
    found = []

    def classify(images: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        found.append((len(images), torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return RoutedOutput(images, images, images)

    images = torch.arange(float(batch))
    with torch.inference_mode():
        assert torch.equal(in_shares(classify, images, None).logits_BK, images)
    return sorted(found)


@pytest.mark.usefixtures("two_threads")
def test_how_a_batch_is_cut() -> None:
    assert _seen(2 * LEAST + 1) == [(LEAST, 1, True), (LEAST + 1, 1, True)]
    assert _seen(2 * LEAST - 1) == [(2 * LEAST - 1, 2, True)]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(MOST + 1)
    assert _seen(100) == [(100, MOST + 1, True)]
    torch.set_num_threads(1)
    assert _seen(100) == [(100, 1, True)]


@pytest.mark.usefixtures("two_threads")
def test_engines_answer_as_in_one_piece(
    network: Callable[..., RoutedNetwork], images: torch.Tensor, assert_same: Callable[..., None]
) -> None:
    model, batch = network(), torch.cat([images, images.flip(0), images[:3]])
    path = (torch.arange(len(batch))[:, None] + torch.arange(9)) % 3 == 0
    engine = GatherEngine(model)
    with torch.no_grad():
        assert_same(engine(batch), model(batch))
        assert_same(engine(batch, force=path), model(batch, force=path))
        assert_same(engine(batch, force=path[0]), model(batch, force=path[0]))
        static = StaticEngine(model)(batch)
        torch.testing.assert_close(static.logits_BK, model(batch, force=torch.ones(9)).logits_BK, atol=1e-5, rtol=1e-5)
        assert static.path_BN.shape == (len(batch), 9)


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_share_reaches_the_caller() -> None:
    def broken(_images: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        in_shares(broken, torch.zeros(4 * LEAST), None)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails", [1, 2])
def test_threads_that_cannot_be_started_leave_the_batch_in_one_piece(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of the system: the first thread, or the second, is refused."""
    start, calls = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        calls.append(thread)
        if len(calls) >= fails:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(shares, "_pools", {})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = threading.active_count()
    began = time.monotonic()
    assert _seen(2 * LEAST) == [(2 * LEAST, 2, True)]
    assert time.monotonic() - began < 10
    assert len(calls) == fails
    monkeypatch.undo()
    monkeypatch.setattr(shares, "_pools", {})
    assert _seen(2 * LEAST) == [(LEAST, 1, True), (LEAST, 1, True)]  # once there are threads again
    ended = time.monotonic() + 10
    while threading.active_count() > before + 2 and time.monotonic() < ended:  # one that had started ends by itself
        time.sleep(0.01)
    assert threading.active_count() <= before + 2


@pytest.mark.usefixtures("two_threads")
def test_threads_that_start_later_get_the_usual_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_pools", {})
    _seen(2 * LEAST)
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]
