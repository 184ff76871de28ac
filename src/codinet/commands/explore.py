"""`codinet explore`: a local page on which to see how a run routes images."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import tyro

from codinet.commands.shared import note
from codinet.data import DATA_ROOT, Dataset
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.runs import RunFolder
from codinet.zoo.open_run import open_run


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet zoo`)."""
    host: str = "127.0.0.1"
    """Address to serve on; any but this one lets other machines in."""
    port: int = 8000
    """Port to serve on; 0 takes any free one."""
    open: bool = False
    """Open the page in the default browser."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""


def run(args: Args) -> None:
    """Serve until Ctrl-C."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"The explorer needs {' and '.join(missing)}; install with pip install 'codinet[explore]'.")
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import address, listen, serve

    device = pick_device(args.device)
    folder = open_run(args.run)
    # Taken first, so that a port in use is said before a large data set is read.
    listener = listen(args.host, args.port)
    try:
        app = create_app(folder, _dataset(folder, args.data_root), device=device, host=args.host)
    except UserError:
        listener.close()
        raise
    url = address(args.host, listener)
    print(f"Exploring {args.run} at {url}  (Ctrl-C ends it)", flush=True)
    serve(app, listener, open_at=url if args.open else None)


def _dataset(folder: RunFolder, root: Path) -> Dataset | None:
    """The run's data set, or None with a word about it: uploads can be routed without."""
    try:
        return folder.load_dataset(root)
    except UserError as error:
        note(f"without test images: {error}")
        return None
