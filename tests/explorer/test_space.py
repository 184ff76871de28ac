"""Neighbours and positions in routing space, for points chosen by hand; and the t-SNE map."""

import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from codinet import files
from codinet.analysis import Request, RunAnalysis, analyse_run
from codinet.data import Dataset
from codinet.explorer import space as module
from codinet.explorer.app import create_app
from codinet.explorer.space import FILE, Chart, RoutingSpace, Tsne, fit
from codinet.records import PathTable
from codinet.runs import RunFolder

needs_sklearn = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="t-SNE needs scikit-learn")


def space_of(points: list[list[float]]) -> RoutingSpace:
    points_TN = torch.tensor(points)
    zeros_T = torch.zeros(len(points), dtype=torch.int64)
    hard_TN = (points_TN >= 0.5).to(torch.uint8)
    return RoutingSpace(PathTable(hard_TN, points_TN, zeros_T, zeros_T, zeros_T.float(), zeros_T.double()))


def test_nearest_by_euclidean_distance() -> None:
    space = space_of([[0.0, 0.0], [0.3, 0.4], [1.0, 0.0]])
    near = space.nearest(torch.tensor([0.0, 0.0]), 2)
    assert [entry.image for entry in near] == [0, 1]
    assert [entry.distance for entry in near] == pytest.approx([0, 0.5])
    assert [entry.image for entry in space.nearest(torch.zeros(2), 5, exclude=0)] == [1, 2]


def test_a_test_image_keeps_its_position() -> None:
    space = space_of([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    chart = Chart(torch.tensor([2, 0]), torch.tensor([[0.9, 0.8], [0.1, 0.2]], dtype=torch.float64))
    assert space.place(torch.tensor([1.0, 1.0]), chart) == pytest.approx((0.9, 0.8), abs=1e-4)
    assert space.place(torch.tensor([0.5, 0.5]), chart) == pytest.approx((0.5, 0.5))


def test_flat_if_all_points_are_equal() -> None:
    assert space_of([[0.2, 0.7]] * 3).flat
    assert not space_of([[0.2, 0.7], [0.2, 0.8]]).flat


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=30))
def test_fit_fills_the_unit_square_and_keeps_proportions(rows: list[tuple[float, float]]) -> None:
    map_P2 = torch.tensor(rows, dtype=torch.float64)
    fitted_P2 = fit(map_P2)
    assert float(fitted_P2.min()) >= -1e-9
    assert float(fitted_P2.max()) <= 1 + 1e-9
    span_2, own_2 = fitted_P2.amax(0) - fitted_P2.amin(0), map_P2.amax(0) - map_P2.amin(0)
    if float(own_2.max()) > 0:
        assert float(span_2.max()) == pytest.approx(1)
        assert span_2.tolist() == pytest.approx((own_2 / own_2.max()).tolist(), abs=1e-6)


# t-SNE


def ready(tsne: Tsne) -> Tsne:
    tsne.start()
    tsne.start()
    for _ in range(300):
        if tsne.state != "computing":
            return tsne
        time.sleep(0.1)
    raise AssertionError("t-SNE did not end")


@needs_sklearn
def test_computed_once_and_saved(own_run: Path) -> None:
    space = RoutingSpace(RunFolder.open(own_run).load_paths())
    first = Tsne(space, own_run)
    assert first.state == "idle"
    chart = ready(first).chart
    assert chart is not None
    assert chart.index_P.tolist() == list(range(40))
    assert float(chart.map_P2.min()) >= -1e-9
    for _ in range(300):
        if (own_run / FILE).exists():
            break
        time.sleep(0.1)
    again = Tsne(space, own_run)
    assert again.state == "ready"
    assert again.chart is not None
    assert torch.equal(again.chart.map_P2, chart.map_P2)


@needs_sklearn
def test_a_map_of_other_points_is_not_used(own_run: Path) -> None:
    paths = RunFolder.open(own_run).load_paths()
    ready(Tsne(RoutingSpace(paths), own_run))
    other = paths._replace(run_probability_TN=1 - paths.run_probability_TN)
    assert Tsne(RoutingSpace(other), own_run).state == "idle"


