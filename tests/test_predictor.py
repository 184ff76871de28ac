from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from codinet.data import Dataset
from codinet.engines.contract import Engine
from codinet.engines.folding import FoldedBasic
from codinet.errors import UserError
from codinet.predictor import Prediction, Predictor
from codinet.relaxation import hard, run_probability
from codinet.runs import RunFolder


@pytest.fixture(scope="module")
def predictor(finished_run: Path) -> Predictor:
    return Predictor(RunFolder.open(finished_run), torch.device("cpu"))


@pytest.fixture(scope="module")
def batched(finished_run: Path) -> Predictor:
    return Predictor(RunFolder.open(finished_run), torch.device("cpu"), batch=16)


@pytest.fixture
def picture(tmp_path: Path, few: Dataset) -> Path:
    """The first test image as a file."""
    Image.fromarray(few.test.images_NCHW[0, 0].numpy()).save(tmp_path / "first.png")
    return tmp_path / "first.png"


def test_a_file_is_answered_as_the_evaluation_answered_it(
    predictor: Predictor, picture: Path, finished_run: Path
) -> None:
    paths = RunFolder.open(finished_run).load_paths()
    answer = predictor.predict(picture)
    assert answer.label == predictor.data.classes[int(paths.prediction_T[0])]
    assert answer.confidence == pytest.approx(paths.confidence_T[0].item(), abs=1e-5)
    assert list(answer.path) == paths.path_TN[0].tolist()
    assert answer.run_probability == pytest.approx(paths.run_probability_TN[0].tolist(), abs=1e-5)
    assert answer.blocks_run == sum(answer.path)
    assert answer.cost_share == pytest.approx(paths.macs_T[0].item() / predictor.table.static_macs)


def test_uploaded_bytes_are_answered_as_the_file_is(predictor: Predictor, picture: Path) -> None:
    assert predictor.predict(picture.read_bytes()) == predictor.predict(picture)


def test_any_size_and_colour_is_brought_to_the_networks(predictor: Predictor, tmp_path: Path) -> None:
    Image.new("RGBA", (50, 30), (200, 10, 10, 128)).save(tmp_path / "wide.png")
    assert len(predictor.predict(tmp_path / "wide.png").path) == 9


@pytest.mark.parametrize(("threshold", "blocks"), [(0.0, 9), (1.0, 0)])
def test_the_threshold_decides_how_much_runs(
    predictor: Predictor, picture: Path, threshold: float, blocks: int
) -> None:
    answer = predictor.predict(picture, threshold=threshold)
    assert answer.blocks_run == blocks
    always = predictor.table.share(torch.full((1, 9), float(blocks > 0))).item()
    assert answer.cost_share == pytest.approx(always)


def test_the_summary_is_everything(predictor: Predictor, picture: Path) -> None:
    answer = predictor.predict(picture)
    assert answer.summary() == asdict(answer)
    assert set(answer.summary()) >= {"label", "confidence", "blocks_run", "cost_share", "path"}


def test_what_is_no_image_is_refused_by_name(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("hello")
    with pytest.raises(UserError, match=r"notes\.png is not an image"):
        predictor.predict(tmp_path / "notes.png")
    with pytest.raises(UserError, match="the upload is not an image"):
        predictor.predict(b"hello")


def test_one_image_and_batches_have_engines_that_skip(predictor: Predictor, batched: Predictor) -> None:
    engines = predictor.engine, batched.engine
    assert [engine.name for engine in engines if isinstance(engine, Engine)] == ["branch", "gather"]


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.6, 1.0])
def test_answers_equal_those_of_the_masked_network(
    predictor: Predictor, batched: Predictor, few: Dataset, threshold: float
) -> None:
    images_TCHW = few.test.images_NCHW[torch.arange(40)]
    with torch.inference_mode():
        masked = predictor.model(predictor.normalise(images_TCHW), decide=partial(hard, threshold=threshold))
    confidence_T, label_T = masked.logits_BK.softmax(dim=1).max(dim=1)
    singles = [predictor.predict_batch(image_1CHW, threshold=threshold)[0] for image_1CHW in images_TCHW.split(1)]
    for answers in (singles, batched.predict_batch(images_TCHW, threshold=threshold)):
        assert [answer.label for answer in answers] == [few.classes[label] for label in label_T.tolist()]
        assert [list(answer.path) for answer in answers] == masked.path_BN.int().tolist()
        assert [answer.confidence for answer in answers] == pytest.approx(confidence_T.tolist(), abs=1e-5)
        probabilities = torch.tensor([answer.run_probability for answer in answers])
        assert torch.allclose(probabilities, run_probability(masked.scores_BN2), atol=1e-5)


