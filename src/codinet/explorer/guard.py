"""Protects the machine from requests: which ones are answered, and how much each may cost.

`Limits` holds all limits. `Guard` refuses requests from other web pages and sets the security headers. `Uploads`
receives uploads, `Workers` runs computations in threads, and `add_error_handlers` turns every error into one JSON
message that contains no paths of the server. The limits on connections are in `serve.py`.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar
from urllib.parse import SplitResult, urlsplit

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codinet.data import read_image
from codinet.data.threads import Calls, run_calls
from codinet.errors import UserError

_P = ParamSpec("_P")
_T = TypeVar("_T")

# A form on another page cannot send this type without a CORS preflight, which we do not answer.
CONTENT_TYPE = "application/octet-stream"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """All limits on memory, time and counts. Sizes are in bytes, times in seconds."""

    # one upload
    upload_bytes: int = 10_000_000
    upload_pixels: int = 25_000_000  # enough for a common camera with 6000×4000 pixels
    upload_seconds: float = 30.0  # to receive all of it
    upload_rate: int = 64_000  # bytes per second; an upload that falls `upload_grace` seconds behind this is refused
    upload_grace: float = 5.0
    # all uploads
    upload_memory: int = 50_000_000  # for uploads until they are decoded; at least `upload_bytes`
    upload_start: int = 64_000  # the start of each upload, which is not counted in `upload_memory`
    upload_lag: float = 1.0  # an upload that falls this many seconds behind is refused if others wait for memory
    # computing
    workers: int = 2  # threads that run the network; one more decodes images, one at a time to limit memory
    waiting: int = 256  # requests that may wait for a thread; more are refused
    answer_seconds: float = 60.0  # longest wait for a thread or for memory
    # connections
    connections: int = 256
    idle_seconds: float = 10.0  # to send a header, from the start or the last answer; also to read an answer
    request_seconds: float = 300.0  # from the end of the header to the end of the answer


class RefusedError(Exception):
    """A request that is refused with a status and a message; `close` also closes the connection."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"Connection": "close"} if close else None


class BusyError(Exception):
    """The explorer has no capacity for a request at the moment."""


def busy_response(headers: dict[str, str] | None = None) -> JSONResponse:
    """The response when there is no capacity."""
    message = "The explorer is busy; try again in a moment."
    return _error_response(503, message, {"Retry-After": "2", **(headers or {})})


def add_error_handlers(app: FastAPI) -> None:
    """Sets the responses to refused requests, invalid parameters, overload and bugs."""

    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: RefusedError) -> JSONResponse:
        return _error_response(error.status, error.message, error.headers)

    @app.exception_handler(BusyError)
    async def overloaded(_request: Request, _error: BusyError) -> JSONResponse:
        return busy_response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        # The message names the parameter and its rule, but does not repeat the value.
        rules = {str(entry["loc"][-1]): str(entry["msg"]) for entry in error.errors()}
        return _error_response(
            422, " ".join(f"Invalid {name}: {rule[:1].lower()}{rule[1:]}." for name, rule in rules.items())
        )

    @app.exception_handler(HTTPException)
    async def unknown(_request: Request, error: HTTPException) -> JSONResponse:
        messages = {404: "Not found.", 405: "Method not allowed."}
        return _error_response(error.status_code, messages.get(error.status_code, "The request was refused."))

    @app.exception_handler(Exception)
    async def bug(_request: Request, _error: Exception) -> JSONResponse:
        # This response does not pass through `Guard`, which adds the headers to all others.
        return _error_response(500, "Internal error; see the terminal that runs the explorer.", dict(HEADERS))


def _error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status, headers=headers)


# Which requests are answered


