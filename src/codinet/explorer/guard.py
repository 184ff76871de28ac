"""Protects the machine from requests: which ones are answered, and how much each may cost.

`Limits` holds every bound. `Guard` refuses requests from other web pages and sets the security headers. `Intake`
receives uploads, `Workers` compute in threads, and `answer_problems` turns every failure into one JSON sentence that
does not reveal anything about the server's disk. The limits on connections are in `serve.py`.
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

# An HTML form of another page cannot send this type; its browser would ask us first.
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
    """Every bound on memory, time and number. Sizes are in bytes, times in seconds."""

    # one upload
    upload_bytes: int = 10_000_000
    upload_pixels: int = 25_000_000  # a camera with 6000×4000 pixels is common
    upload_seconds: float = 30.0  # for receiving all of it
    upload_rate: int = 64_000  # bytes per second; an upload that falls `upload_grace` seconds behind this is refused
    upload_grace: float = 5.0
    # all uploads
    upload_memory: int = 50_000_000  # for uploads from their start to their decoding; at least `upload_bytes`
    upload_start: int = 64_000  # of each upload, not counted in `upload_memory`
    upload_lag: float = 1.0  # if others wait for memory, an upload that falls so many seconds behind is refused
    # computing
    workers: int = 2  # threads that run the network; one more decodes uploads, one at a time to limit memory
    waiting: int = 256  # requests that wait for a thread; more are refused
    answer_seconds: float = 60.0  # for each wait for a thread or for memory
    # connections
    connections: int = 256
    idle_seconds: float = 10.0  # from an answer, or the start, to the end of the next header; also to read an answer
    request_seconds: float = 300.0  # from the end of the header to the end of the answer; every step has its own limit


class RefusedError(Exception):
    """A request that is refused with a status and a sentence; `hang_up` also closes the connection."""

    def __init__(self, status: int, sentence: str, *, hang_up: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {"Connection": "close"} if hang_up else None


class BusyError(Exception):
    """The explorer has no capacity for a request at the moment."""


def busy(headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer when there is no capacity."""
    sentence = "The explorer is busy with other requests; try again in a moment."
    return _problem(503, sentence, {"Retry-After": "2", **(headers or {})})


def answer_problems(app: FastAPI) -> None:
    """Set the app's answers to refusals, invalid parameters, overload and bugs."""

    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: RefusedError) -> JSONResponse:
        return _problem(error.status, error.sentence, error.headers)

    @app.exception_handler(BusyError)
    async def overloaded(_request: Request, _error: BusyError) -> JSONResponse:
        return busy()

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        # The names and rules are our own; the value is not repeated.
        rules = {str(entry["loc"][-1]): str(entry["msg"]) for entry in error.errors()}
        return _problem(422, " ".join(f"Invalid {name}: {rule[:1].lower()}{rule[1:]}." for name, rule in rules.items()))

    @app.exception_handler(HTTPException)
    async def unknown(_request: Request, error: HTTPException) -> JSONResponse:
        sentences = {404: "There is nothing at this address.", 405: "This address does not accept this method."}
        return _problem(error.status_code, sentences.get(error.status_code, "This request was refused."))

    @app.exception_handler(Exception)
    async def bug(_request: Request, _error: Exception) -> JSONResponse:
        # This answer does not pass through `Guard`, which adds the headers to all others.
        return _problem(500, "Something went wrong; see the terminal that runs the explorer.", dict(HEADERS))


def _problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


# which requests are answered


@dataclass(frozen=True)
class Hosts:
    """The host names under which the server may be addressed."""

    names: frozenset[str]
    any_address: bool = False  # every numeric address, which no DNS server can point elsewhere

    @classmethod
    def of(cls, host: str) -> "Hosts":
        """The host that the server was started for, and the local names of this machine."""
        if host in ("0.0.0.0", "::"):
            return cls(frozenset((*_LOCAL, socket.gethostname().lower())), any_address=True)
        return cls(frozenset((*_LOCAL, host.lower())))

    def allow(self, header: str | None) -> bool:
        """Whether a Host header (a name and optionally a port) names this server."""
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
    """Why a request is refused, or None if it is not.

    Every page that the user has open can reach a local server. So a request must name an address that this server was
    started for (a page that points its own domain to 127.0.0.1 names its own), and must not come from another origin.
    """
    named = headers.getlist("host")
    if len(named) != 1 or not hosts.allow(named[0]):
        return "The explorer answers only at the address it was started for."
    origin = headers.get("origin")
    # We have no TLS, so the scheme is ignored. The origin "null" of a sandboxed page has no host and never matches.
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

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        why = refusal(scope["method"], scope["path"], Headers(scope=scope), self.hosts)
        answer = self.app if why is None else _problem(403, why)
        await answer(scope, receive, guarded)


# computing


