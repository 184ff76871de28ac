from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from codinet.data import Dataset
from codinet.errors import UserError
from codinet.predict import Predictor
from codinet.runs import RunFolder


@pytest.fixture(scope="module")
def predictor(finished_run: Path) -> Predictor:
    return Predictor(RunFolder.open(finished_run), torch.device("cpu"))


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
