"""A batch in slices: the same output in the same order, and torch's thread settings unchanged."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from codinet.engines import batch_slices, folded_network
from codinet.engines.batch_slices import MAX_THREADS, MIN_IMAGES, SLICE_BYTES, run_in_slices
from codinet.engines.gather import GatherEngine
from codinet.engines.reference import StaticEngine
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _seen(batch: int, at_once: int = 1000) -> list[tuple[int, int, bool]]:
    """How a batch was split: for each slice, its images, torch's threads and whether inference mode was on."""
    found = []

    def classify(images: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        found.append((len(images), torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return RoutedOutput(images, images, images)

    images = torch.arange(float(batch))
    with torch.inference_mode():
        assert torch.equal(run_in_slices(classify, images, None, at_once).logits_BK, images)
    return sorted(found)


@pytest.mark.usefixtures("two_threads")
def test_how_a_batch_is_split() -> None:
    assert _seen(2 * MIN_IMAGES + 1) == [(MIN_IMAGES, 1, True), (MIN_IMAGES + 1, 1, True)]
    assert _seen(2 * MIN_IMAGES - 1) == [(2 * MIN_IMAGES - 1, 2, True)]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(MAX_THREADS + 1)
    assert _seen(100) == [(100, MAX_THREADS + 1, True)]
    torch.set_num_threads(1)
    assert _seen(100) == [(100, 1, True)]


@pytest.mark.usefixtures("two_threads")
def test_no_slice_has_more_images_than_a_thread_should_compute_at_once() -> None:
    assert _seen(16, at_once=4) == [(4, 1, True)] * 4
    assert _seen(10, at_once=4) == [(2, 1, True)] * 2 + [(3, 1, True)] * 2  # as many slices for each thread
    assert _seen(7, at_once=4) == [(7, 2, True)]  # too few for two threads, which share one slice
    torch.set_num_threads(1)
    assert _seen(10, at_once=4) == [(3, 1, True)] * 2 + [(4, 1, True)]
    assert _seen(3, at_once=1) == [(1, 1, True)] * 3
    torch.set_num_threads(MAX_THREADS + 1)
    assert _seen(30, at_once=4) == [(15, MAX_THREADS + 1, True)] * 2


def test_how_many_images_to_compute_at_once(
    network: Callable[..., RoutedNetwork],
    images: torch.Tensor,
    assert_same: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = GatherEngine(network()).net
    largest = 16 * 32 * 32 * 4  # bytes of an image's features in the first group
    assert net.at_once(images) == SLICE_BYTES // largest
    assert net.at_once(images[:, :, :16, :16]) == 4 * SLICE_BYTES // largest
    assert net.at_once(images[:1]) == 1
    expected = network()(images)
    monkeypatch.setattr(folded_network, "SLICE_BYTES", 3 * largest)
    assert GatherEngine(network()).net.at_once(images) == 3
    assert_same(GatherEngine(network())(images), expected)


@pytest.mark.usefixtures("two_threads")
def test_engines_give_the_same_output_in_slices(
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
def test_an_error_in_a_slice_reaches_the_caller() -> None:
    def broken(_images: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_in_slices(broken, torch.zeros(4 * MIN_IMAGES), None, MIN_IMAGES)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails", [1, 2])
def test_the_batch_is_not_split_if_threads_cannot_start(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a system limit: starting the first or the second thread fails."""
    start, calls = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        calls.append(thread)
        if len(calls) >= fails:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(batch_slices, "_pools", {})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = threading.active_count()
    began = time.monotonic()
    assert _seen(2 * MIN_IMAGES) == [(2 * MIN_IMAGES, 2, True)]
    assert time.monotonic() - began < 10
    assert len(calls) == fails
    monkeypatch.undo()
    monkeypatch.setattr(batch_slices, "_pools", {})
    assert _seen(2 * MIN_IMAGES) == [(MIN_IMAGES, 1, True), (MIN_IMAGES, 1, True)]  # once threads can start again
    ended = time.monotonic() + 10
    while threading.active_count() > before + 2 and time.monotonic() < ended:  # a started thread ends by itself
        time.sleep(0.01)
    assert threading.active_count() <= before + 2


@pytest.mark.usefixtures("two_threads")
def test_later_threads_use_the_default_number_of_torch_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slices, "_pools", {})
    _seen(2 * MIN_IMAGES)
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]
