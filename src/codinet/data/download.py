"""Downloads and verifies the known data sets.

`fetch` downloads one file over HTTP into `<target>.part`, resumes after an interruption, and renames the file only when
its checksum matches: `target` is complete or absent. `verify` and `download` work on whole data sets of `catalogue`.
"""

import errno
import hashlib
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import BinaryIO, NamedTuple

from codinet.checks import shown
from codinet.data.catalogue import DIGITS_FILE, DIGITS_SHA256, KnownDataset, KnownFile, lookup
from codinet.errors import UserError, first_line
from codinet.files import open_regular, unreadable

Progress = Callable[[int, int | None], None]  # bytes so far, and in total if known

_TIMEOUT = 30.0  # seconds without a byte, or with fewer than _MIN_BYTES
_MIN_BYTES = 3000
_CHUNK = 2**18


class Verdict(NamedTuple):
    """Whether a file is the official one, and why."""

    file: str
    ok: bool
    detail: str


def verify(name: str, root: Path) -> list[Verdict]:
    """Check the files of a known data set against the official checksums.

    Lists of class names have no published checksum; their lines are counted instead.

    Args:
        name: A name from the catalogue.
        root: The folder of known data sets.

    Returns:
        One verdict per official file.
    """
    known = lookup(name)
    if not known.layouts:
        return [_verify_digits()]
    with _read_errors(root):
        located = known.locate(root)
        if located is None:
            missing = f"missing under {root}; {known.hint}"
            return [Verdict(file.name, False, missing) for file in known.layouts[0].files]
        folder, layout = located
        return [_verify_file(folder / file.name, file) for file in layout.files]


def download(name: str, root: Path, progress: Progress = lambda done, total: None) -> Path:
    """Download a known data set and verify it. Do nothing if intact files exist.

    An existing folder with other content is renamed, not deleted.

    Args:
        name: A name from the catalogue.
        root: The folder of known data sets; the files go into a folder inside it.
        progress: Called with the bytes so far and in total.

    Returns:
        The folder with the files.
    """
    known = lookup(name)
    if not known.archives:
        return Path(str(resources.files(__package__)))
    with _read_errors(root):
        located = known.locate(root)
    if located is not None and all(verdict.ok for verdict in verify(name, root)):
        return located[0]
    folder = root / known.layouts[0].folder
    for archive in known.archives:
        packed = archive.name.endswith(".tar.gz")
        target = (root if packed else folder) / archive.name
        fetch(archive.address, target, digest=archive.sha256, algorithm="sha256", size=archive.size, progress=progress)
        if packed:
            _unpack(target, folder, known)
    return folder


@contextmanager
def _read_errors(root: Path) -> Iterator[None]:
    if not isinstance(root, Path):
        raise UserError(f"The folder of known data sets must be a pathlib.Path, got {shown(root)}.")
    try:
        yield
    except OSError as error:
        raise unreadable(error.filename or root, error) from error


class _InterruptedError(Exception):
    """The connection ended early; the received bytes are kept."""


