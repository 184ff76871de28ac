"""Downloads and verifies the data sets that codinet knows by name.

The facts are in `official`, `download` does the transfer, and the sources read the files into tensors.
"""

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from codinet.checks import shown
from codinet.data import digits
from codinet.data.download import Progress, checksum, fetch
from codinet.data.known import Archive, Known, KnownFile
from codinet.data.official import KNOWN, lookup
from codinet.errors import UserError, first_line
from codinet.files import unreadable


class Verdict(NamedTuple):
    """Whether a file is the official one, and why not."""

    file: str
    ok: bool
    detail: str


def list_known() -> list[Known]:
    """The data sets that have a name."""
    return list(KNOWN.values())


def verify(name: str, root: Path) -> list[Verdict]:
    """A verdict on each official file under `root`: by its checksum, or its lines if no checksum is published."""
    known = lookup(name)
    if not known.layouts:
        return [_verify_embedded()]
    with _readable(root):
        located = known.locate(root)
        if located is None:
            missing = f"missing under {root}; {known.way_out}"
            return [Verdict(file.name, False, missing) for file in known.layouts[0].files]
        folder, layout = located
        return [_verify_file(folder / file.name, file) for file in layout.files]


def download(name: str, root: Path, progress: Progress = lambda done, total: None) -> Path:
    """Download the data set into a folder under `root`, verify it, and return that folder.

    Does nothing if it exists already. A folder of that name with other contents is renamed, not deleted.
    """
    known = lookup(name)
    if not known.archives:
        return Path(str(resources.files(digits.__package__)))
    with _readable(root):
        located = known.locate(root)
    if located is not None and all(verdict.ok for verdict in verify(name, root)):
        return located[0]
    folder = root / known.layouts[0].folder
    for archive in known.archives:
        packed = archive.name.endswith(".tar.gz")
        target = (root if packed else folder) / archive.name
        _fetch(archive, target, progress)
        if packed:
            _unpack(target, folder, known)
    return folder


@contextmanager
def _readable(root: Path) -> Iterator[None]:
    if not isinstance(root, Path):
        raise UserError(f"the folder of known data sets is a pathlib.Path, not {shown(root)}.")
    try:
        yield
    except OSError as error:
        raise unreadable(error.filename or root, error) from error


def _fetch(archive: Archive, target: Path, progress: Progress) -> None:
    fetch(
        archive.address,
        target,
        digest=archive.sha256,
        algorithm="sha256",
        size=archive.size,
        progress=progress,
    )


def _unpack(archive: Path, folder: Path, known: Known) -> None:
    """Unpack next to `folder`, verify, and only then rename to `folder`."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            unpacked = Path(scratch) / folder.name
            for file in known.layouts[0].files:
                verdict = _verify_file(unpacked / file.name, file)
                if not verdict.ok:
                    raise UserError(
                        f"{archive} holds a bad {file.name} ({verdict.detail}); delete it and {known.way_out}."
                    )
            _rename_existing(folder)
            os.replace(unpacked, folder)
        archive.unlink()
    except (tarfile.TarError, KeyError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{archive} cannot be unpacked ({first_line(error)}); delete it and {known.way_out}."
        ) from error
    except OSError as error:
        raise UserError(
            f"{archive} cannot be unpacked ({error.strerror or error}); free some space or choose another folder."
        ) from error


def _rename_existing(folder: Path) -> None:
    if not folder.exists():
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    shutil.move(folder, aside)


def _verify_file(path: Path, file: KnownFile) -> Verdict:
    if not path.is_file():
        return Verdict(file.name, False, "missing")
    if file.lines is not None:
        lines = sum(1 for line in path.read_bytes().splitlines() if line.strip())
        return Verdict(file.name, lines == file.lines, f"{lines} of {file.lines} class names")
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        word = "truncated" if size < file.size else "too long"
        return Verdict(file.name, False, f"{word}: {size:,} bytes, expected {file.size:,}")
    found = checksum(path, "md5")
    if found != file.md5:
        return Verdict(file.name, False, f"md5 {found} is not the official {file.md5}: changed or reordered")
    return Verdict(file.name, True, "md5 matches the official file")


def _verify_embedded() -> Verdict:
    with resources.as_file(resources.files(digits.__package__).joinpath(digits.FILE)) as path:
        ok = checksum(path, "sha256") == digits.SHA256
    detail = "comes with codinet" if ok else "differs from what codinet was published with; install it again"
    return Verdict(digits.FILE, ok, detail)
