"""The API, compared with the run's files and `codinet predict`."""

import base64
import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from codinet.cli import main
from codinet.cost import block_costs
from codinet.data import Dataset
from codinet.data.dataset import LazyImages
from codinet.data.npz import load_digits
from codinet.evaluate import evaluate_test_set
from codinet.explorer.accuracy import interpolate
from codinet.explorer.answers import View, png, rounded
from codinet.explorer.app import create_app
from codinet.model import RoutedNetwork
from codinet.predictor import Predictor
from codinet.run_reader import CurvePoint
from codinet.runs import RunFolder, open_run
from codinet.zoo.zoo_run import open_zoo
from tools.zoo_gallery import write_samples


def pixels(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def test_page_and_every_file_it_names_are_served(explorer: Any) -> None:
    page = explorer.get("/")
    assert page.status_code == 200
    assert "codinet" in page.text
    named = [part.split('"')[0] for part in page.text.split('="/static/')[1:]]
    assert "app.js" in named
    for name in {*named, "map.js", "path.js", "api.js"}:
        assert explorer.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/nothing.js", "/static/..%2Fapp.py", "/docs", "/openapi.json", "/favicon.ico"]
)
def test_nothing_else_is_served(explorer: Any, path: str) -> None:
    answer = explorer.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Not found."}


def test_run_is_described(explorer: Any, run: RunFolder) -> None:
    about = explorer.get("/api/run").json()
    table = block_costs(run.load_model(), run.data.image_shape)
    assert about["network"] == "resnet20"
    assert about["data"] == "few"
    assert about["routed"] is True
    assert about["groups"] == [3, 3, 3]
    assert about["images"] == 40
    assert about["static_macs"] == table.static_macs
    assert sum(about["block_share"]) == pytest.approx((sum(table.run_N) - sum(table.skip_N)) / table.static_macs)
    assert about["evaluation"]["accuracy"] == run.load_evaluation()["accuracy"]
    assert about["limits"] == {"bytes": 10_000_000, "pixels": 25_000_000}


def test_routing_a_test_image_matches_predict(explorer: Any, run: RunFolder, few: Dataset) -> None:
    predictor = Predictor(run, torch.device("cpu"))
    for index in range(5):
        said = explorer.get(f"/api/images/{index}/route").json()
        expected = predictor.predict(png(few.test.images_NCHW[index]))
        answer = said["image"]
        assert run.data.classes[answer["top"][0]["label"]] == expected.label
        assert answer["top"][0]["confidence"] == pytest.approx(expected.confidence, abs=1e-6)
        assert tuple(answer["path"]) == expected.path
        assert answer["run_probability"] == pytest.approx(expected.run_probability, abs=1e-4)
        assert answer["cost_share"] == pytest.approx(expected.cost_share)
        assert answer["blocks_run"] == expected.blocks_run
        assert said["truth"] == int(few.test.labels_N[index])
        assert (pixels(answer["picture"]) == few.test.images_NCHW[index, 0].numpy()).all()


