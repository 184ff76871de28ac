import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from codinet.cli import main
from codinet.runs import RunFolder
from codinet.train.tensorboard_log import TensorBoard

Said = pytest.CaptureFixture[str]


class Writer:
    """Stands in for the package's writer: a line per scalar."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        self.file = (Path(folder) / f"events.out.tfevents.{len(list(Path(folder).iterdir()))}").open("w")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.file.write(f"{name} {step} {value}\n")

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def _tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = ModuleType("torch.utils.tensorboard")
    package.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)


def lines_of(run: Path) -> list[str]:
    (file,) = (run / "tensorboard").iterdir()
    return file.read_text().splitlines()


def expected(run: Path) -> list[str]:
    rows = enumerate(RunFolder.open(run).metrics(), start=1)
    return [
        f"{name} {epoch} {value}"
        for epoch, row in rows
        for name, value in row.items()
        if name not in ("stage", "epoch", "watched") and value is not None
    ]


@pytest.mark.usefixtures("_tensorboard")
def test_the_files_hold_the_metrics_and_nothing_else(
    tmp_path: Path, train_words: Callable[..., list[str]], own_run: Path
) -> None:
    out = tmp_path / "new"
    assert main(train_words(out, "--gamma", "0.1", "--tensorboard")) == 0
    assert lines_of(out) == expected(out)
    assert len(expected(out)) > 20
    assert main(train_words(out, "--gamma", "0.1", "--tensorboard", "--resume")) == 0  # a finished run
    assert lines_of(out) == expected(out)
    board = TensorBoard(own_run)  # resumed, after one epoch was lost
    rows = RunFolder.open(own_run).metrics()
    (own_run / "metrics.jsonl").write_text((own_run / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    (own_run / "tensorboard").mkdir()
    (own_run / "tensorboard" / "events.out.tfevents.old").write_text("loss 1 0\nloss 2 0\n")
    with board:
        board.begin("title", steps=8, done=4)
        board.row(rows[1])
    assert [line.split()[1] for line in lines_of(own_run) if line.startswith("loss ")] == ["1", "2"]


def test_a_missing_package_is_one_sentence(
    tmp_path: Path, train_words: Callable[..., list[str]], hide_package: Callable[[str], None], capsys: Said
) -> None:
    hide_package("tensorboard")
    assert main(train_words(tmp_path / "run", "--tensorboard")) == 2
    assert "codinet: --tensorboard requires tensorboard; install it with pip install" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
