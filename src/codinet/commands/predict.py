"""`codinet predict`: class, confidence and path of image files."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from codinet.commands.printing import counted, note, print_json, print_table
from codinet.errors import UserError
from codinet.flags import require_probability

if TYPE_CHECKING:
    from codinet.predictor import Prediction

    Answers = list[tuple[Path, Prediction | UserError]]

_COLUMNS = ("file", "label", "confidence", "blocks_run", "cost_share", "path", "error")


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet models`)."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files of any size and common format, or folders of them."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this; lower runs more."""
    batch: int = 64
    """Images that the network computes at a time."""
    out: Path | None = None
    """Write a table to this file, .csv or .parquet (which needs pyarrow), instead of printing it."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Answer for every file that is an image; name the files that are not, and end with an error."""
    from codinet.environment import pick_device
    from codinet.predictor import Predictor, image_files
    from codinet.runs import open_run

    if not args.images:
        raise UserError("There is nothing to predict; give one image file or more.")
    require_probability("threshold", args.threshold)
    if args.batch < 1:
        raise UserError(f"--batch must be 1 or more, got {args.batch}.")
    if args.out is not None:
        _require_out(args.out)
    files = image_files(args.images)
    batch = min(args.batch, len(files))
    predictor = Predictor(open_run(args.run), pick_device(args.device), batch=batch, warn=note)
    answers: Answers = []
    with _progress_bar(len(files)) as advance:
        for answer in predictor.predict_files(files, threshold=args.threshold):
            answers.append(answer)
            advance()
    _print(args, answers)
    refused = [str(answer) for _, answer in answers if isinstance(answer, UserError)]
    if refused:
        raise UserError(f"{len(refused)} of {len(files)} files refused: {' '.join(refused)}")


def _print(args: Args, answers: Answers) -> None:
    """Write the table to --out and print the answers."""
    from codinet import files

    predictions = [(file, answer) for file, answer in answers if not isinstance(answer, UserError)]
    refused = [(file, answer) for file, answer in answers if isinstance(answer, UserError)]
    if args.out is not None:
        files.write(args.out, (_csv if args.out.suffix.lower() == ".csv" else _parquet)(_records(answers)))
    if args.json:
        print_json(
            {
                "threshold": args.threshold,
                "predictions": [{"file": str(file), **prediction.summary()} for file, prediction in predictions],
                "refused": [{"file": str(file), "why": str(why)} for file, why in refused],
            }
        )
    elif args.out is not None:
        print(f"Wrote {counted(len(answers), 'row')} to {args.out}")
    elif predictions:
        print_table("", ["file", "class", "confidence", "blocks run", "share of cost", "path"], _rows(predictions))


def _rows(predictions: list[tuple[Path, Prediction]]) -> list[list[str]]:
    return [
        [
            str(file),
            prediction.label,
            f"{prediction.confidence:.3f}",
            f"{prediction.blocks_run} of {len(prediction.path)}",
            f"{prediction.cost_share:.3f}",
            "".join("█" if ran else "·" for ran in prediction.path),
        ]
        for file, prediction in predictions
    ]


@contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, shown in a terminal only and removed at the end. Yields a function that advances it by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("images", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


# --out


def _require_out(out: Path) -> None:
    """`UserError` if the table cannot be written, before anything is predicted."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"--out must end in .csv or .parquet, got {out}.")
    if out.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise UserError(
                "A .parquet file needs pyarrow; install it with pip install pyarrow, or choose a .csv file."
            ) from error
    if out.is_dir():
        raise UserError(f"--out must be a file, got the folder {out}.")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(
            f"Cannot write to the folder {out.parent}: {error.strerror or error}; choose another --out."
        ) from error


def _records(answers: Answers) -> list[list[Any]]:
    """The rows of the table, in the order of `_COLUMNS`. Text that is not Unicode is escaped."""
    records: list[list[Any]] = []
    for file, answer in answers:
        row: list[Any]
        if isinstance(answer, UserError):
            row = [str(file), None, None, None, None, None, str(answer)]
        else:
            path = "".join(map(str, answer.path))
            row = [str(file), answer.label, answer.confidence, answer.blocks_run, answer.cost_share, path, None]
        records.append(
            [cell.encode(errors="backslashreplace").decode() if isinstance(cell, str) else cell for cell in row]
        )
    return records


def _csv(records: list[list[Any]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows([_COLUMNS, *(["" if cell is None else cell for cell in record] for record in records)])
    return stream.getvalue().encode()


def _parquet(records: list[list[Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    text, number = pyarrow.string(), pyarrow.float64()
    types = dict(zip(_COLUMNS, (text, text, number, pyarrow.int32(), number, text, text), strict=True))
    columns = zip(*records, strict=True)
    table = pyarrow.table(
        {name: pyarrow.array(column, types[name]) for name, column in zip(_COLUMNS, columns, strict=True)}
    )
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()