def fetch(
    url: str,
    target: Path,
    *,
    digest: str,
    algorithm: str,
    size: int | None,
    progress: Progress,
    attempts: int = 4,
    pause: float = 1.0,
) -> None:
    """Download one file; do nothing if `target` exists with the right checksum.

    After the last attempt the partial file is kept, and the next call resumes it. A wrong checksum deletes it.

    Args:
        url: An http or https address.
        target: The file to create.
        digest: The expected checksum in hexadecimal.
        algorithm: The name of the checksum in `hashlib`.
        size: The expected bytes, if known.
        progress: Called with the bytes so far and in total.
        attempts: How often a broken connection is resumed.
        pause: Seconds between attempts.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url} is not a web address; it must start with http:// or https://.")
    part = target.with_name(target.name + ".part")
    try:
        if target.is_file() and checksum(target, algorithm) == digest:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, size, progress, attempts, pause)
        found = checksum(part, algorithm)
        if found != digest:
            part.unlink()
            raise UserError(
                f"{url} returned a file with {algorithm} {found}, expected {digest}; the file was deleted, "
                "try again (if it fails again, the published file has changed)."
            )
        os.replace(part, target)
    except OSError as error:
        raise _disk_error(error, target) from error


def checksum(path: Path, algorithm: str) -> str:
    """Return the checksum of a file in hexadecimal."""
    with open_regular(path) as file:
        # It detects damage, not attacks: most publishers give md5 only.
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _download(url: str, part: Path, size: int | None, progress: Progress, attempts: int, pause: float) -> None:
    """Complete `part` in at most `attempts` requests."""
    for attempt in range(1, attempts + 1):
        done = part.stat().st_size if part.exists() else 0
        if size is not None and done > size:
            part.unlink()
            done = 0
        if size is not None and done == size:
            progress(done, size)
            return
        _require_disk(part, size, done)
        try:
            _receive(url, part, done, size, progress)
            return
        except _InterruptedError as error:
            if attempt == attempts:
                raise UserError(
                    f"{url} could not be downloaded ({error}); check your network and try again, it will resume."
                ) from error
            time.sleep(pause)


def _receive(url: str, part: Path, done: int, size: int | None, progress: Progress) -> None:
    """Send one request: append the missing bytes, or start again if the server cannot resume."""
    with _request(url, part, done) as response:
        resumed = response.status == 206 and _starts_at(response.headers.get("Content-Range"), done)
        start = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None and re.fullmatch("[0-9]{1,18}", length) else size
        if size is not None and total != size:
            raise UserError(f"{url} has {total:,} bytes, expected {size:,}; check the address or your network.")
        # Without O_NONBLOCK, opening a named pipe would block.
        opener = lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # noqa: E731
        with open(part, "ab" if resumed else "wb", opener=opener) as file:
            _copy(response, file, start, total, progress)


def _request(url: str, part: Path, done: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "codinet", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the partial file is longer than the file, so it belongs to another one
            part.unlink(missing_ok=True)
            raise _InterruptedError("the server could not resume") from error
        if error.code >= 500:
            raise _InterruptedError(f"the server answered {error.code}") from error
        raise UserError(
            f"{url} could not be downloaded (the server answered {error.code} {error.reason}); "
            "check the address, or get the file by other means."
        ) from error
    except http.client.InvalidURL as error:
        raise UserError(f"{url} is not a web address ({first_line(error)}); check it.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"no connection: {getattr(error, 'reason', error)}") from error
    except ValueError as error:  # from the address, or from an invalid header
        raise UserError(f"{url} could not be downloaded ({first_line(error)}); check the address.") from error
    if not isinstance(response, http.client.HTTPResponse):  # redirected to another protocol
        response.close()
        raise UserError(f"{url} redirects to something that is not a web address; get the file by other means.")
    return response


def _copy(response: http.client.HTTPResponse, file: BinaryIO, done: int, total: int | None, progress: Progress) -> None:
    progress(done, total)
    since, before = time.monotonic(), done
    while True:
        # Read errors come from the network, write errors from the disk.
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedError(f"the connection broke after {done:,} bytes") from error
        if not chunk:
            break
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
        if total is not None and done > total:
            break  # not the announced file; the checksum will differ
        if time.monotonic() - since > _TIMEOUT:
            if done - before < _MIN_BYTES:
                raise _InterruptedError(f"only {done - before:,} bytes in {_TIMEOUT:g} seconds")
            since, before = time.monotonic(), done
    if total is not None and done < total:
        raise _InterruptedError(f"the connection broke after {done:,} of {total:,} bytes")


def _starts_at(content_range: str | None, offset: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {offset}-")


def _require_disk(part: Path, size: int | None, done: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if size is not None and size - done > free:
        raise UserError(
            f"{part.parent} has {free:,} bytes free and the download needs {size - done:,} more; "
            "free some space or choose another folder."
        )


def _disk_error(error: OSError, target: Path) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"the disk is full while downloading {target.name}; free some space and try again.")
    return UserError(f"{target} cannot be written ({error.strerror or error}); choose another folder.")


def _unpack(archive: Path, folder: Path, known: KnownDataset) -> None:
    """Unpack into a temporary folder, verify the files, then rename it to `folder`."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            unpacked = Path(scratch) / folder.name
            for file in known.layouts[0].files:
                verdict = _verify_file(unpacked / file.name, file)
                if not verdict.ok:
                    raise UserError(
                        f"{archive} contains a bad {file.name} ({verdict.detail}); delete it and {known.hint}."
                    )
            _rename_existing(folder)
            os.replace(unpacked, folder)
        archive.unlink()
    except (tarfile.TarError, KeyError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{archive} cannot be unpacked ({first_line(error)}); delete it and {known.hint}.") from error
    except OSError as error:
        raise UserError(
            f"{archive} cannot be unpacked ({error.strerror or error}); free some space or choose another folder."
        ) from error


def _rename_existing(folder: Path) -> None:
    if not folder.exists():
        return
    number = 1
    while (backup := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    shutil.move(folder, backup)


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


def _verify_digits() -> Verdict:
    with resources.as_file(resources.files(__package__).joinpath(DIGITS_FILE)) as path:
        ok = checksum(path, "sha256") == DIGITS_SHA256
    return Verdict(
        DIGITS_FILE, ok, "included in codinet" if ok else "differs from the published file; reinstall codinet"
    )
