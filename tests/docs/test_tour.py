"""The notebook runs, and its saved outputs are what it computes."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from tools.run_notebook import Output, main, run_cells

TOUR = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def contents(outputs: list[Output]) -> list[object]:
    """What outputs show: text as it is, pictures as pixels."""
    found: list[object] = ["".join(output.get("text", "")) for output in outputs]
    for data in (output.get("data", {}) for output in outputs):
        found += [(kind, "".join(value)) for kind, value in data.items() if kind.startswith("text/")]
        if "image/png" in data:
            with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as image:
                found.append((image.size, image.tobytes()))
    return found


def test_saved_outputs_are_what_the_notebook_computes() -> None:
    cells = json.loads(TOUR.read_text())["cells"]
    threads = torch.get_num_threads()
    try:
        computed = run_cells(cells)
    finally:
        torch.set_num_threads(threads)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    kinds = set()
    for number, (cell, outputs) in enumerate(zip(code, computed, strict=True), start=1):
        saved, new = contents(cell["outputs"]), contents(outputs)
        if "measured" in cell["metadata"].get("tags", ()):  # times differ, so numbers may
            saved, new = (re.sub(r"\d+\.\d+", "#", str(found)) for found in (saved, new))  # type: ignore[assignment]
        assert new == saved, f"cell {number}; python -m tools.run_notebook docs/tour.ipynb updates it"
        assert cell["execution_count"] == number
        kinds |= {kind for output in outputs for kind in output.get("data", {"stdout": ""})}
    assert kinds == {"stdout", "text/html", "text/plain", "image/png"}


def test_the_notebook_is_small_and_names_no_folder_of_a_machine() -> None:
    text = TOUR.read_text()
    assert len(text) < 300_000
    assert re.search(r"/(home|Users|root|tmp|work|mnt)/", text) is None


def test_a_notebook_gets_its_outputs(tmp_path: Path) -> None:
    sources = ["x = 2", "print('a')\nx + 1", "x"]
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": [source]} for source in sources]
    file = tmp_path / "small.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["x = 3"]}, *cells]}))
    assert main([str(file)]) == 0
    saved = json.loads(file.read_text())["cells"][1:]
    assert [contents(cell["outputs"]) for cell in saved] == [
        [],
        ["a\n", "", ("text/plain", "3")],
        ["", ("text/plain", "2")],
    ]
    with pytest.raises(NameError):
        run_cells([{"cell_type": "code", "source": ["y"]}])
