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
from codinet.analysis import Request, RunAnalysis, analyse_run, saved_analysis
from codinet.analysis.measures import kl_divergence
from codinet.analysis.run_analysis import FORMAT, JSON, TENSORS, _digest
from codinet.cli import main
from codinet.data import Dataset
from codinet.data.views import normalise
from codinet.errors import UserError
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder

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
    return folder, analyse_run(folder, request(tsne=True))


def test_figures_match_the_evaluation(analysed: tuple[RunFolder, RunAnalysis], few: Dataset) -> None:
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


def test_tensors_match_each_other(analysed: tuple[RunFolder, RunAnalysis], few: Dataset) -> None:
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
    ("part", "change", "invalid"),
    [
        ("figures", lambda figures: figures, None),
        ("figures", without("swapped"), None),  # missing in revision 1
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
def test_the_invalid_entry_is_named(
    analysed: tuple[RunFolder, RunAnalysis],
    part: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    invalid: str | None,
) -> None:
    _, found = analysed
    changed = replace(found, **{part: change(getattr(found, part))})
    assert changed.invalid_entry(routed=True, images=40, classes=10, blocks=9) == invalid


def test_an_invalid_analysis_is_computed_again(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    notes: list[str] = []
    found = analyse_run(folder, request())
    replace(found, figures=without("kl")(found.figures)).save(own_run)
    again = analyse_run(folder, request(), note=notes.append)
    assert again.figures == found.figures
    problem = f"{own_run / 'analysis.json'} does not match the run: kl is missing or invalid."
    assert notes == [f"{problem} The analysis is computed again."]


def test_horizontal_flips_are_compared_with_the_flipped_image(
    analysed: tuple[RunFolder, RunAnalysis], few: Dataset
) -> None:
    folder, found = analysed
    model = folder.load_model()
    x = normalise(few.test.images_NCHW, torch.tensor(few.mean), torch.tensor(few.std))
    with torch.inference_mode():
        kl_T = kl_divergence(model(x).logits_BK, model(x.flip(3)).logits_BK)
    flipped = found.tensors["kind"] == 1
    assert flipped.sum() == len(few.test) // 4
    torch.testing.assert_close(found.tensors["kl"][flipped], kl_T[flipped].float(), atol=1e-4, rtol=1e-3)


def test_a_saved_analysis_is_used_until_something_changes(own_run: Path) -> None:
    folder, titles = RunFolder.open(own_run), []

    def progress(title: str, _total: int | None) -> Callable[[int], None]:
        titles.append(title)
        return lambda _steps: None

    def made(**options: object) -> bool:
        titles.clear()
        analyse_run(folder, request(**options), progress=progress)
        return bool(titles)

    assert made()
    assert not made()
    assert made(seed=1)
    assert made(seed=1, images=20)
    titles.clear()
    analyse_run(folder, request(), progress=progress, any_options=True)
    assert not titles
    tensors, about = files.load_tensors(own_run / "model.safetensors")
    tensors["fc.bias"] = tensors["fc.bias"] + 1
    files.save_tensors(own_run / "model.safetensors", tensors, about)
    titles.clear()
    analyse_run(folder, request(), progress=progress, any_options=True)
    assert titles


def test_an_analysis_of_revision_1_is_used_only_with_any_options(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    new = analyse_run(folder, request())
    figures = {key: value for key, value in new.figures.items() if key != "swapped"}
    made_from = {key: value for key, value in new.made_from.items() if key != "revision"}
    RunAnalysis(made_from, figures, new.tensors).save(own_run)
    assert analyse_run(folder, request(), any_options=True).figures == figures
    assert analyse_run(folder, request()).figures == new.figures


def test_a_damaged_analysis_is_computed_again_with_a_note(own_run: Path) -> None:
    folder = RunFolder.open(own_run)
    notes: list[str] = []
    first = analyse_run(folder, request())
    (own_run / "analysis.safetensors").write_bytes(b"spoiled")
    again = analyse_run(folder, request(), note=notes.append)
    assert len(notes) == 1
    assert "computed again" in notes[0]
    assert again.figures == first.figures


def test_a_saved_analysis_must_be_of_the_same_data(analysed: tuple[RunFolder, RunAnalysis]) -> None:
    folder, found = analysed
    kept = saved_analysis(folder)
    assert kept is not None
    assert kept.figures == found.figures
    assert saved_analysis(replace(folder, data=replace(folder.data, sha256="0" * 64))) is None
    assert saved_analysis(replace(folder, data=replace(folder.data, mean=(1.0,)))) is not None


def test_an_analysis_that_cannot_be_saved_is_returned_with_a_note(own_run: Path) -> None:
    (own_run / "analysis.safetensors").mkdir()  # which no file can replace
    notes: list[str] = []
    assert analyse_run(RunFolder.open(own_run), request(), note=notes.append).figures["images"] == 40
    assert len(notes) == 1
    assert notes[0].startswith("The analysis is not saved: ")


def test_features_of_a_static_run_and_of_a_file_agree(own_run: Path, static_run: Path, few: Dataset) -> None:
    folder, static = RunFolder.open(own_run), RunFolder.open(static_run)
    by_static = analyse_run(folder, request(static=static)).figures["correlation"]
    assert by_static["features"] == "the last layer of the static run static"
    model = static.load_model()
    seen: list[torch.Tensor] = []
    model.get_submodule("fc").register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        model(normalise(few.test.images_NCHW, torch.tensor(few.mean), torch.tensor(few.std)))
    np.save(own_run / "f.npy", seen[0].numpy())
    by_file = analyse_run(folder, request(features=own_run / "f.npy")).figures["correlation"]
    assert by_file["features"] == "the file f.npy"
    for key in ("pcc_relaxed", "pcc_hard"):
        assert by_file[key] == (None if by_static[key] is None else pytest.approx(by_static[key], abs=1e-4))


def test_a_static_run_has_no_figures_of_paths(static_run: Path) -> None:
    found = analyse_run(RunFolder.open(static_run), request())
    assert "correlation" not in found.figures
    assert "same_path" not in found.figures["consistency"]
    assert found.figures["kl"]["mean"] > 0
    own = found.figures["consistency"]["accuracy_original"]
    assert found.figures["swapped"] == {"accuracy_any": own, "accuracy_class": own}


def test_the_number_of_images_can_be_limited(own_run: Path) -> None:
    found = analyse_run(RunFolder.open(own_run), request(images=12))
    assert found.figures["images"] == len(found.tensors["index"]) == 12


def test_wrong_inputs_are_rejected(own_run: Path, static_run: Path, tmp_path: Path) -> None:
    folder = RunFolder.open(own_run)
    with pytest.raises(UserError, match="--no-routed"):
        analyse_run(folder, request(static=folder, seed=9))
    with pytest.raises(UserError, match=r"Cannot read .*none\.npy"):
        analyse_run(folder, request(features=tmp_path / "none.npy"))
    (own_run / "paths.safetensors").write_bytes((static_run / "paths.safetensors").read_bytes()[:-8])
    with pytest.raises(UserError, match=r"paths\.safetensors"):
        analyse_run(folder, request(seed=8))
    (own_run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        analyse_run(folder, request())


def test_a_differently_rounded_mean_is_the_same_data(own_run: Path, static_run: Path) -> None:
    def rounded(data: DataInfo) -> DataInfo:
        return replace(data, mean=tuple(float(np.nextafter(mean, 0)) for mean in data.mean))

    folder, static = RunFolder.open(own_run), RunFolder.open(static_run)
    folder = replace(folder, data=rounded(folder.data))
    assert analyse_run(folder, request(static=static)).figures["images"] == 40
    other = replace(static, data=replace(static.data, sha256="0" * 64))
    with pytest.raises(UserError, match="--static must be trained on the data of"):
        analyse_run(folder, request(static=other, seed=1))


def test_other_data_with_the_same_name_is_rejected(own_run: Path, tmp_path: Path) -> None:
    content = json.loads((own_run / "config.json").read_text())
    content["data"]["sha256"] = "0" * 64
    (own_run / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="other data"):
        analyse_run(RunFolder.open(own_run), request())


def small_analysis() -> RunAnalysis:
    return RunAnalysis({"network": "abc", "seed": 0}, {"kl": {"mean": 0.1 + 0.2}}, {"kl": torch.rand(5)})


def test_save_and_load(tmp_path: Path) -> None:
    one = small_analysis()
    one.save(tmp_path)
    other = RunAnalysis.load(tmp_path)
    assert other is not None
    assert (other.made_from, other.figures) == (one.made_from, one.figures)
    assert torch.equal(other.tensors["kl"], one.tensors["kl"])


@pytest.mark.parametrize("name", [JSON, TENSORS])
def test_load_returns_none_if_a_file_is_missing(tmp_path: Path, name: str) -> None:
    assert RunAnalysis.load(tmp_path) is None
    small_analysis().save(tmp_path)
    (tmp_path / name).unlink()
    assert RunAnalysis.load(tmp_path) is None


def test_load_returns_none_for_another_format(tmp_path: Path) -> None:
    small_analysis().save(tmp_path)
    content = json.loads((tmp_path / JSON).read_text())
    (tmp_path / JSON).write_text(json.dumps(content | {"format": 99}))
    assert RunAnalysis.load(tmp_path) is None


def test_changed_files_are_detected(tmp_path: Path) -> None:
    small_analysis().save(tmp_path)
    whole = (tmp_path / JSON).read_text()
    (tmp_path / JSON).write_text(whole.replace("abc", "abd"))
    with pytest.raises(UserError, match="do not match"):
        RunAnalysis.load(tmp_path)
    (tmp_path / JSON).write_text(whole)
    content = bytearray((tmp_path / TENSORS).read_bytes())
    content[-1] ^= 1
    (tmp_path / TENSORS).write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        RunAnalysis.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"figures": None}, {"figures": []}, {"made_from": 3}, {"made_from": {"seed": [1]}}],
)
def test_json_that_is_not_an_analysis_is_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    content = {"format": FORMAT, "made_from": {"seed": 0}, "figures": {}} | change
    (tmp_path / JSON).write_text(json.dumps(content))
    files.save_tensors(tmp_path / TENSORS, {"kl": torch.zeros(1)}, {"json": _digest(content)})
    with pytest.raises(files.DamagedError, match=r"analysis\.json (is not an analysis|has an invalid)"):
        RunAnalysis.load(tmp_path)