def test_upload_of_a_test_image_gives_its_answer(explorer: Any, upload: Callable[..., Any], few: Dataset) -> None:
    """The page sends back the picture it received, so the round trip must not change it."""
    for threshold in (0.3, 0.5):
        asked: dict[str, Any] = {"threshold": threshold, "view": "mirror"}
        known = explorer.get("/api/images/7/route", params=asked).json()
        sent = upload(base64.b64decode(known["image"]["picture"].partition(",")[2]), **asked).json()
        assert sent["image"] == known["image"]
        assert sent["view"] == known["view"]
        assert "truth" not in sent
    assert sent["neighbours"][0]["index"] == 7
    assert sent["neighbours"][0]["distance"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_uploads_of_any_size_and_common_format_are_routed(
    upload: Callable[..., Any], photo: Callable[..., bytes], kind: str
) -> None:
    answer = upload(photo(37, 61, kind))
    assert answer.status_code == 200
    assert pixels(answer.json()["image"]["picture"]).shape == (8, 8)


def test_threshold(explorer: Any) -> None:
    def blocks(threshold: float) -> int:
        return explorer.get("/api/images/0/route", params={"threshold": threshold}).json()["image"]["blocks_run"]

    assert blocks(0) == 9
    assert blocks(1) == 0


def test_any_threshold_is_answered_by_the_same_engine(
    run: RunFolder, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(create_app(run, few), base_url="http://localhost") as client:
        # Neither the network nor another engine is used after the start.
        monkeypatch.delattr(RoutedNetwork, "forward")
        monkeypatch.delattr("codinet.engines.choose._usually_fastest")
        for threshold in (0.1, 0.25, 0.5, 0.75, 0.9):
            image = client.get("/api/images/0/route", params={"threshold": threshold, "view": "mirror"}).json()["image"]
            assert [int(value >= threshold) for value in image["run_probability"]] == image["path"]


@pytest.mark.parametrize(
    ("probability", "runs", "value"),
    [(0.73217, True, 0.7322), (0.12344, False, 0.1234), (0.49999, True, 0.5), (0.5, False, 0.5 - 2**-54)],
)
def test_run_probability_stays_on_the_side_of_the_decision(probability: float, runs: bool, value: float) -> None:
    assert rounded(probability, 0.5, runs=runs) == value


@pytest.mark.parametrize(("threshold", "runs"), [(0.0, True), (1.0, False)])
def test_run_probability_at_the_ends(threshold: float, runs: bool) -> None:
    for probability in (0.0, 0.00001, 0.99999, 1.0):
        value = rounded(probability, threshold, runs=runs)
        assert (value >= threshold) is runs
        assert 0 <= value <= 1


def test_cost_is_that_of_the_path(explorer: Any, run: RunFolder) -> None:
    table = block_costs(run.load_model(), run.data.image_shape)
    for threshold in (0, 0.5, 1):
        answer = explorer.get("/api/images/0/route", params={"threshold": threshold}).json()["image"]
        macs = float(table.path_macs(torch.tensor([answer["path"]]))[0])
        assert answer["macs"] == macs
        assert answer["cost_share"] == macs / table.static_macs


def test_views_of_the_page_are_those_of_the_api(explorer: Any) -> None:
    views = explorer.get("/api/run").json()["views"]
    assert [view["name"] for view in views] == [view.value for view in View]
    assert views[0] == {"name": "crop", "title": "Random crop", "random": True}


@pytest.mark.parametrize("view", ["crop", "mirror", "rotation", "upside-down"])
def test_view_is_routed_too(explorer: Any, view: str) -> None:
    said = explorer.get("/api/images/3/route", params={"view": view, "seed": 5}).json()
    image, seen = said["image"], said["view"]
    assert seen["name"] == view
    assert seen["differs"] == [k for k in range(9) if image["path"][k] != seen["path"][k]]
    flips = {"mirror": lambda values: values[:, ::-1], "upside-down": lambda values: values[::-1]}
    if view in flips:
        assert (pixels(seen["picture"]) == flips[view](pixels(image["picture"]))).all()
    else:
        again = explorer.get("/api/images/3/route", params={"view": view, "seed": 5, "threshold": 0.1}).json()["view"]
        assert again["picture"] == seen["picture"]


def test_a_view_that_is_the_same_image_takes_the_same_path(upload: Callable[..., Any]) -> None:
    stream = io.BytesIO()
    Image.new("L", (8, 8), 90).save(stream, "PNG")
    said = upload(stream.getvalue(), view="mirror").json()
    assert said["view"]["differs"] == []
    assert said["view"]["path"] == said["image"]["path"]


def test_neighbours_are_the_closest_relaxed_paths(explorer: Any, run: RunFolder) -> None:
    paths = run.load_paths()
    said = explorer.get("/api/images/4/route").json()["neighbours"]
    distance_T = (paths.run_probability_TN - paths.run_probability_TN[4]).norm(dim=1)
    distance_T[4] = 9
    closest = distance_T.sort().values[:12].tolist()
    assert [near["distance"] for near in said] == pytest.approx(closest, abs=1e-3)
    assert 4 not in [near["index"] for near in said]
    assert all(near["label"] == int(paths.label_T[near["index"]]) for near in said)


def test_gallery_orders(explorer: Any, run: RunFolder, few: Dataset) -> None:
    def listed(**words: Any) -> list[dict[str, Any]]:
        return explorer.get("/api/images", params={"limit": 100, **words}).json()["images"]

    hardest, easiest = listed(order="hardest"), listed(order="easiest")
    blocks = run.load_paths().path_TN.sum(dim=1).tolist()
    assert [image["blocks_run"] for image in hardest] == sorted(blocks, reverse=True)
    assert [image["blocks_run"] for image in easiest] == sorted(blocks)
    assert sorted(image["index"] for image in hardest) == list(range(40))
    assert [image["index"] for image in listed()] == list(range(40))
    assert listed(order="random", seed=1) == listed(order="random", seed=1) != listed(order="random", seed=2)
    threes = listed(order="random", label=3)
    assert {image["label"] for image in threes} == {3}
    assert len(threes) == int((few.test.labels_N == 3).sum())
    assert len(listed(limit=5)) == 5


def test_thumbnails_are_the_images(explorer: Any, few: Dataset) -> None:
    answer = explorer.get("/api/images/11.png")
    assert answer.headers["content-type"] == "image/png"
    assert (np.asarray(Image.open(io.BytesIO(answer.content))) == few.test.images_NCHW[11, 0].numpy()).all()


@pytest.mark.parametrize("index", [-1, 40, 10**30])
def test_invalid_image_index(explorer: Any, index: int) -> None:
    for address in (f"/api/images/{index}.png", f"/api/images/{index}/route"):
        answer = explorer.get(address)
        assert answer.status_code == 404
        assert answer.json()["error"] == f"The index of a test image must be from 0 to 39, got {index}."


@pytest.mark.parametrize(
    ("address", "words", "sentence"),
    [
        ("/api/images/0/route", {"threshold": "1.1"}, "Invalid threshold: input should be less than or equal to 1."),
        ("/api/images/0/route", {"threshold": "nan"}, "Invalid threshold: "),
        ("/api/images/0/route", {"view": "<script>"}, "Invalid view: input should be 'crop', 'mirror', "),
        ("/api/images/0/route", {"seed": "-1"}, "Invalid seed: input should be greater than or equal to 0."),
        ("/api/images/0/route", {"seed": "-1", "threshold": "2"}, "Invalid threshold: "),
        ("/api/images", {"limit": "100000"}, "Invalid limit: input should be less than or equal to 100."),
        ("/api/images", {"order": "best"}, "Invalid order: input should be 'random', "),
        ("/api/images", {"label": "10"}, "Invalid label: it must be from 0 to 9, got 10."),
        ("/api/map", {"kind": "umap"}, "Invalid kind: input should be 'pca' or 'tsne'."),
        ("/api/accuracy", {"threshold": "-0.1"}, "Invalid threshold: input should be greater than or equal to 0."),
        ("/api/images/x.png", {}, "Invalid index: input should be a valid integer"),
    ],
)
def test_invalid_parameters(explorer: Any, address: str, words: dict[str, str], sentence: str) -> None:
    answer = explorer.get(address, params=words)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(sentence)
    assert "<" not in answer.text


@pytest.mark.parametrize(
    "value", ["10000000000000000000000", "-10000000000000000000000", "9" * 5000, "1e400", "٣" * 30]
)
@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/api/images", "label"),
        ("/api/images", "seed"),
        ("/api/images", "limit"),
        ("/api/images", "order"),
        ("/api/images/0/route", "threshold"),
        ("/api/images/0/route", "view"),
        ("/api/images/0/route", "seed"),
        ("/api/map", "kind"),
    ],
)
def test_huge_numbers_are_refused_in_every_parameter(explorer: Any, address: str, name: str, value: str) -> None:
    answer = explorer.get(address, params={name: value})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"Invalid {name}: ")