@dataclass(frozen=True)
class Hosts:
    """The host names that requests may use."""

    names: frozenset[str]
    any_address: bool = False  # allow every numeric address, which DNS rebinding cannot use

    @classmethod
    def of(cls, host: str) -> "Hosts":
        """The host that the server listens on, and the local names of this machine."""
        if host in ("0.0.0.0", "::"):
            return cls(frozenset((*_LOCAL, socket.gethostname().lower())), any_address=True)
        return cls(frozenset((*_LOCAL, host.lower())))

    def allow(self, header: str | None) -> bool:
        """Whether a Host header (a name and an optional port) names this server."""
        parts = _split(f"//{header or ''}")
        name = (parts.hostname if parts else None) or ""
        return name in self.names or (self.any_address and _numeric(name))


def _split(address: str) -> SplitResult | None:
    try:
        return urlsplit(address)
    except ValueError:
        return None


def _numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refusal(method: str, path: str, headers: Headers, hosts: Hosts) -> str | None:
    """The reason to refuse a request, or None to answer it.

    Any web page that the user has open can send requests to a local server. A request must therefore name the host that
    this server was started for (with DNS rebinding, it names the attacker's domain) and must not come from another
    origin.
    """
    named = headers.getlist("host")
    if len(named) != 1 or not hosts.allow(named[0]):
        return "The Host header must name the address that the explorer was started for."
    origin = headers.get("origin")
    # The server has no TLS, so the scheme is ignored. The origin "null" of a sandboxed page has no host: no match.
    parts = _split(origin or "")
    foreign = origin is not None and (parts is None or parts.netloc.lower() != named[0].lower())
    # Other sites may only link to the page.
    link = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
    if foreign or (headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not link):
        return "Requests from other pages are refused."
    return None


