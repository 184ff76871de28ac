"""Three small runs with analyses: two routed ones that differ in m_d, and a static one."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from codinet.analysis import Request, analyse_run
from codinet.cli import main
from codinet.report.run_data import Run, read_run
from codinet.runs import RunFolder


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory, train_words: Callable[..., list[str]]) -> list[Path]:
    root = tmp_path_factory.mktemp("reported")
    kinds = {
        "near <1>": ["--m-d", "0.25"],
        "far": ["--m-d", "1"],
        "static": ["--no-routed"],
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name, words in kinds.items():
            assert main(train_words(root / name, *words)) == 0
    return [root / name for name in kinds]


@pytest.fixture(scope="session")
def runs(run_folders: list[Path]) -> list[Run]:
    request = Request(Path(), torch.device("cpu"))
    folders = [RunFolder.open(path) for path in run_folders]
    slugs = ("near-1", "far", "static")
    return [
        read_run(folder, analyse_run(folder, request), folder.path.name, slug)
        for folder, slug in zip(folders, slugs, strict=True)
    ]