@pytest.mark.parametrize("name", ["predictor", "batched"])
def test_a_skipped_block_is_not_computed(
    name: str, picture: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: Predictor = request.getfixturevalue(name)
    inner, calls = FoldedBasic._inner, []

    def count(block: FoldedBasic, x_BCHW: torch.Tensor) -> torch.Tensor:
        calls.append(len(x_BCHW))
        return inner(block, x_BCHW)

    monkeypatch.setattr(FoldedBasic, "_inner", count)
    for threshold in (0.0, 0.5, 1.0):
        calls.clear()
        assert chosen.predict(picture, threshold=threshold).blocks_run == sum(calls)


def test_without_an_engine_the_network_answers_and_one_sentence_says_why(
    finished_run: Path, predictor: Predictor, picture: Path
) -> None:
    def broken(*_args: Any, **_options: Any) -> Any:
        raise RuntimeError("no compiler found\nat line 3")

    said: list[str] = []
    fallback = Predictor(RunFolder.open(finished_run), torch.device("cpu"), make_engine=broken, warn=said.append)
    assert said == ["No engine could be made, so all blocks are computed, which is slower (no compiler found)."]
    for threshold in (0.3, 0.6):
        ours, theirs = (chosen.predict(picture, threshold=threshold) for chosen in (fallback, predictor))
        assert (ours.label, ours.path) == (theirs.label, theirs.path)
        assert ours.confidence == pytest.approx(theirs.confidence, abs=1e-5)
    assert len(said) == 1


@pytest.fixture
def pictures(tmp_path: Path, few: Dataset) -> list[Path]:
    """Ten test images, with files among them that are not images."""
    files = [tmp_path / f"{index:02}.png" for index in range(14)]
    for index, file in enumerate(files):
        if index % 4 == 1:
            file.write_text("no image")
        else:
            Image.fromarray(few.test.images_NCHW[index, 0].numpy()).save(file)
    return [*files, tmp_path]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_files_are_answered_in_order_and_those_that_are_no_images_do_not_stop_the_rest(
    finished_run: Path, predictor: Predictor, pictures: list[Path], batch: int
) -> None:
    batched = Predictor(RunFolder.open(finished_run), torch.device("cpu"), batch=batch)
    answers = list(batched.predict_files(pictures, threshold=0.45))
    assert [file for file, _ in answers] == pictures
    for index, (file, answer) in enumerate(answers):
        if index % 4 == 1 or file.is_dir():
            assert isinstance(answer, UserError)
            assert str(answer).startswith(f"{file} ")
        else:
            assert isinstance(answer, Prediction)
            expected = predictor.predict(file, threshold=0.45)
            assert (answer.label, answer.path) == (expected.label, expected.path)
    assert list(batched.predict_files([])) == []


def test_images_are_decoded_two_batches_ahead_at_most(
    finished_run: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(RunFolder.open(finished_run), torch.device("cpu"), batch=2)
    read, files = predictor.read, []

    def remember(source: Path | bytes) -> torch.Tensor:
        files.append(source)
        return read(source)

    monkeypatch.setattr(predictor, "read", remember)
    answers = predictor.predict_files(pictures[:14])
    next(answers)  # after 3 files: two images and one that is none
    answers.close()  # type: ignore[attr-defined]
    assert 3 <= len(files) <= 3 + 2 * 2


@pytest.mark.parametrize("batch", [0, 2**28])
def test_an_impossible_batch_is_refused(finished_run: Path, batch: int) -> None:
    with pytest.raises(UserError, match=f"batch must be a whole number from 1 to .*, got {batch}"):
        Predictor(RunFolder.open(finished_run), torch.device("cpu"), batch=batch)