class Guard:
    """Middleware that refuses foreign requests and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        why = refusal(scope["method"], scope["path"], Headers(scope=scope), self.hosts)
        answer = self.app if why is None else _error_response(403, why)
        await answer(scope, receive, send_with_headers)


# Computation


class Workers:
    """Threads that run computations for the event loop, with a limited queue and a time limit.

    The threads are daemons, so that an endless computation cannot keep the process alive.
    """

    def __init__(self, threads: int, waiting: int, seconds: float) -> None:
        self.threads: list[threading.Thread] = []
        self._max_threads, self._max_pending, self._seconds = threads, threads + waiting, seconds
        self._jobs: Calls = SimpleQueue()
        self._pending, self._lock = 0, threading.Lock()

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a function in a thread and returns its result; `BusyError` if the queue is full or it takes too long."""
        if self._pending >= self._max_pending:
            raise BusyError
        self._start_threads()
        future: Future[_T] = Future()
        self._count(1)
        # A call that has started counts until it ends, even if its request has been cancelled.
        future.add_done_callback(lambda _future: self._count(-1))
        self._jobs.put((future, partial(function, *args, **kwargs)))
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if limit.expired():
                raise BusyError from None
            raise

    def close(self) -> None:
        """Ends the threads after the queued calls."""
        for _thread in self.threads:
            self._jobs.put(None)

    def _count(self, change: int) -> None:
        with self._lock:
            self._pending += change

    def _start_threads(self) -> None:
        while len(self.threads) < self._max_threads:
            thread = threading.Thread(target=run_calls, args=(self._jobs,), name="codinet-explore", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no threads left
                if self.threads:
                    return
                raise BusyError from error
            self.threads.append(thread)


# Uploads


class _Upload:
    """An upload that is being received."""

    def __init__(self, announced: int, now: float, limits: Limits) -> None:
        self.announced, self.size, self.reserved = announced, 0, 0
        self.end = now + limits.upload_seconds
        self.due = now + limits.upload_grace  # arriving bytes postpone this; an upload past it is too slow
        self.timeout = asyncio.timeout_at(min(self.end, self.due))


class Uploads:
    """Receives uploads and limits the memory that they use together.

    An upload reserves memory for its full length once more than `upload_start` bytes have arrived, so that clients that
    send almost nothing reserve none. If no memory is left, uploads wait. The newest is served first, because older ones
    are more likely to be slow. Uploads that have reserved memory and lag are refused.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._reserved = limits, 0
        self._receiving: list[_Upload] = []
        self._waiting: list[_Upload] = []  # those that wait for memory, newest last
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request. Its memory stays reserved until the block ends.

        Raises `RefusedError` as soon as the body has the wrong type or is too long, too slow or incomplete.
        """
        announced = _announced(request.headers, self._limits)
        upload = _Upload(announced, asyncio.get_running_loop().time(), self._limits)
        self._receiving.append(upload)
        try:
            try:
                content = await self._read(request, upload)
            finally:
                self._receiving.remove(upload)
            yield content
        finally:
            self._reserved -= upload.reserved
            self._wake()

    async def _read(self, request: Request, upload: _Upload) -> bytes:
        limits, clock, parts = self._limits, asyncio.get_running_loop().time, []
        try:
            async with upload.timeout:
                async for part in request.stream():
                    upload.size += len(part)
                    if upload.size > limits.upload_bytes:
                        raise _too_long(limits)
                    upload.timeout.reschedule(None)  # waiting for memory is not the client's fault
                    if upload.size > limits.upload_start and not upload.reserved:
                        await self._reserve(upload)
                    parts.append(part)
                    upload.due = min(upload.due + len(part) / limits.upload_rate, clock() + limits.upload_grace)
                    upload.timeout.reschedule(min(upload.end, upload.due))
        except TimeoutError:
            message = (
                f"The upload is too slow: it must arrive within {limits.upload_seconds:g} s, at "
                f"{limits.upload_rate / 1e3:g} kB/s or more."
            )
            raise RefusedError(408, message, close=True) from None
        except ClientDisconnect:
            raise RefusedError(400, "The upload is incomplete.") from None
        if not upload.size:
            raise RefusedError(422, "The upload is empty; choose an image file.")
        return b"".join(parts)

    async def _reserve(self, upload: _Upload) -> None:
        """Waits until there is memory for an upload, and reserves it."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self._waiting.append(upload)
        try:
            while upload is not self._waiting[-1] or self._reserved + upload.announced > self._limits.upload_memory:
                if clock() - began > self._limits.answer_seconds:
                    raise BusyError
                self._refuse_slowest(clock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.25):  # by then, another upload may lag
                        await self._changed.wait()
            upload.reserved = upload.announced
            self._reserved += upload.reserved
        finally:
            self._waiting.remove(upload)
            self._wake()
        upload.end += clock() - began
        upload.due += clock() - began

    def _refuse_slowest(self, now: float) -> None:
        """Refuses the upload that lags most among those with reserved memory, if it lags more than `upload_lag`."""
        # Complete and refused uploads have no timeout in the future.
        reserved = [one for one in self._receiving if one.reserved and (one.timeout.when() or 0.0) > now]
        if reserved:
            slowest = min(reserved, key=lambda one: one.due)
            if slowest.due < now + self._limits.upload_grace - self._limits.upload_lag:
                slowest.timeout.reschedule(now)

    def _wake(self) -> None:
        """Wakes all waiting uploads."""
        self._changed.set()
        self._changed.clear()


def _announced(headers: Headers, limits: Limits) -> int:
    """The length of the body according to the header, or the limit; `RefusedError` if it is not an upload."""
    if headers.get("content-type") != CONTENT_TYPE:
        raise RefusedError(415, f"The content type must be {CONTENT_TYPE}.")
    length = headers.get("content-length", str(limits.upload_bytes))
    if not length.isdecimal() or len(length) > 18 or int(length) > limits.upload_bytes:
        raise _too_long(limits)
    return int(length)


def _too_long(limits: Limits) -> RefusedError:
    limit = f"{limits.upload_bytes / 1e6:g} MB"
    return RefusedError(413, f"The upload is too large: the limit is {limit}; scale the image down.", close=True)


def decode(content: bytes, image_shape: tuple[int, int, int], crop: float, limits: Limits) -> torch.Tensor:
    """Decodes an image to the network's shape, as uint8 (C, H, W). Its size is checked before decoding."""
    channels, height, width = image_shape
    try:
        return read_image(content, channels=channels, size=(height, width), crop=crop, max_pixels=limits.upload_pixels)
    except UserError as error:
        message = str(error)
        raise RefusedError(422, message[:1].upper() + message[1:]) from None
