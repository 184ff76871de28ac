"""Runs a notebook's code cells and saves their outputs: `python -m tools.run_notebook docs/tour.ipynb`.

It needs no Jupyter. Cells run in one process and one namespace, in order. As in Jupyter, the value of a cell's last
expression is shown: as HTML or as a PNG picture if it offers one, otherwise as text. Magics are not supported.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Output = dict[str, Any]


def run_cells(cells: list[Cell]) -> list[list[Output]]:
    """Run the code cells of a notebook.

    Args:
        cells: All cells, as in the .ipynb file.

    Returns:
        The outputs of each code cell, as in the .ipynb file. An exception in a cell is raised.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [_run("".join(cell["source"]), namespace, number) for number, cell in enumerate(code, start=1)]


def _run(source: str, namespace: dict[str, Any], number: int) -> list[Output]:
    tree, name = ast.parse(source), f"cell {number}"
    last = tree.body[-1] if tree.body else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(tree.body[:-1], []), name, "exec"), namespace)
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        else:
            exec(compile(tree, name, "exec"), namespace)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = _forms(value)
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def _forms(value: object) -> dict[str, Any]:
    """A value in the forms that it offers, by MIME type."""
    forms: dict[str, Any] = {}
    if hasattr(value, "_repr_html_"):
        forms["text/html"] = _lines(value._repr_html_())
    elif hasattr(value, "_repr_png_"):
        forms["image/png"] = base64.b64encode(value._repr_png_()).decode()
    # The text of a value with a picture is long and says less.
    forms["text/plain"] = [f"<{type(value).__name__}>"] if forms else _lines(repr(value))
    return forms


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def save(file: Path) -> None:
    """Run a notebook and replace its outputs in the file."""
    notebook = json.loads(file.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = run_cells(notebook["cells"])
    for number, (cell, shown) in enumerate(zip(code, outputs, strict=True), start=1):
        cell["outputs"], cell["execution_count"] = shown, number
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main(words: list[str] | None = None) -> int:
    """The command; `words` is the command line without the program's name."""
    parser = argparse.ArgumentParser(prog="python -m tools.run_notebook", description=__doc__)
    parser.add_argument("file", type=Path, help="the notebook, which is overwritten")
    save(parser.parse_args(words).file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
