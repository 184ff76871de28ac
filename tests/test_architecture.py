"""Imports point one way, so that each package can be read knowing only the ones before it."""

import ast
from collections import Counter
from pathlib import Path

import codinet

PACKAGE = Path(codinet.__file__).parent

ORDER = [  # packages and root modules; each may import itself and those before it
    *("errors", "checks", "published", "notebook", "records", "files", "environment", "cuda_graphs"),
    *("kernels", "cuda_switch"),
    *("relaxation", "routers", "backbones", "losses", "specs", "methods"),
    *(
        "config",
        "resolving",
        "hub",
        "model",
        "adopt",
        "networks",
        "cost",
        "presets",
        "data",
        "evaluate",
        "thresholds",
        "run_reader",
        "zoo",
        "runs",
        "saving",
        "create",
    ),
    *("engines", "predictor", "train"),
    *("analysis", "report", "bench", "flags", "cli", "sweep", "explorer", "commands", "demo"),
]
# Module names that still occur in two packages. Nothing may be added here.
REPEATED: set[str] = set()


def _top(module: str) -> str:
    """`data` for `codinet.data.images`."""
    return module.split(".")[1] if "." in module else ""


def _imported(file: Path) -> set[str]:
    """The packages and root modules of codinet that a file imports, except for annotations only."""
    found: set[str] = set()
    tree = ast.parse(file.read_text())
    annotations = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in set(ast.walk(tree)) - annotations:
        if isinstance(node, ast.ImportFrom) and node.module == "codinet":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codinet."):
            found.add(_top(node.module or ""))
        elif isinstance(node, ast.Import):
            found |= {_top(alias.name) for alias in node.names if alias.name.startswith("codinet.")}
    return found


def _files() -> list[tuple[str, Path]]:
    files = [(file.relative_to(PACKAGE).parts[0].removesuffix(".py"), file) for file in PACKAGE.rglob("*.py")]
    return [(name, file) for name, file in files if name not in ("__init__", "__main__")]


def test_every_package_is_in_the_list() -> None:
    assert {name for name, _ in _files()} == set(ORDER)


def test_imports_point_up_the_list_only() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for name, file in _files()
        for other in sorted(_imported(file) & set(ORDER))
        if ORDER.index(other) > ORDER.index(name)
    ]
    assert wrong == []


def test_analysis_does_not_import_the_network() -> None:
    assert not any("model" in _imported(file) for name, file in _files() if name == "analysis")


def test_the_package_does_not_import_the_tools() -> None:
    """`tools/` is not part of the wheel."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] in ("tools", "tests") for module in modules), file


def test_module_names_are_unique() -> None:
    counts = Counter(file.name for file in PACKAGE.rglob("*.py") if not file.name.startswith("__"))
    assert {name for name, count in counts.items() if count > 1} == REPEATED
