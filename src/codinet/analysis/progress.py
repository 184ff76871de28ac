"""Progress of long analyses on stderr: bars where there is a terminal, one line a step elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from codinet.analysis.forward import Watch

Named = Callable[[str], Watch]
Note = Callable[[str], None]


@contextmanager
def bars() -> Iterator[tuple[Named, Note]]:
    """(a watch for each name, what prints a sentence); bars go when the block ends."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def named(name: str) -> Watch:
            def watch(title: str, total: int | None) -> Callable[[int], None]:
                if not console.is_terminal:
                    console.print(f"{name}: {title}")
                task = progress.add_task(f"{name}: {title}", total=total)

                def advance(steps: int) -> None:
                    progress.advance(task, steps)
                    if total is None:  # its length was not known until it ended
                        progress.update(task, total=1, completed=1)

                return advance

            return watch

        yield named, console.print
