"""Who may ask, and what a browser may do with the answer.

A local server is reachable by every page its user has open. So a request must name an address this server
was started for (a page that rebinds its own domain to 127.0.0.1 names its own), must not come from another
origin, and answers carry a policy under which the page can load nothing from elsewhere.
"""

import ipaddress
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
class Hosts:
    """The names under which the server may be addressed."""

    names: frozenset[str]
    any_address: bool = False  # a numeric address cannot be rebound, so all are safe where all are listened on

    @classmethod
    def of(cls, host: str) -> "Hosts":
        """The host the server was started for, and this machine's own names."""
        if host in ("0.0.0.0", "::"):
            return cls(frozenset((*_LOCAL, socket.gethostname().lower())), any_address=True)
        return cls(frozenset((*_LOCAL, host.lower())))

    def allow(self, header: str | None) -> bool:
        """Whether a Host header (name, perhaps a port) is one of ours."""
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
    """Why a request is turned away, or None."""
    named = headers.getlist("host")
    if len(named) != 1 or not hosts.allow(named[0]):
        return "This explorer answers only at the address it was started for."
    origin = headers.get("origin")
    # Without TLS of our own the scheme says nothing; a sandboxed page's "null" has no host and never fits.
    parts = _split(origin or "")
    foreign = origin is not None and (parts is None or parts.netloc.lower() != named[0].lower())
    # Following a link to the page is the one thing other sites may start.
    followed = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
    if foreign or (headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not followed):
        return "Requests from other pages are refused."
    return None


class Guard:
    """Middleware: refuse foreign requests, and put `HEADERS` on every answer."""

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
        if why is None:
            await self.app(scope, receive, guarded)
        else:
            await _say(guarded, 403, why)


async def _say(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers: Iterable[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
