"""Downloads one file over HTTP: resumes where it stopped, verifies, and only then renames.

The bytes are collected in `<target>.part`. `target` appears complete and with the right checksum, or not at all. Knows
nothing of data sets.
"""

import errno
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from codinet.errors import UserError, first_line
from codinet.files import open_regular

Progress = Callable[[int, int | None], None]  # bytes so far, and in total if known

_TIMEOUT = 30.0  # seconds without a byte, or with fewer than _SLOWEST bytes
_SLOWEST = 3000
_CHUNK = 2**18


class _CutError(Exception):
    """The connection ended early; the bytes so far are kept."""


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
    """Download `url` to `target`, whose `algorithm` checksum must be `digest`.

    A connection that breaks is resumed up to `attempts` times, `pause` seconds apart. After that the part stays, and
    the next call resumes it. A wrong checksum deletes the part.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url} is not a web address; it must begin with http:// or https://.")
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
                f"{url} gave a file whose {algorithm} is {found}, not {digest}; it was deleted, "
                "try again, and if it happens again the file at that address has changed."
            )
        os.replace(part, target)
    except OSError as error:
        raise _disk_error(error, target) from error


def checksum(path: Path, algorithm: str) -> str:
    """The file's checksum in hexadecimal."""
    with open_regular(path) as file:
        # Against damage, not attacks: md5 is what the publishers give.
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _download(url: str, part: Path, size: int | None, progress: Progress, attempts: int, pause: float) -> None:
    """Fill `part`, in as many attempts as allowed."""
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
        except _CutError as error:
            if attempt == attempts:
                raise UserError(
                    f"{url} could not be downloaded ({error}); check your network and try again, it will resume."
                ) from error
            time.sleep(pause)


def _receive(url: str, part: Path, done: int, size: int | None, progress: Progress) -> None:
    """One request: append what is missing, or write everything if the server cannot resume."""
    with _request(url, part, done) as response:
        resumed = response.status == 206 and _starts_at(response.headers.get("Content-Range"), done)
        start = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None and re.fullmatch("[0-9]{1,18}", length) else size
        if size is not None and total != size:
            raise UserError(f"{url} has {total:,} bytes, expected {size:,}; check the address or your network.")
        # Without O_NONBLOCK, opening a named pipe would wait for its reader.
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
        if error.code == 416:  # the part is longer than the file: it is not a part of this file
            part.unlink(missing_ok=True)
            raise _CutError("the server could not resume") from error
        if error.code >= 500:
            raise _CutError(f"the server answered {error.code}") from error
        raise UserError(
            f"{url} could not be downloaded (the server answered {error.code} {error.reason}); "
            "check the address, or get the file by other means."
        ) from error
    except http.client.InvalidURL as error:
        raise UserError(f"{url} is not a web address ({first_line(error)}); check it.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"no connection: {getattr(error, 'reason', error)}") from error
    except ValueError as error:  # of parts of the address, or of what the server sent in place of a header
        raise UserError(f"{url} could not be downloaded ({first_line(error)}); check the address.") from error
    if not isinstance(response, http.client.HTTPResponse):  # redirected to another protocol
        response.close()
        raise UserError(f"{url} redirects to something that is not a web address; get the file by other means.")
    return response


def _copy(response: http.client.HTTPResponse, file: BinaryIO, done: int, total: int | None, progress: Progress) -> None:
    progress(done, total)
    since, before = time.monotonic(), done
    while True:
        # Errors of reading come from the network, those of writing from the disk.
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(f"the connection broke after {done:,} bytes") from error
        if not chunk:
            break
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
        if total is not None and done > total:
            break  # not the announced file; the checksum will differ
        if time.monotonic() - since > _TIMEOUT:
            if done - before < _SLOWEST:
                raise _CutError(f"only {done - before:,} bytes in {_TIMEOUT:g} seconds")
            since, before = time.monotonic(), done
    if total is not None and done < total:
        raise _CutError(f"the connection broke after {done:,} of {total:,} bytes")


def _starts_at(content_range: str | None, place: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {place}-")


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
