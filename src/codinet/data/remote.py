"""Files of a folder, or of a bucket in an object store (s3://, gs://, az://, https://), by name.

Transfers are made by obstore, an optional package. Every request has a time limit, and temporary failures are repeated.
Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …) or, for s3://, from wherever boto3 finds
them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from codinet import files
from codinet.errors import UserError, first_line

_URL = re.compile(r"(s3|s3a|gs|az|abfs|abfss|http|https)://.+", re.IGNORECASE)
_TIMEOUT = "60s"  # for a request without an answer
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(minutes=2)}


def is_url(place: str) -> bool:
    """Return whether a place is the address of a bucket."""
    return _URL.fullmatch(place) is not None


class Bucket:
    """A place that holds files: a folder, or a prefix of an object store.

    Args:
        place: A path or an address.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self.folder = None if is_url(place) else Path(place)
        self._store: Any = None if self.folder is not None else _open_store(self.place)

    def name(self, file: str) -> str:
        """The whole path or address of a file."""
        return f"{self.place}/{file}"

    def read(self, file: str, *, missing: str) -> bytes:
        """Return the content of a file.

        Args:
            file: Its name, with / between folders.
            missing: What the user can do if it does not exist.
        """
        if self.folder is not None:
            try:
                return files.read(self.folder / file)
            except FileNotFoundError as error:
                raise UserError(f"{self.name(file)} does not exist; {missing}.") from error
            except OSError as error:
                raise files.unreadable(self.name(file), error) from error
        import obstore

        with self._errors(file, missing):
            return bytes(obstore.get(self._store, file).bytes())

    def write(self, file: str, content: bytes) -> None:
        """Write a file at once: it is complete or absent."""
        if self.folder is not None:
            with suppress(OSError):  # an error is reported by the next line
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            files.write(self.folder / file, content)
            return
        import obstore

        with self._errors(file, "check the address"):
            obstore.put(self._store, file, content)

    def names(self) -> list[str]:
        """Return the names of all files."""
        if self.folder is not None:
            found = self.folder.rglob("*") if self.folder.exists() else iter(())
            return sorted(path.relative_to(self.folder).as_posix() for path in found if not path.is_dir())
        import obstore

        with self._errors("", "check the address"):
            return sorted(each["path"] for group in obstore.list(self._store) for each in group)

    @contextmanager
    def _errors(self, file: str, missing: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        name = self.name(file).rstrip("/")
        try:
            yield
        except (NotFoundError, FileNotFoundError) as error:
            raise UserError(f"{name} does not exist; {missing}.") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise UserError(f"{name} must not be accessed with these credentials ({_why(error)}).") from error
        except (BaseError, OSError) as error:
            raise UserError(f"{name} cannot be reached ({_why(error)}); check the address and the network.") from error


def _why(error: BaseException) -> str:
    """The first line of an error, without the address of the request, which is long."""
    return re.sub(r"Error performing \w+ \S+ ", "", first_line(error))[:200]


def _open_store(place: str) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise UserError(f"{place} requires obstore; install it with pip install 'codinet[shards]'.") from error
    options: dict[str, Any] = {}
    if place.lower().startswith("s3") and "AWS_ACCESS_KEY_ID" not in os.environ:
        with suppress(ImportError):
            from obstore.auth.boto3 import Boto3CredentialProvider

            with suppress(Exception):  # boto3 finds no credentials; the bucket may be public
                options["credential_provider"] = Boto3CredentialProvider()
    client: Any = {"timeout": _TIMEOUT, "connect_timeout": "10s", "allow_http": True}
    try:
        return from_url(place, client_options=client, retry_config=_RETRIES, **options)
    except Exception as error:  # a malformed address
        raise UserError(f"{place} is not a valid address ({first_line(error)[:200]}).") from error
