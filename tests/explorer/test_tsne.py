"""The t-SNE map: made once beside the server, kept, and taken from the run's analysis where there is one."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from codinet.analysis import Request, RunAnalysis, analysis_of
from codinet.data import Dataset
from codinet.explorer import tsne as module
from codinet.explorer.app import create_app
from codinet.explorer.space import RoutingSpace
from codinet.explorer.tsne import FILE, Tsne
from codinet.runs import RunFolder

pytest.importorskip("sklearn", reason="t-SNE needs scikit-learn")


def ready(tsne: Tsne) -> Tsne:
    tsne.start()
    tsne.start()
    for _ in range(300):
        if tsne.state != "computing":
            return tsne
        time.sleep(0.1)
    raise AssertionError("t-SNE did not end")


def test_is_computed_once_and_kept(own_run: Path) -> None:
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


def test_one_of_other_points_is_not_used(own_run: Path) -> None:
    paths = RunFolder.open(own_run).load_paths()
    ready(Tsne(RoutingSpace(paths), own_run))
    other = paths._replace(run_probability_TN=1 - paths.run_probability_TN)
    assert Tsne(RoutingSpace(other), own_run).state == "idle"


def test_the_analysis_of_the_same_network_and_data_is_used(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    analysis_of(folder, Request(Path(), torch.device("cpu"), images=20))
    found = Tsne(RoutingSpace(folder.load_paths()), own_run)
    assert found.state == "ready"
    known = RunAnalysis.load(own_run)
    assert known is not None
    assert found.chart is not None
    layout = torch.pdist(known.tensors["tsne"].double())
    drawn = torch.pdist(found.chart.map_P2)
    assert torch.allclose(drawn / drawn.max(), layout / layout.max(), atol=1e-4)  # turned and scaled, no more
    config = (own_run / "config.json").read_text()
    (own_run / "config.json").write_text(config.replace(folder.data.sha256, "0" * 64))
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "idle"
    (own_run / "config.json").write_text(config)
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "ready"
    (own_run / "model.safetensors").write_bytes((own_run / "model.safetensors").read_bytes() + b" ")
    assert Tsne(RoutingSpace(folder.load_paths()), own_run).state == "idle"


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


def test_a_failure_leaves_the_explorer_running(
    own_run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: Any, **_words: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "tsne", broken)
    assert ready(Tsne(RoutingSpace(RunFolder.open(own_run).load_paths()), own_run)).state == "absent"
    assert "could not be computed" in caplog.text


def test_page_is_told_to_wait_and_then_gets_it(own_run: Path, few: Dataset) -> None:
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
