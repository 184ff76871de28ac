"""What `make docs` adds to the pages in docs/, as hooks of MkDocs (`mkdocs.yml`). No file is written outside the site.

README.md is the first page, CHANGELOG.md and CONTRIBUTING.md become pages, the notebook becomes a page with its saved
outputs, and the reference has one page per package. Links are written for the repository; here they are changed to lead
to the pages of the site.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site under another name.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/tour.ipynb": "tour.md",
}
# The packages of the reference: the name of the page, and what it documents. A package stands for the names in its
# __all__; of other modules the names are given.
REFERENCE: dict[str, dict[str, tuple[str, ...]]] = {
    "codinet": {"codinet": (), "codinet.model": ("RoutedNetwork",)},
    "runs": {
        "codinet.runs": ("open_run", "RunFolder"),
        "codinet.run_reader": ("RunReader",),
        "codinet.evaluate": ("Evaluation", "evaluate"),
    },
    "predictor": {"codinet.predictor": ("Predictor", "Prediction", "image_files")},
    "engines": {"codinet.engines": ()},
    "onnx": {"codinet.engines.onnx": ()},
    "train": {"codinet.train": ()},
    "config": {
        "codinet.config": (
            "RunConfig",
            "DataConfig",
            "NetworkConfig",
            "ModelConfig",
            "LossConfig",
            "ScheduleConfig",
            "ExtraConfig",
        ),
        "codinet.presets": ("paper", "best", "quick", "demo", "small", "as_static", "as_vanilla"),
    },
    "data": {"codinet.data": ()},
    "bench": {"codinet.bench": ()},
    "analysis": {"codinet.analysis": ()},
    "sweep": {"codinet.sweep": ()},
}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages, and the files outside docs/ that pages link to."""
    from mkdocs.structure.files import File

    notebook = files.get_file_from_path("tour.ipynb")
    if notebook is not None:
        files.remove(notebook)
    for name, page in PAGES.items():
        file = ROOT / name
        text = notebook_page(json.loads(file.read_text())) if file.suffix == ".ipynb" else file.read_text()
        files.append(File.generated(config, page, content=text))
    for name, modules in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=reference_page(modules)))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Change the links of a page."""
    repository = {site: name for name, site in PAGES.items()}
    return site_links(markdown, repository.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def site_links(markdown: str, document: str) -> str:
    """Change the links of a document from files of the repository to pages of the site.

    Args:
        markdown: The text.
        document: Its path in the repository.

    Returns:
        The text. Links to what is not a file of the repository are left as they are, for MkDocs to check.
    """
    folder = posixpath.dirname(document)
    here = posixpath.dirname(PAGES.get(document, document.removeprefix("docs/")))

    def changed(found: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, found[1]))
        if not (ROOT / name).is_file():
            return found[0]
        return f"]({posixpath.relpath(PAGES.get(name, name.removeprefix('docs/')), here or '.')}{found[2] or ''})"

    return re.sub(r"\]\(([^()#:\s]+)(#[^()\s]*)?\)", changed, markdown)


def reference_page(modules: dict[str, tuple[str, ...]]) -> str:
    """The Markdown of a page of the reference, for mkdocstrings.

    Args:
        modules: Modules, each with the names to document; without names, those in its `__all__`.
    """
    parts = []
    for number, (module, names) in enumerate(modules.items()):
        about = {"show_root_heading": False, "show_root_toc_entry": False, "members": False, "heading_level": 1}
        parts.append(f"{'#' if number == 0 else '##'} {module}\n\n::: {module}\n    options: {json.dumps(about)}")
        options = json.dumps({"heading_level": 2 if number == 0 else 3})
        parts += [f"::: {found}\n    options: {options}" for found in _places(module, names)]
    return "\n\n".join(parts) + "\n"


def _places(module: str, names: tuple[str, ...]) -> list[str]:
    """The full names of what a module makes public. Where a name is also that of a module in it, the inner one."""
    folder = ROOT / "src" / Path(*module.split("."))
    if not names:
        tree = ast.parse((folder / "__init__.py").read_text())
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        (names,) = (ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return [f"{module}.{name}.{name}" if (folder / f"{name}.py").exists() else f"{module}.{name}" for name in names]


def notebook_page(notebook: dict[str, Any]) -> str:
    """The Markdown of a notebook with its saved outputs.

    Args:
        notebook: The content of the .ipynb file.
    """
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """An output as Markdown: the richest form that it has."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    if "image/png" in data:
        return f'<img alt="output" src="data:image/png;base64,{"".join("".join(data["image/png"]).split())}">'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
