"""Imports point one way, so that each room can be read knowing only the ones above it."""

import ast
from pathlib import Path

import codinet

PACKAGE = Path(codinet.__file__).parent

ROOMS = [  # a room may import from itself and from those before it
    *("errors", "checks", "published", "records", "files", "environment", "kernels"),
    *("relaxation", "routers", "backbones", "model", "adopt", "cost", "losses"),
    *("config", "presets", "data", "evaluate", "thresholds", "runs", "zoo", "predict"),
    *(
        "engines",
        "tuning",
        "train",
        "bench",
        "analysis",
        "report",
        "flags",
        "cli",
        "sweep",
        "results",
        "explorer",
        "commands",
        "demo",
    ),
]


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _imported(file: Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "codinet":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codinet."):
            rooms.add(_room(node.module or ""))
        elif isinstance(node, ast.Import):
            rooms |= {_room(alias.name) for alias in node.names if alias.name.startswith("codinet.")}
    return rooms


def _files() -> list[tuple[str, Path]]:
    files = [(file.relative_to(PACKAGE).parts[0].removesuffix(".py"), file) for file in PACKAGE.rglob("*.py")]
    return [(room, file) for room, file in files if room not in ("__init__", "__main__")]


def test_every_room_has_its_place() -> None:
    assert {room for room, _ in _files()} == set(ROOMS)


def test_imports_point_up_the_list_only() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for room, file in _files()
        for other in sorted(_imported(file) & set(ROOMS))
        if ROOMS.index(other) > ROOMS.index(room)
    ]
    assert wrong == []


def test_analysis_does_not_know_the_network() -> None:
    assert not any("model" in _imported(file) for room, file in _files() if room == "analysis")
