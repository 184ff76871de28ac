"""Put the explorer on an address, until Ctrl-C."""

import errno
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from codinet.errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address, or a `UserError` that says why there is none."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port; give a number from 1 to 65535, or 0 for any free one.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UserError(f"--host {host} is no address of this machine ({error.strerror}).") from error
    listener = socket.socket(family, kind, number)
    try:
        # Without it a port stays taken for a minute after the last visitor.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} is in use; choose another with --port, or 0 for any free one.") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f"--host {host} is no address of this machine; leave it out, or give 0.0.0.0 for all it has."
            ) from error
        raise UserError(f"Cannot listen on {host} port {port}: {error.strerror}; try another --port.") from error
    return listener


def address(host: str, listener: socket.socket) -> str:
    """What to type into a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = listener.getsockname()[1]
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def serve(app: FastAPI, listener: socket.socket, *, open_at: str | None = None) -> None:
    """Answer until Ctrl-C, which ends it quietly; a browser is sent to `open_at`."""
    if open_at is not None:
        webbrowser.open(open_at)  # the socket listens already, so the page waits rather than fails
    try:
        _server(app).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn has closed every connection by now
    finally:
        listener.close()


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app on a free port of this machine, in a thread, while the block runs; its address."""
    server = _server(app)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="codinet-served")
        thread.start()
        try:
            yield address("127.0.0.1", listener)
        finally:
            server.should_exit = True
            thread.join()


def _server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http="h11",
            ws="none",
            limit_concurrency=1024,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
        )
    )