@needs_sklearn
def test_the_analysis_of_the_same_network_and_data_is_used(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    analyse_run(folder, Request(Path(), torch.device("cpu"), images=20))
    found = Tsne(RoutingSpace(folder.load_paths()), own_run)
    assert found.state == "ready"
    known = RunAnalysis.load(own_run)
    assert known is not None
    assert found.chart is not None
    layout = torch.pdist(known.tensors["tsne"].double())
    drawn = torch.pdist(found.chart.map_P2)
    assert torch.allclose(drawn / drawn.max(), layout / layout.max(), atol=1e-4)  # rotated and scaled only
    config = (own_run / "config.json").read_text()
    (own_run / "config.json").write_text(config.replace(folder.data.sha256, "0" * 64))
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "idle"
    (own_run / "config.json").write_text(config)
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "ready"
    (own_run / "model.safetensors").write_bytes((own_run / "model.safetensors").read_bytes() + b" ")
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "idle"


@needs_sklearn
def test_is_absent_without_scikit_learn_or_with_too_few_paths(
    own_run: Path, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunFolder.open(own_run).load_paths()
    same = RoutingSpace(paths._replace(run_probability_TN=paths.run_probability_TN.round()[:1].expand(40, -1)))
    assert ready(Tsne(same, own_run)).state == "absent"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with TestClient(create_app(RunFolder.open(own_run), few), base_url="http://localhost") as client:
        assert client.get("/api/run").json()["maps"] == ["pca"]
        assert client.get("/api/map", params={"kind": "tsne"}).status_code == 404


@needs_sklearn
def test_a_failure_leaves_the_explorer_running(
    own_run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: Any, **_words: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "tsne", broken)
    assert ready(Tsne(RoutingSpace(RunFolder.open(own_run).load_paths()), own_run)).state == "absent"
    assert "Could not compute" in caplog.text


@needs_sklearn
def test_a_computation_that_does_not_end_counts_as_failed(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(module, "tsne", lambda *_args, **_words: go.wait(60) and None)
    monkeypatch.setattr(module, "TSNE_SECONDS", 0.1)
    tsne = Tsne(RoutingSpace(RunFolder.open(own_run).load_paths()), own_run)
    assert ready(tsne).state == "absent"
    go.set()


@needs_sklearn
def test_without_a_thread_it_is_absent(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    tsne = Tsne(RoutingSpace(RunFolder.open(own_run).load_paths()), own_run)
    tsne.start()
    assert tsne.state == "absent"


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"index_P": torch.arange(3)},
        {"index_P": torch.arange(3), "layout_P2": torch.zeros(3, 3)},
        {"index_P": torch.arange(3), "layout_P2": torch.zeros(2, 2)},
        {"index_P": torch.arange(3), "layout_P2": torch.full((3, 2), torch.nan)},
        {"index_P": torch.tensor([0, 1, 40]), "layout_P2": torch.zeros(3, 2)},
        {"index_P": torch.tensor([0, 1, -1]), "layout_P2": torch.zeros(3, 2)},
        {"index_P": torch.zeros(3), "layout_P2": torch.zeros(3, 2)},
        {"index_P": torch.arange(0), "layout_P2": torch.zeros(0, 2)},
    ],
)
def test_invalid_saved_maps_are_ignored(own_run: Path, tensors: dict[str, torch.Tensor]) -> None:
    space = RoutingSpace(RunFolder.open(own_run).load_paths())
    files.save_tensors(own_run / FILE, tensors, about=module._digest(space.points_TN))
    assert Tsne(space, own_run).chart is None


@needs_sklearn
def test_the_page_gets_it_when_it_is_ready(own_run: Path, few: Dataset) -> None:
    with TestClient(create_app(RunFolder.open(own_run), few), base_url="http://localhost") as client:
        first = client.get("/api/map", params={"kind": "tsne"})
        assert first.status_code in (200, 202)
        for _ in range(300):
            answer = client.get("/api/map", params={"kind": "tsne"})
            if answer.status_code == 200:
                break
            assert answer.json() == {"state": "computing"}
            time.sleep(0.1)
        assert answer.json()["index"] == list(range(40))
        assert set(client.get("/api/images/0/route").json()["place"]) == {"pca", "tsne"}
