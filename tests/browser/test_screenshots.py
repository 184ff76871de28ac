"""The screenshot tool, on a small run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tools import screenshots


@pytest.mark.usefixtures("browser_here")
def test_screenshots_of_explorer_and_report(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fastapi", reason="the explorer needs the extra codinet[explore]")
    run = shutil.copytree(finished_run, tmp_path / "run")
    (run / "report").mkdir()
    (run / "report" / "index.html").write_text("<!doctype html><title>report</title><h1>Report</h1>")
    assert screenshots.main([str(run), str(tmp_path / "out"), "--image", "5"]) == 0
    names = [
        f"{part}-{kind}.png" for kind in ("light", "dark", "phone", "phone-dark") for part in ("explorer", "report")
    ]
    assert sorted(capsys.readouterr().out.split()) == sorted(str(tmp_path / "out" / name) for name in names)

    def size(name: str) -> Any:
        with Image.open(tmp_path / "out" / name) as picture:
            return picture.size

    assert size("explorer-light.png")[0] == size("explorer-dark.png")[0] == 1920
    assert size("explorer-phone.png")[0] == 585
    assert size("report-light.png") == (1920, 2250)
