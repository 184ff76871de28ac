"""What notebooks show for evaluations, outputs and runs."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import torch

from codinet import RoutedOutput, open_run
from codinet.cost import CostTable
from codinet.evaluate import summarise
from codinet.notebook import Row, path_picture
from codinet.records import PathTable
from codinet.runs import RunFolder

SVG = "{http://www.w3.org/2000/svg}"
TABLE = CostTable(run_N=(10, 20), skip_N=(0, 5), router_N=(1, 1), fixed=100, image_shape=(1, 2, 2), paper_unit=2)


def parsed(html: str) -> ElementTree.Element:
    """Everything is well-formed, so that no text breaks out of its element."""
    return ElementTree.fromstring(f"<div>{html}</div>")


def titles(html: str) -> list[str]:
    return [title.text or "" for title in parsed(html).iter(f"{SVG}title")]


def paths(path_TN: torch.Tensor, label_T: torch.Tensor) -> PathTable:
    ones_T = torch.ones(len(label_T))
    return PathTable(path_TN.byte(), path_TN.float(), label_T, label_T, ones_T, TABLE.path_macs(path_TN.float()))


def test_an_evaluation_is_a_table_and_a_picture_by_class() -> None:
    path_TN = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]])
    html = summarise(paths(path_TN, torch.tensor([3, 3, 7, 7])), TABLE, loss=0.1)._repr_html_()
    cells = [cell.text for cell in parsed(html).iter("td")]
    assert cells[0] == "100.00 %"
    assert cells[-1] == "4"
    assert titles(html) == [
        *("all images, block 1: 50 % of images", "all images, block 2: 75 % of images"),
        *("7, block 1: 0 % of images", "7, block 2: 100 % of images"),  # runs fewer blocks
        *("3, block 1: 100 % of images", "3, block 2: 50 % of images"),
    ]


def test_of_many_classes_the_extremes_are_shown() -> None:
    label_T = torch.arange(40)
    path_TN = torch.stack([label_T >= 20, label_T % 2 == 0], dim=1)
    html = summarise(paths(path_TN, label_T), TABLE, loss=0.1)._repr_html_()
    assert len(titles(html)) == 2 * 11
    assert "the 5 classes that run the fewest blocks and the 5 that run the most" in html


def test_an_output_shows_the_paths_of_the_first_images() -> None:
    logits_BK = torch.eye(3).repeat(20, 1)
    path_BN = torch.tensor([[1.0, 0.0], [0.25, 1.0]]).repeat(30, 1)
    html = RoutedOutput(logits_BK, torch.zeros(60, 2, 2), path_BN.requires_grad_())._repr_html_()
    assert titles(html)[:3] == [
        *("image 0: class 0, block 1: 100 % run", "image 0: class 0, block 2: 0 % run"),
        "image 1: class 1, block 1: 25 % run",
    ]
    assert "The paths of 32 of 60 images." in html


def test_names_are_escaped_and_shortened() -> None:
    html = path_picture('<&">', [Row("<script>alert(1)</script>" * 3, [0.5])], unit="of images")
    root = parsed(html)
    assert root.find(".//script") is None
    assert (root.find(".//figcaption").text, root.find(f".//{SVG}text").text) == ('<&">', "<script>alert(1)</scrip…")  # type: ignore[union-attr]
    assert path_picture("nothing", [], unit="") == path_picture("nothing", [Row("a", [])], unit="") == ""


def test_a_run_shows_settings_results_and_paths(zoo: Path, digits_run: Path, tmp_path: Path) -> None:
    for run in (open_run(digits_run), open_run("zoo:digits-resnet20-06")):
        html = run._repr_html_()
        assert f"<b>{run.path}</b>" in html
        assert "resnet20, fc routers" in html
        assert len(titles(html)) == 9 * 11
    data = replace(run.data, name="<i>mine</i>", classes=("<b>zero", *run.data.classes[1:]))
    strange = RunFolder(digits_run, run.config, data, {}, run.groups)._repr_html_()
    assert "<b>zero, block 1" in " ".join(titles(strange))
    unfinished = RunFolder(tmp_path, run.config, data, {}, run.groups)._repr_html_()
    assert "not finished: 0 epochs" in unfinished
    (tmp_path / "evaluation.json").write_text("{}")
    damaged = RunFolder(tmp_path, run.config, data, {}, run.groups)._repr_html_()
    assert "is not an evaluation" in damaged
    assert titles(damaged) == []