class Workers:
    """A few threads beside the event loop, a bound on the work that waits for them, and a time limit.

    The threads are daemons, so that a computation that does not end cannot keep the process alive.
    """

    def __init__(self, threads: int, waiting: int, seconds: float) -> None:
        self.threads: list[threading.Thread] = []
        self._most, self._bound, self._seconds = threads, threads + waiting, seconds
        self._jobs: Calls = SimpleQueue()
        self._pending, self._lock = 0, threading.Lock()

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The function's result, computed in a thread; `BusyError` if too much is waiting or it takes too long."""
        if self._pending >= self._bound:
            raise BusyError
        self._start_threads()
        future: Future[_T] = Future()
        self._count(1)
        # Work that has started is counted until it ends, even if nobody waits for it any more.
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
        """End the threads when they have done their work."""
        for _thread in self.threads:
            self._jobs.put(None)

    def _count(self, change: int) -> None:
        with self._lock:
            self._pending += change

    def _start_threads(self) -> None:
        while len(self.threads) < self._most:
            thread = threading.Thread(target=run_calls, args=(self._jobs,), name="codinet-explore", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left
                if self.threads:
                    return
                raise BusyError from error
            self.threads.append(thread)


# uploads


class _Upload:
    """One upload that is being received."""

    def __init__(self, announced: int, now: float, limits: Limits) -> None:
        self.announced, self.size, self.reserved = announced, 0, 0
        self.end = now + limits.upload_seconds
        self.due = now + limits.upload_grace  # bytes that arrive move this on; if it passes, the upload is too slow
        self.timeout = asyncio.timeout_at(min(self.end, self.due))


class Intake:
    """Receives uploads and bounds the memory that all of them use together.

    An upload reserves memory for all of it when more than `upload_start` bytes have arrived, so that clients which send
    next to nothing hold none. If there is none left, uploads wait, the newest first, because the older ones are more
    likely to be slow; and those that have reserved some and lag are refused.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._reserved = limits, 0
        self._receiving: list[_Upload] = []
        self._waiting: list[_Upload] = []  # those that wait for memory, newest last
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request. Its memory is reserved until the block ends.

        `RefusedError` as soon as it has the wrong type, or is too long, too slow or incomplete.
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
            sentence = (
                f"The upload is too slow: send it within {limits.upload_seconds:g} s and at "
                f"{limits.upload_rate / 1e3:g} kB/s or more."
            )
            raise RefusedError(408, sentence, hang_up=True) from None
        except ClientDisconnect:
            raise RefusedError(400, "The upload is incomplete.") from None
        if not upload.size:
            raise RefusedError(422, "The upload is empty; choose an image file.")
        return b"".join(parts)

    async def _reserve(self, upload: _Upload) -> None:
        """Wait until there is memory for an upload, and reserve it."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self._waiting.append(upload)
        try:
            while upload is not self._waiting[-1] or self._reserved + upload.announced > self._limits.upload_memory:
                if clock() - began > self._limits.answer_seconds:
                    raise BusyError
                self._refuse_slowest(clock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.25):  # others may lag by then
                        await self._changed.wait()
            upload.reserved = upload.announced
            self._reserved += upload.reserved
        finally:
            self._waiting.remove(upload)
            self._wake()
        upload.end += clock() - began
        upload.due += clock() - began

    def _refuse_slowest(self, now: float) -> None:
        """Refuse the upload that lags most and has reserved memory, if it lags too much for others to wait."""
        # One that is complete or refused already has no time limit ahead.
        held = [one for one in self._receiving if one.reserved and (one.timeout.when() or 0.0) > now]
        if held:
            slowest = min(held, key=lambda one: one.due)
            if slowest.due < now + self._limits.upload_grace - self._limits.upload_lag:
                slowest.timeout.reschedule(now)

    def _wake(self) -> None:
        """Let all that wait look again."""
        self._changed.set()
        self._changed.clear()


def _announced(headers: Headers, limits: Limits) -> int:
    """The length of a body by its header, or the greatest length allowed; `RefusedError` if it is not an upload."""
    if headers.get("content-type") != CONTENT_TYPE:
        raise RefusedError(415, f"Send the bytes of the image with the content type {CONTENT_TYPE}.")
    length = headers.get("content-length", str(limits.upload_bytes))
    if not length.isdecimal() or len(length) > 18 or int(length) > limits.upload_bytes:
        raise _too_long(limits)
    return int(length)


def _too_long(limits: Limits) -> RefusedError:
    most = f"{limits.upload_bytes / 1e6:g} MB"
    return RefusedError(413, f"The upload is too large: the limit is {most}; scale the image down.", hang_up=True)


def decode(content: bytes, image_shape: tuple[int, int, int], limits: Limits) -> torch.Tensor:
    """The image in the network's shape, as uint8 (C, H, W). Its size is checked before it is decoded."""
    channels, height, width = image_shape
    try:
        return read_image(content, channels=channels, size=(height, width), max_pixels=limits.upload_pixels)
    except UserError as error:
        sentence = str(error)
        raise RefusedError(422, sentence[:1].upper() + sentence[1:]) from None
