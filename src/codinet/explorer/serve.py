"""Serves the explorer until Ctrl-C, and limits its connections.

uvicorn has no time limit for sending a header or reading an answer, and its limit on connections lets idle ones block
all others. `LimitedProtocol` adds both: it closes a connection that keeps the server waiting, after some seconds or, if
there are too many connections, at once.
"""

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
import time
import warnings
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from codinet.errors import UserError
from codinet.explorer.guard import HEADERS, Limits, busy_response

_START_SECONDS = 30.0
_END_SECONDS = 2  # for open requests, and again for threads
_NOT_HTTP = "\r\n".join(
    [
        "HTTP/1.1 400 Bad Request",
        "Content-Type: application/json",
        "Connection: close",
        *(f"{name}: {value}" for name, value in HEADERS.items()),
        "",
        '{"error":"This is not a valid HTTP request."}',
    ]
).encode()


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket that listens on the address.

    Args:
        host: An address or name of this machine; 0.0.0.0 listens on all addresses.
        port: The port; 0 picks a free one.

    Returns:
        The socket.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, got {port}; 0 picks a free port.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, ValueError) as error:  # ValueError: not a host name
        why = getattr(error, "strerror", None) or "not a host name"
        raise UserError(f"--host {host} is not an address of this machine ({why}); use 0.0.0.0 for all.") from error
    listener = socket.socket(family, kind, number)
    try:
        # Otherwise the port stays in use for a minute after the last connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} is in use; choose another --port, or 0 for a free one.") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f"--host {host} is not an address of this machine; omit it, or use 0.0.0.0 for all."
            ) from error
        raise UserError(f"Cannot listen on {host} port {port}: {error.strerror}; try another --port.") from error
    return listener


def address(host: str, listener: socket.socket) -> str:
    """The URL for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = listener.getsockname()[1]
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def serve(app: FastAPI, listener: socket.socket, *, open_at: str | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM.

    A computation that is still running some seconds later is abandoned by ending the process here.

    Args:
        app: The explorer's app.
        listener: A listening socket.
        open_at: URL to open in a browser.
    """
    if open_at is not None:
        # In a thread, because some browsers block until they are closed. The socket already listens.
        threading.Thread(target=webbrowser.open, args=(open_at,), daemon=True).start()
    try:
        _Server(_config(app)).run(sockets=[listener])
    except KeyboardInterrupt:
        # uvicorn has closed all connections by now. If it had not started yet, Python would warn about it.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    finally:
        listener.close()
    end = time.monotonic() + _END_SECONDS
    for thread in app.state.threads():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # a normal exit can crash in a running thread


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serves the app in a thread, on a free local port, while the block runs. Yields the URL."""
    server = _Server(_config(app))
    with listen("127.0.0.1", 0) as listener:
        arguments = {"sockets": [listener]}
        thread = threading.Thread(target=server.run, kwargs=arguments, name="codinet-served", daemon=True)
        thread.start()
        try:
            end = time.monotonic() + _START_SECONDS
            while thread.is_alive() and not server.started and time.monotonic() < end:
                time.sleep(0.01)
            if not server.started:
                raise RuntimeError(f"The explorer did not start within {_START_SECONDS:g} s.")
            yield address("127.0.0.1", listener)
        finally:
            server.should_exit = True
            thread.join(_START_SECONDS)


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="error",  # warnings report requests that are not HTTP
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=LimitedProtocol,
        ws="none",
        # asyncio accepts this many at once, before any is closed; the total must stay below the usual 1,024 files.
        backlog=128,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_END_SECONDS,
    )


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends quietly: requests that are cancelled here are not errors."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


class LimitedProtocol(H11Protocol):
    """A connection with time limits, and a limit on the number of connections."""

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._limits: Limits = config.app.state.limits  # type: ignore[union-attr]
        self._phase: tuple[object, bool] | None = None  # the last request, and whether it is being answered
        self._since = 0.0  # when this phase began
        self._timer: asyncio.TimerHandle | None = None  # closes the connection at the end of a phase
        self._unread: asyncio.TimerHandle | None = None  # closes the connection if the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._close_longest_waiting()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()

    def shutdown(self) -> None:
        """Closes the connection when the server ends, unless an answer is being computed."""
        if self._waits_for_client:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, unless its answer has begun, and closes the connection."""
        # Not through h11, which raises an exception for some of these requests.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_NOT_HTTP)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that the app does not answer as well

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _waits_for_client(self) -> bool:
        """Whether the client has not sent a complete request, or does not read the answer."""
        return not self._answering or self.flow.write_paused or self.conn.their_state is h11.SEND_BODY

    def _watch(self) -> None:
        """Starts the time limit of a new phase."""
        phase = (self.cycle, self._answering)
        if phase == self._phase:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        seconds = self._limits.request_seconds if self._answering else self._limits.idle_seconds
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _close_longest_waiting(self) -> None:
        """Closes the connection that has waited longest for its client; refuses this one if none is waiting."""
        waiting = [one for one in self.connections if one is not self and one._waits_for_client]  # type: ignore[union-attr]
        if waiting:
            # Those without a request come first; those whose body we have paused reading come last.
            victim = min(waiting, key=lambda one: (one._answering, one.flow.read_paused, one._since))  # type: ignore[union-attr]
            self.connections.discard(victim)
            victim.transport.abort()
        else:
            self.app = busy_response({**HEADERS, "Connection": "close"})
