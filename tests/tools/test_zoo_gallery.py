from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from codinet.evaluate import evaluate_test_set
from codinet.run_reader import CurvePoint
from codinet.zoo.sample_images import choose_samples, load_samples, sample_file
from codinet.zoo.shelf import find
from codinet.zoo.zoo_run import open_zoo
from tools import zoo_gallery

NAME = "digits-resnet20-06"


def test_samples_and_curve_are_added(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zoo_gallery, "THRESHOLDS", (0.0, 0.5, 1.0))
    monkeypatch.setattr(zoo_gallery, "STEP", 0.2)
    assert zoo_gallery.main(["--images", "60", "--network", NAME]) == 0
    assert f"{NAME}: threshold 0.5" in capsys.readouterr().out
    run = open_zoo(NAME)
    dataset = run.aligned(run.load_dataset(Path()))
    assert dataset is not None
    few = dataset.test.subset(torch.arange(60))
    expected = evaluate_test_set(run.load_model(), replace(dataset, test=few), torch.device("cpu"))
    (middle,) = (point for point in run.threshold_curve() if point.threshold == 0.5)
    assert middle == pytest.approx(CurvePoint(0.5, expected.accuracy, expected.cost_share, 60), abs=1e-3)
    samples = run.sample_images()
    assert samples is not None
    assert torch.equal(samples.split.images_NCHW, dataset.test.images_NCHW[samples.index_S])
    assert samples.split.labels_N.bincount().tolist() == [3] * 10

    # A second run keeps the points that it has.
    monkeypatch.setattr(zoo_gallery, "evaluate", lambda *_: pytest.fail("nothing is left to measure"))
    assert zoo_gallery.main(["--images", "60"]) == 0

    # The samples of other test images are not shown, nor is a damaged file.
    card = find(NAME, zoo)
    assert load_samples(type(card)(card.content | {"test_sha256": "0" * 64}), zoo) is None
    file = sample_file("digits", zoo)
    whole, random = file.read_bytes(), Random(0)
    for _ in range(100):
        content = bytearray(whole)
        for _ in range(random.randint(1, 20)):
            content[random.randrange(len(content))] = random.randrange(256)
        file.write_bytes(content)
        run.sample_images()
    file.write_bytes(whole[:500])
    assert run.sample_images() is None
    assert "is damaged" in caplog.text


def test_unknown_network(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo_gallery.main(["--network", "nothing"]) == 2
    assert "The zoo has no network 'nothing'" in capsys.readouterr().err


def test_samples_are_spread_over_the_classes() -> None:
    assert choose_samples(torch.tensor([1, 0, 1, 1, 0, 2]), 4).tolist() == [0, 1, 4, 5]
    assert choose_samples(torch.arange(100), 4).tolist() == [0, 25, 50, 75]


@pytest.mark.parametrize(
    ("accuracies", "threshold"),
    [((90, 90, 90), None), ((90, 90, 10), 0.75), ((10, 90, 90), 0.25)],
)
def test_thresholds_are_added_where_the_accuracy_changes(
    accuracies: tuple[float, ...], threshold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_gallery, "THRESHOLDS", (0.0, 0.5, 1.0))
    points = [CurvePoint(t, a, 0.6, 500) for t, a in zip((0.0, 0.5, 1.0), accuracies, strict=True)]
    assert zoo_gallery.next_threshold({point.threshold: point for point in points}) == threshold
    assert zoo_gallery.next_threshold({point.threshold: point for point in points[:2]}) == 1.0
