"""The Dockerfile copies files that exist and that .dockerignore lets through, and installs extras that exist."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
LINES = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


def copied() -> list[str]:
    return [source for line in instructions("COPY") for source in shlex.split(line)[:-1]]


def ignored(name: str) -> bool:
    """Whether .dockerignore leaves a file out; its last line that matches decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if line and not line.startswith("#") and fnmatch(name, pattern):
            result = not line.startswith("!")
    return result


def test_every_file_that_is_copied_exists_and_is_not_ignored() -> None:
    assert [source for source in copied() if not (ROOT / source).exists() or ignored(source)] == []
    assert all(map(ignored, (".git", ".venv", "runs", "results", "docs")))


def test_what_the_package_is_built_from_is_copied() -> None:
    needed = {"pyproject.toml", "constraints.txt", "src", PROJECT["readme"], *PROJECT["license-files"]}
    assert needed == set(copied())


def test_it_installs_extras_that_exist_on_a_python_that_fits() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", " ".join(instructions("RUN")))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    (version,) = re.findall(r"^python:([\d.]+)-slim$", instructions("FROM")[0])
    assert version in SpecifierSet(PROJECT["requires-python"])


def test_it_runs_the_demo_as_the_makefile_does_and_not_as_root() -> None:
    (command,) = instructions("CMD")
    words = re.findall(r'"([^"]+)"', command)
    assert words[0] == "python"
    assert f"$(BIN)/{' '.join(words)}" in (ROOT / "Makefile").read_text()
    assert LINES.index(f"USER {instructions('USER')[0]}") == len(LINES) - 2
    assert f"RUN useradd --create-home {instructions('USER')[0]}" in LINES