def test_a_network_that_computes_nan_is_refused(run: RunFolder, few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(folder: RunFolder, device: torch.device) -> Any:
        model = load_model(folder, device)
        model.get_parameter("fc.bias").data.fill_(torch.nan)
        return model

    load_model = RunFolder.load_model
    monkeypatch.setattr(RunFolder, "load_model", damaged)
    with TestClient(create_app(run, few), base_url="http://localhost") as client:
        answer = client.get("/api/images/0/route")
    assert answer.status_code == 422
    assert "NaN" in answer.json()["error"]


def test_deleted_image_file(run: RunFolder, few: Dataset, tmp_path: Path) -> None:
    """Images of a folder larger than memory are read on access."""
    paths = [str(tmp_path / f"{index}.png") for index in range(len(few.test))]
    for file, image_CHW in zip(paths[1:], few.test.images_NCHW[1:], strict=True):
        Path(file).write_bytes(png(image_CHW))
    lazy = replace(few, test=replace(few.test, images_NCHW=LazyImages(paths, 1, (8, 8))))
    Path(paths[0]).write_bytes(png(few.test.images_NCHW[0]))
    with TestClient(create_app(run, lazy), base_url="http://localhost") as client:
        assert client.get("/api/images/0.png").content == png(few.test.images_NCHW[0])
        assert client.get("/api/images/0/route").status_code == 200
        Path(paths[0]).unlink()
        for address in ("/api/images/0.png", "/api/images/0/route"):
            answer = client.get(address)
            assert answer.status_code == 404
            assert answer.json() == {"error": "The file of test image 0 can no longer be read."}
        assert client.get("/api/images/1/route").status_code == 200


def test_map_has_every_image(explorer: Any, run: RunFolder) -> None:
    drawn = explorer.get("/api/map").json()
    paths = run.load_paths()
    assert drawn["index"] == list(range(40))
    assert drawn["label"] == paths.label_T.tolist()
    assert drawn["prediction"] == paths.prediction_T.tolist()
    assert drawn["blocks_run"] == paths.path_TN.sum(dim=1).tolist()
    assert 0 <= min(drawn["x"] + drawn["y"]) <= max(drawn["x"] + drawn["y"]) <= 10_000
    place = explorer.get("/api/images/6/route").json()["place"]["pca"]
    assert place == pytest.approx([drawn["x"][6] / 10_000, drawn["y"][6] / 10_000], abs=0.02)


def test_without_the_data_set_uploads_are_routed_and_neighbours_named(
    run: RunFolder, photo: Callable[..., bytes]
) -> None:
    with TestClient(create_app(run, None), base_url="http://localhost") as client:
        about = client.get("/api/run").json()
        assert (about["images"], about["samples"], about["accuracy"]) == (0, None, False)
        assert client.get("/api/accuracy").status_code == 404
        for address in ("/api/images", "/api/images/0.png", "/api/images/0/route"):
            answer = client.get(address)
            assert answer.status_code == 404
            assert "not on this machine" in answer.json()["error"]
        said = client.post("/api/route", content=photo(), headers={"content-type": "application/octet-stream"}).json()
        assert len(said["neighbours"]) == 12
        assert client.get("/api/map").status_code == 200


def test_another_data_set_is_ignored(run: RunFolder) -> None:
    with TestClient(create_app(run, load_digits()), base_url="http://localhost") as client:
        assert client.get("/api/run").json()["images"] == 0


def test_zoo_network_with_test_images_in_another_order(zoo: Path) -> None:
    digits, entry = load_digits(), open_run("zoo:digits-resnet20-06")
    shuffled = replace(digits, test=digits.test.subset(torch.arange(500).flip(0)))
    fewer = replace(digits, test=digits.test.subset(torch.arange(499)))
    for dataset, images in ((shuffled, 500), (fewer, 0), (None, 0)):
        with TestClient(create_app(entry, dataset), base_url="http://localhost") as client:
            about = client.get("/api/run").json()
            assert about["images"] == images
            assert "pca" in about["maps"]  # the paths come along, whatever data there is
            if images:
                shown = client.get("/api/images?order=index&limit=30").json()["images"]
                for image in shown:
                    said = client.get(f"/api/images/{image['index']}/route").json()["image"]
                    assert (said["top"][0]["label"], said["blocks_run"]) == (image["prediction"], image["blocks_run"])


def test_zoo_network_without_the_data_set_has_sample_images(zoo: Path) -> None:
    entry = open_zoo("digits-resnet20-06")
    dataset = entry.aligned(load_digits())
    assert dataset is not None
    write_samples(entry, dataset, zoo)
    with TestClient(create_app(entry, None), base_url="http://localhost") as client:
        about = client.get("/api/run").json()
        assert about["images"] == len(about["samples"]) == 30
        assert about["accuracy"] is False  # thirty images are too few to measure on
        shown = client.get("/api/images?order=hardest&limit=40").json()["images"]
        assert [image["blocks_run"] for image in shown] == sorted((i["blocks_run"] for i in shown), reverse=True)
        assert sorted([image["index"], image["label"]] for image in shown) == about["samples"]
        for image in shown[:3]:
            index = image["index"]
            said = client.get(f"/api/images/{index}/route").json()
            assert (said["truth"], said["image"]["blocks_run"]) == (image["label"], image["blocks_run"])
            assert index not in [near["index"] for near in said["neighbours"]]
            picture = np.asarray(Image.open(io.BytesIO(client.get(f"/api/images/{index}.png").content)))
            assert (picture == dataset.test.images_NCHW[index, 0].numpy()).all()
        missing = next(k for k in range(500) if k not in dict(about["samples"]))
        answer = client.get(f"/api/images/{missing}.png")
        assert (answer.status_code, "is not on this machine" in answer.json()["error"]) == (404, True)


def test_accuracy_is_that_of_the_network_at_the_threshold(explorer: Any, run: RunFolder, few: Dataset) -> None:
    model, device = run.load_model(), torch.device("cpu")
    for threshold in (0.5, 0.9):
        said = explorer.get(f"/api/accuracy?threshold={threshold}").json()
        found = evaluate_test_set(model, few, device, threshold=threshold)
        assert said == {
            "threshold": threshold,
            "accuracy": pytest.approx(found.accuracy),
            "cost_share": pytest.approx(found.cost_share),
            "n": 40,
            "interpolated": False,
        }


def test_a_curve_is_interpolated_between_its_points() -> None:
    curve = [CurvePoint(0.1, 80.0, 0.9, 500), CurvePoint(0.5, 90.0, 0.5, 500), CurvePoint(0.9, 70.0, 0.3, 500)]
    for threshold, accuracy, cost, between in (
        *((0.5, 90.0, 0.5, False), (0.2, 82.5, 0.8, True), (0.7, 80.0, 0.4, True)),
        *((0.0, 80.0, 0.9, True), (1.0, 70.0, 0.3, True)),  # beyond its ends it is constant
    ):
        point, interpolated = interpolate(curve, threshold)
        assert point == pytest.approx(CurvePoint(threshold, accuracy, cost, 500))
        assert interpolated == between


def test_without_paths_images_are_still_routed(own_run: Path, few: Dataset) -> None:
    (own_run / "paths.safetensors").write_bytes(b"damaged")
    with TestClient(create_app(RunFolder.open(own_run), few), base_url="http://localhost") as client:
        assert client.get("/api/run").json()["maps"] == []
        assert client.get("/api/map").status_code == 404
        said = client.get("/api/images/0/route").json()
        assert "neighbours" not in said
        assert len(client.get("/api/images?order=hardest").json()["images"]) == 24


def test_static_run_lights_every_block(
    tmp_path: Path, train_words: Callable[..., list[str]], few: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "static"
    assert main(train_words(out, "--no-routed")) == 0
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    with TestClient(create_app(RunFolder.open(out), few), base_url="http://localhost") as client:
        about = client.get("/api/run").json()
        assert about["routed"] is False
        assert about["maps"] == []
        for threshold in (0, 0.5, 1):
            image = client.get("/api/images/0/route", params={"threshold": threshold}).json()["image"]
            assert image["path"] == [1] * 9
            assert image["run_probability"] is None
            assert image["cost_share"] == 1.0
