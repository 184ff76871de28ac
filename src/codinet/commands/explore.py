"""`codinet explore`: a local web page that shows how a run routes images."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from codinet.commands.printing import note
from codinet.config import DATA_ROOT
from codinet.errors import UserError

if TYPE_CHECKING:
    from codinet.data import Dataset
    from codinet.run_reader import RunReader


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet models`)."""
    host: str = "127.0.0.1"
    """Address to serve on; with any other, other machines can connect."""
    port: int = 8000
    """Port to serve on; 0 takes any free one."""
    open: bool = False
    """Open the page in the default browser."""
    data_root: Path = DATA_ROOT
    """Folder with the data sets."""
    device: str | None = None
    """cpu, cuda or mps. Default: the best available."""


def run(args: Args) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    from codinet.environment import pick_device
    from codinet.runs import open_run

    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"The explorer needs {' and '.join(missing)}; install them with pip install fastapi uvicorn.")
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import address, listen, serve

    device = pick_device(args.device)
    folder = open_run(args.run)
    # First, so that a port in use is reported before a large data set is read.
    listener = listen(args.host, args.port)
    try:
        app = create_app(folder, _dataset(folder, args.data_root), device=device, host=args.host)
    except BaseException:
        listener.close()
        raise
    url = address(args.host, listener)
    print(f"Exploring {args.run} at {url}  (Ctrl-C ends it)", flush=True)
    serve(app, listener, open_at=url if args.open else None)


def _dataset(folder: RunReader, root: Path) -> Dataset | None:
    """The run's data set, or None and a note if it cannot be loaded; uploads can be routed without it."""
    try:
        return folder.load_dataset(root)
    except UserError as error:
        samples = folder.sample_images()
        number = "without" if samples is None else f"with only {len(samples.split)}"
        note(f"{number} test images: {error}")
        return None
