import contextlib
import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codinet import files
from codinet.analysis import Request, RunAnalysis, analysis_of
from codinet.analysis.consistency import divergence
from codinet.analysis.folders import kept_analysis
from codinet.cli import main
from codinet.data import Dataset
from codinet.data.views import normalise
from codinet.errors import UserError
from codinet.runs import DataBrief, RunFolder

CPU = torch.device("cpu")


def request(**options: object) -> Request:
    return Request(Path(), CPU, **{"tsne": False, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def static_run(tmp_path_factory: pytest.TempPathFactory, train_words: Callable[..., list[str]]) -> Path:
    out = tmp_path_factory.mktemp("runs") / "static"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(train_words(out, "--no-routed")) == 0
    return out


@pytest.fixture(scope="module")
def analysed(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunAnalysis]:
    folder = RunFolder.open(shutil.copytree(finished_run, tmp_path_factory.mktemp("analysed") / "run"))
    return folder, analysis_of(folder, request(tsne=True))


def test_figures_are_those_of_the_run(analysed: tuple[RunFolder, RunAnalysis], few: Dataset) -> None:
    folder, found = analysed
    evaluation = folder.load_evaluation()
    assert found.figures["images"] == len(few.test)
    assert found.figures["consistency"]["accuracy_original"] == pytest.approx(evaluation["accuracy"])
    assert all(0 <= found.figures["swapped"][key] <= 100 for key in ("accuracy_any", "accuracy_class"))
    assert found.figures["usage"]["distinct_paths"] == evaluation["distinct_paths"]
    assert found.figures["usage"]["path_entropy"] == pytest.approx(evaluation["path_entropy"])
    assert found.figures["correlation"]["features"] == "the routed network's own last layer"
    assert found.figures["correlation"]["pairs"] == len(few.test) * (len(few.test) - 1) // 2
    assert json.loads((folder.path / "analysis.json").read_text())["figures"] == found.figures


def test_tensors_fit_each_other(analysed: tuple[RunFolder, RunAnalysis], few: Dataset) -> None:
    folder, found = analysed
    images = len(few.test)
    assert found.tensors["index"].tolist() == list(range(images))
    assert len(found.tensors["kl"]) == len(found.tensors["kind"]) == len(found.tensors["same_path"]) == images
    assert found.tensors["pca"].shape == (images, 2)
    assert found.tensors["group_pca"].shape == (10 * images, 2)  # fewer than 150 images: all of them, ten times
    torch.testing.assert_close(
        found.tensors["expected_blocks"], folder.load_paths().run_probability_TN.sum(dim=1), atol=1e-4, rtol=0
    )
    share = found.tensors["same_path"].double().mean().item()
    assert found.figures["consistency"]["same_path"] == pytest.approx(share)


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: {name: value for name, value in content.items() if name not in names}


@pytest.mark.parametrize(
    ("part", "change", "odd"),
    [
        ("figures", lambda figures: figures, None),
        ("figures", without("swapped"), None),  # older analyses lack it
        ("tensors", without("tsne", "group_tsne"), None),
        ("figures", without("kl"), "kl"),
        ("figures", lambda figures: {**figures, "images": "40"}, "images"),
        ("figures", lambda figures: {**figures, "swapped": {"accuracy_any": []}}, "swapped.accuracy_any"),
        ("figures", lambda figures: {**figures, "kl": {**figures["kl"], "mean": math.nan}}, "kl.mean"),
        ("figures", lambda figures: {**figures, "kl": {**figures["kl"], "kinds": {"crop": 1}}}, "kl.kinds.crop"),
        ("figures", lambda figures: {**figures, "embedding": {"groups": 40, "views": 0}}, "group_pca"),
        ("figures", lambda figures: {**figures, "embedding": {"groups": 40, "views": -1}}, "embedding.views"),
        ("tensors", without("pca"), "pca"),
        ("tensors", lambda tensors: {**tensors, "pca": tensors["pca"][:, :1]}, "pca"),
        ("tensors", lambda tensors: {**tensors, "pca": tensors["pca"] * math.inf}, "pca"),
        ("tensors", lambda tensors: {**tensors, "kl": tensors["kl"].double()}, "kl"),
        ("tensors", lambda tensors: {**tensors, "kl": tensors["kl"][:0]}, "kl"),
        ("tensors", lambda tensors: {**tensors, "kind": tensors["kind"] + 9}, "kind"),
        ("tensors", lambda tensors: {**tensors, "easiest": tensors["easiest"] + 40}, "easiest"),
        ("tensors", lambda tensors: {**tensors, "shown_index": tensors["shown_index"].flip(0)}, "shown_index"),
        ("tensors", lambda tensors: {**tensors, "shared": tensors["shared"] * 0 - 1}, "shared"),
        ("tensors", lambda tensors: {**tensors, "run_rates": tensors["run_rates"].T.contiguous()}, "run_rates"),
    ],
)
def test_an_analysis_that_is_not_whole_names_what_is_missing(
    analysed: tuple[RunFolder, RunAnalysis],
    part: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    odd: str | None,
) -> None:
    _, found = analysed
    spoilt = replace(found, **{part: change(getattr(found, part))})
    assert spoilt.misfit(routed=True, images=40, classes=10, blocks=9) == odd


def test_an_analysis_that_is_not_whole_is_made_again(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    notes: list[str] = []
    found = analysis_of(folder, request())
    replace(found, figures=without("kl")(found.figures)).save(own_run)
    again = analysis_of(folder, request(), note=notes.append)
    assert again.figures == found.figures
    assert notes == [f"{own_run / 'analysis.json'} is not an analysis of the run: kl does not fit. It is made again."]


def test_horizontal_flips_are_compared_with_what_a_flip_gives(
    analysed: tuple[RunFolder, RunAnalysis], few: Dataset
) -> None:
    folder, found = analysed
    model = folder.load_model()
    x = normalise(few.test.images_NCHW, torch.tensor(few.mean), torch.tensor(few.std))
    with torch.inference_mode():
        kl_T = divergence(model(x).logits_BK, model(x.flip(3)).logits_BK)
    flipped = found.tensors["kind"] == 1
    assert flipped.sum() == len(few.test) // 4
    torch.testing.assert_close(found.tensors["kl"][flipped], kl_T[flipped].float(), atol=1e-4, rtol=1e-3)


def test_an_analysis_is_kept_until_something_changes(own_run: Path) -> None:
    folder, titles = RunFolder.open(own_run), []

    def watch(title: str, _total: int | None) -> Callable[[int], None]:
        titles.append(title)
        return lambda _steps: None

    def made(**options: object) -> bool:
        titles.clear()
        analysis_of(folder, request(**options), watch=watch)
        return bool(titles)

    assert made()
    assert not made()
    assert made(seed=1)
    assert made(seed=1, images=20)
    titles.clear()
    analysis_of(folder, request(), watch=watch, any_options=True)
    assert not titles
    tensors, about = files.load_tensors(own_run / "model.safetensors")
    tensors["fc.bias"] = tensors["fc.bias"] + 1
    files.save_tensors(own_run / "model.safetensors", tensors, about)
    titles.clear()
    analysis_of(folder, request(), watch=watch, any_options=True)
    assert titles


def test_an_analysis_of_before_is_read_and_made_again_when_asked_for(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    new = analysis_of(folder, request())
    figures = {key: value for key, value in new.figures.items() if key != "swapped"}
    made_from = {key: value for key, value in new.made_from.items() if key != "revision"}
    RunAnalysis(made_from, figures, new.tensors).save(own_run)
    assert analysis_of(folder, request(), any_options=True).figures == figures  # as a report takes it
    assert analysis_of(folder, request()).figures == new.figures


def test_a_damaged_analysis_is_made_again_and_said_so(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    notes: list[str] = []
    first = analysis_of(folder, request())
    (own_run / "analysis.safetensors").write_bytes(b"spoiled")
    again = analysis_of(folder, request(), note=notes.append)
    assert len(notes) == 1
    assert "made again" in notes[0]
    assert again.figures == first.figures


def test_an_analysis_is_kept_for_the_network_and_data_it_is_of(analysed: tuple[RunFolder, RunAnalysis]) -> None:
    folder, found = analysed
    kept = kept_analysis(folder)
    assert kept is not None
    assert kept.figures == found.figures
    assert kept_analysis(replace(folder, data=replace(folder.data, sha256="0" * 64))) is None
    assert kept_analysis(replace(folder, data=replace(folder.data, mean=(1.0,)))) is not None


def test_an_analysis_that_cannot_be_saved_is_given_all_the_same(own_run: Path) -> None:
    (own_run / "analysis.safetensors").mkdir()  # which no file can replace
    notes: list[str] = []
    assert analysis_of(RunFolder.open(own_run), request(), note=notes.append).figures["images"] == 40
    assert len(notes) == 1
    assert notes[0].startswith("The analysis is not kept: Could not write ")


def test_features_come_from_where_they_are_asked_from(own_run: Path, static_run: Path, few: Dataset) -> None:
    folder, static = RunFolder.open(own_run), RunFolder.open(static_run)
    by_static = analysis_of(folder, request(static=static)).figures["correlation"]
    assert by_static["features"] == "the last layer of the static run static"
    model = static.load_model()
    seen: list[torch.Tensor] = []
    model.fc.register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        model(normalise(few.test.images_NCHW, torch.tensor(few.mean), torch.tensor(few.std)))
    np.save(own_run / "f.npy", seen[0].numpy())
    by_file = analysis_of(folder, request(features=own_run / "f.npy")).figures["correlation"]
    assert by_file["features"] == "the file f.npy"
    for key in ("pcc_relaxed", "pcc_hard"):
        assert by_file[key] == (None if by_static[key] is None else pytest.approx(by_static[key], abs=1e-4))


def test_a_static_run_has_predictions_to_compare_and_no_paths(static_run: Path) -> None:
    found = analysis_of(RunFolder.open(static_run), request())
    assert "correlation" not in found.figures
    assert "same_path" not in found.figures["consistency"]
    assert found.figures["kl"]["mean"] > 0
    own = found.figures["consistency"]["accuracy_original"]
    assert found.figures["swapped"] == {"accuracy_any": own, "accuracy_class": own}


def test_fewer_images_are_a_choice_of_them(own_run: Path) -> None:
    found = analysis_of(RunFolder.open(own_run), request(images=12))
    assert found.figures["images"] == len(found.tensors["index"]) == 12


def test_what_is_wrong_is_said(own_run: Path, static_run: Path, tmp_path: Path) -> None:
    folder = RunFolder.open(own_run)
    with pytest.raises(UserError, match="--no-routed"):
        analysis_of(folder, request(static=folder, seed=9))
    with pytest.raises(UserError, match=r"none\.npy cannot be read"):
        analysis_of(folder, request(features=tmp_path / "none.npy"))
    (own_run / "paths.safetensors").write_bytes((static_run / "paths.safetensors").read_bytes()[:-8])
    with pytest.raises(UserError, match=r"paths\.safetensors"):
        analysis_of(folder, request(seed=8))
    (own_run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        analysis_of(folder, request())


def test_data_whose_mean_was_rounded_otherwise_is_the_same(own_run: Path, static_run: Path) -> None:
    def rounded(data: DataBrief) -> DataBrief:
        return replace(data, mean=tuple(float(np.nextafter(mean, 0)) for mean in data.mean))

    folder, static = RunFolder.open(own_run), RunFolder.open(static_run)
    folder = replace(folder, data=rounded(folder.data))
    assert analysis_of(folder, request(static=static)).figures["images"] == 40
    other = replace(static, data=replace(static.data, sha256="0" * 64))
    with pytest.raises(UserError, match="give a static run of the same"):
        analysis_of(folder, request(static=other, seed=1))


def test_other_data_under_the_same_name_is_refused(own_run: Path, tmp_path: Path) -> None:
    content = json.loads((own_run / "config.json").read_text())
    content["data"]["sha256"] = "0" * 64
    (own_run / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="other data"):
        analysis_of(RunFolder.open(own_run), request())
