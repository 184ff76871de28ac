"""Metrics for TensorBoard: the numbers of metrics.jsonl as scalars in RUN/tensorboard.

The files always hold the rows of metrics.jsonl, no more: when a training starts or resumes, they are written again from
the rows that are kept. So the epochs that a resumed run repeats are not there twice.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

from codinet.errors import UserError
from codinet.runs import RunFolder
from codinet.train.reporting import Reporter

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"


def require_tensorboard() -> None:
    """Raise a `UserError` if the package is missing."""
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError("--tensorboard requires tensorboard; install it with pip install tensorboard.") from error


class TensorBoard(Reporter):
    """Writes every epoch of a run.

    Args:
        run: The run folder; it may not exist yet.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.writer: Any = None
        self.epochs = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is None and kind is None:  # the run was finished before
            self._write_again()
        if self.writer is not None:
            self.writer.close()

    def begin(self, title: str, *, steps: int, done: int, evaluation: float = 0.0) -> None:
        self._write_again()

    def row(self, row: dict[str, Any]) -> None:
        self._add(row)
        self.writer.flush()

    def _write_again(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        rows = RunFolder.open(self.run).metrics()
        folder = self.run / FOLDER
        try:
            for file in folder.glob(_FILES):
                file.unlink()
            self.writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}; omit --tensorboard.") from error
        for row in rows:
            self._add(row)
        self.writer.flush()

    def _add(self, row: dict[str, Any]) -> None:
        self.epochs += 1
        for name, value in row.items():
            if name != "epoch" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, self.epochs)
