"""Attacks on the explorer: odd methods, addresses, queries, headers and bodies, damaged images, bytes that are not
HTTP, slow clients, and damaged run folders.

An answer of 5xx is a finding, except the documented 503 for overload. So is anything that the server logs as an error,
an error that is not one JSON sentence, and a path of the disk in an answer.
"""

import asyncio
import atexit
import functools
import io
import json
import logging
import random
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import torch
from fastapi import FastAPI
from PIL import Image
from starlette.types import Message
from tests.attack.harness import Attack

from codinet import files
from codinet.config import NetworkConfig, RunConfig
from codinet.data import Dataset
from codinet.data.npz import load_digits
from codinet.evaluate import evaluate_test_set
from codinet.explorer.app import create_app
from codinet.explorer.guard import CONTENT_TYPE, HEADERS, Limits
from codinet.explorer.serve import served
from codinet.explorer.space import FILE, RoutingSpace, _digest
from codinet.model import CoDiNet
from codinet.resolving import resolve
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder, RunWriter

CPU = torch.device("cpu")
BLOCKS = 9
GOOD = {
    "order": ["random", "index", "hardest", "easiest"],
    "label": ["0", "3", "9"],
    "seed": ["0", "5", str(2**31 - 1)],
    "limit": ["1", "24", "100"],
    "threshold": ["0", "0.5", "1", "1e-300", "0.9999999"],
    "view": ["crop", "mirror", "rotation", "upside-down"],
    "kind": ["pca", "tsne"],
}
OF_IMAGES = ("threshold", "view", "seed")
ADDRESSES: dict[str, tuple[str, ...]] = {  # VALUE is replaced; each has its parameters
    "/": (),
    "/static/app.js": (),
    "/static/VALUE": (),
    "/api/run": (),
    "/api/images": ("order", "label", "seed", "limit"),
    "/api/images/VALUE.png": (),
    "/api/images/VALUE/route": OF_IMAGES,
    "/api/images/7/route": OF_IMAGES,
    "/api/route": OF_IMAGES,
    "/api/map": ("kind",),
    "/api/accuracy": ("threshold",),
    "/api/VALUE": (),
    "/VALUE": (),
}
ODD = [
    *("", " ", "0", "-0", "1", "-1", "39", "40", "10", "1e3", "1e400", "-1e400", "nan", "inf", "-inf", "0x10", "1_0"),
    *("9" * 23, "-" + "9" * 23, "9" * 4300, "9" * 5000, "1." + "0" * 5000, "0" * 300 + "5", str(2**31), str(2**63)),
    *("null", "true", "[]", "{}", "[[[[", '{"a":1}', "None", "٣", "²", "１", "\ud800", "\0", "\n", "\r\n", "%", "%zz"),
    *("..", "../..", "../../etc/passwd", "..%2f..", "%2e%2e/", "/", "//", "\\", ".", "~", "index.html", "app.py"),
    *("<script>alert(1)</script>", "'", '"', ";", "&", "=", "a" * 3000, "é" * 500, "𝕏", "\u202e", "pca", "index"),
]
METHODS = ["GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "G"]
HOSTS = ["127.0.0.1", "127.0.0.1:8000", "localhost", "[::1]:1", "evil.example", "", "[", "127.0.0.1:x", "\xff"]
PLAIN = [(b"host", b"127.0.0.1"), (b"content-type", CONTENT_TYPE.encode())]
TYPES = [CONTENT_TYPE, "application/json", "text/plain", "multipart/form-data", "", CONTENT_TYPE + ";", "\xff\xfe", "/"]


# --- what is attacked


@functools.cache
def data() -> Dataset:
    digits = load_digits()
    few = torch.arange(40)
    return replace(digits, train=digits.train.subset(few), test=digits.test.subset(few))


@functools.cache
def run_folder() -> RunFolder:
    """An untrained but complete run, with its maps."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="codinet-attack-explorer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = resolve(RunConfig("digits", network=NetworkConfig(arch="resnet20")))
    run = RunWriter.create(folder, config, DataInfo.of(data()), {}, (3, 3, 3))
    torch.manual_seed(0)
    model = CoDiNet(run.data.model_config(config.network)).eval()
    run.save_results(model, evaluate_test_set(model, data(), CPU))
    keep_map(run, {"index_P": torch.arange(40), "layout_P2": torch.rand(40, 2)})
    return run


def keep_map(run: RunFolder, tensors: dict[str, torch.Tensor]) -> None:
    files.save_tensors(run.path / FILE, tensors, about=_digest(RoutingSpace(run.load_paths()).points_TN))


@functools.cache
def app() -> FastAPI:
    return create_app(run_folder(), data())


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    atexit.register(made.close)
    return made


class Logged(logging.Handler):
    """Keeps the errors that the server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


class Server(NamedTuple):
    address: tuple[str, int]
    logged: Logged
    slow: list[socket.socket]  # clients of earlier attempts that keep the server waiting


@functools.cache
def server() -> Server:
    """A real server on 127.0.0.1, with limits that attempts can reach."""
    stack = ExitStack()
    atexit.register(stack.close)
    limits = Limits(connections=50, upload_bytes=200_000, upload_memory=400_000, upload_start=10_000, idle_seconds=5)
    url = stack.enter_context(served(create_app(run_folder(), data(), limits=limits)))
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    logged = Logged()
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addHandler(logged)
    return Server((host, int(port)), logged, [])


# --- requests in this process


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    method: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    parts: list[bytes],
    *,
    application: FastAPI | None = None,
    ends: bool = True,
) -> Reply:
    """The app's answer to a request, whose path is decoded as uvicorn does it; an exception of the app is raised."""
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "method": method,
        "root_path": "",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "headers": headers,
        "state": {},
    }
    coming: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    coming.append({"type": "http.request", "body": b"", "more_body": False} if ends else {"type": "http.disconnect"})
    going: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        going.append(message)

    loop().run_until_complete(asyncio.wait_for((application or app())(scope, receive, send), 30))
    assert going[0]["type"] == "http.response.start"
    sent = {name.decode().lower(): value.decode() for name, value in going[0]["headers"]}
    return Reply(going[0]["status"], sent, b"".join(message.get("body", b"") for message in going[1:]))


def check(reply: Reply) -> Any:
    """What every answer must be; returns its JSON, if it is some."""
    assert reply.status < 500 or reply.status == 503, (reply.status, reply.body)
    assert {name: reply.headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert str(run_folder().path).encode() not in reply.body
    assert not [name for name in reply.headers if name.startswith("access-control")]
    if not reply.headers.get("content-type", "").startswith("application/json"):
        assert reply.status < 400
        return None
    content = json.loads(reply.body, parse_constant=_not_json)
    if reply.status >= 400:
        check_sentence(content)
    return content


def _not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def check_sentence(content: Any) -> None:
    assert list(content) == ["error"]
    sentence = content["error"]
    assert isinstance(sentence, str)
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) < 6000


def check_route(content: Any) -> None:
    image = content["image"]
    assert len(image["path"]) == BLOCKS == len(image["run_probability"])
    assert set(image["path"]) <= {0, 1}
    assert image["blocks_run"] == sum(image["path"])
    assert 0 <= image["top"][-1]["confidence"] <= image["top"][0]["confidence"] <= 1
    assert 0 < image["cost_share"] < 1.5
    assert len(content["neighbours"]) == 12


def odd(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(ODD)
    return "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0x3000)])) for _ in range(rng.randrange(30)))


def escaped(rng: random.Random, text: str) -> bytes:
    """A part of an address, escaped or not."""
    if rng.random() < 0.8:
        return quote(text.encode("utf-8", "surrogatepass"), safe="").encode()
    return text.encode("utf-8", "surrogatepass")


def a_target(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """An address with a query, and the last value of each parameter."""
    address, known = rng.choice(list(ADDRESSES.items()))
    before, found, after = address.partition("VALUE")
    value = str(rng.randrange(45)) if rng.random() < 0.5 else odd(rng)
    target = before.encode() + (escaped(rng, value) + after.encode() if found else b"")
    said: dict[str, str] = {}
    pairs = []
    names = [*known, rng.choice([*GOOD, odd(rng)])]
    for name in rng.sample(names, rng.randrange(len(names) + 1)) * rng.choice([1, 1, 1, 2]):
        value = rng.choice(GOOD[name]) if name in GOOD and rng.random() < 0.5 else odd(rng)
        equals = rng.choice([b"=", b"=", b"=", b""])
        pairs.append(escaped(rng, name) + equals + escaped(rng, value))
        if equals:
            said[name] = value
    return target + (b"?" if pairs else b"") + rng.choice([b"&", b"&", b"&&", b";"]).join(pairs), said


def some_headers(rng: random.Random, length: int) -> list[tuple[bytes, bytes]]:
    """The header of an ordinary request, or an odd one."""
    headers = {"host": "127.0.0.1", "content-type": CONTENT_TYPE, "content-length": str(length)}
    if rng.random() < 0.5:
        changes: dict[str, list[str]] = {
            "host": HOSTS,
            "content-type": TYPES,
            "content-length": [*ODD, str(length), "10000001"],
            "origin": ["null", "http://127.0.0.1", "http://evil.example", "http://[", "\xff", ""],
            "sec-fetch-site": ["none", "same-origin", "cross-site", "\xff"],
            "sec-fetch-mode": ["navigate", "cors"],
            "accept-encoding": ["gzip", "*;q=nan"],
            "range": ["bytes=0-1", "bytes=-" + "9" * 30],
            "if-none-match": ["*"],
            "cookie": ["a" * 5000],
            "expect": ["100-continue"],
            "x-forwarded-host": ["evil.example"],
        }
        for name in rng.sample(list(changes), rng.randrange(1, 4)):
            headers[name] = rng.choice(changes[name])
        headers.pop(rng.choice([*headers, "none"]), None)
    made = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    return made * 2 if rng.random() < 0.02 else made


def request(rng: random.Random, _folder: Path) -> None:
    """Any method, address, query, header and body."""
    method = rng.choice(METHODS)
    target, said = a_target(rng)
    body = rng.choice([b"", rng.randbytes(rng.randrange(300)), picture(rng)])
    cut = rng.randrange(len(body) + 1)
    reply = ask(method, target, some_headers(rng, len(body)), [body[:cut], body[cut:]], ends=rng.random() < 0.95)
    content = check(reply)
    if reply.status != 200 or content is None:
        return
    if target.startswith(b"/api/images?") and b";" not in target:
        assert len(content["images"]) <= 100
        assert said.get("label") is None or len({image["label"] for image in content["images"]}) <= 1
    if target.startswith((b"/api/route", b"/api/images/7/route")):
        check_route(content)


# --- images


MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "GIF": ("L", "P"),
    "TIFF": ("1", "L", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "PPM": ("1", "L", "RGB", "I"),
}


@functools.cache
def pictures() -> list[bytes]:
    """Small images in every format and in many modes."""
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    options: dict[str, list[dict[str, Any]]] = {
        "JPEG": [{}, {"progressive": True}, {"exif": exif}],
        "PNG": [{}, {"exif": exif}],
        "WEBP": [{}, {"lossless": True}],
        "TIFF": [{}, *({"compression": name} for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits"))],
    }
    found = [b"P3\n2 2\n255\n" + b"1 2 3 " * 4, b"P2\n# comment\n3 2\n255\n" + b"7 " * 6]
    for kind, modes in MODES.items():
        for mode in modes:
            image = Image.frombytes("L", (13, 11), random.Random(mode).randbytes(143))
            image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
            for words in options.get(kind, [{}]):
                stream = io.BytesIO()
                image.save(stream, kind, **words)
                found.append(stream.getvalue())
    return found


def picture(rng: random.Random) -> bytes:
    """An image file, damaged or not."""
    content = bytearray(rng.choice(pictures()))
    for _ in range(rng.choice([0, 1, 1, 2, 5, 20])):
        place = rng.randrange(len(content) + 1) if rng.random() < 0.5 else min(rng.randrange(64), len(content))
        match rng.randrange(7):
            case 0:
                content[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                content[place:] = b""
            case 2:
                content[place:place] = rng.randbytes(rng.randrange(20))
            case 3:
                content[place : place + 4] = struct.pack(">I", rng.choice([0, 1, 60_000, 2**31 - 1, 2**32 - 1]))
            case 4:
                content[place : place + 2] = struct.pack("<H", rng.choice([0, 1, 5000, 65_535]))
            case 5:
                start = rng.randrange(len(content) + 1)
                content[place:place] = content[start : start + rng.randrange(200)] * rng.choice([1, 1, 50])
            case _:
                other = rng.choice(pictures())
                content[place:] = other[place:]
    return bytes(content)


def upload(rng: random.Random, _folder: Path) -> None:
    """A damaged image, sent as the page does it."""
    body = picture(rng)
    query = "&".join(f"{name}={rng.choice(GOOD[name])}" for name in rng.sample(OF_IMAGES, rng.randrange(4)))
    headers = [*PLAIN, (b"content-length", b"%d" % len(body))]
    reply = ask("POST", f"/api/route?{query}".encode(), headers, [body])
    content = check(reply)
    assert reply.status in (200, 422), reply
    if reply.status == 200:
        check_route(content)


# --- connections


def valid(rng: random.Random, body: bytes) -> bytes:
    target, _ = a_target(rng)
    target = target if target.isascii() and target.decode().isprintable() and b" " not in target else b"/api/run"
    head = [rng.choice(METHODS).encode() + b" " + target + rng.choice([b" HTTP/1.1", b" HTTP/1.1", b" HTTP/1.0"])]
    head += [b"Host: 127.0.0.1", f"Content-Type: {CONTENT_TYPE}".encode()]
    if rng.random() < 0.7:
        head.append(b"Content-Length: %d" % len(body))
    else:
        head.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    more = (b"Connection: close", b"Expect: 100-continue", b"Upgrade: websocket\r\nConnection: Upgrade", b"Upgrade: x")
    head += rng.sample(more, rng.choice([0, 0, 0, 1]))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def bytes_to_send(rng: random.Random) -> bytes:
    """One request or several, damaged or not."""
    content = bytearray()
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        content += valid(rng, rng.choice([b"", picture(rng), b"a" * rng.choice([10, 20_000, 190_000, 210_000])]))
    for _ in range(rng.choice([0, 1, 1, 3, 10])):
        place = min(rng.randrange(400), len(content)) if rng.random() < 0.8 else rng.randrange(len(content) + 1)
        change = rng.choice([rng.randbytes(1), rng.randbytes(5), b"", b"\r\n\r\n", b"\0", b":", b" ", b"9" * 30])
        content[place : place + rng.randrange(3)] = change
    if rng.random() < 0.3:
        del content[rng.randrange(len(content) + 1) :]
    return bytes(content)


def connection(rng: random.Random, _folder: Path) -> None:
    """Any bytes, in pieces, from clients, some of which never finish; then an upload must be answered within 2 s."""
    address, logged, slow = server()
    content = bytes_to_send(rng)
    link = socket.create_connection(address, timeout=5)
    with suppress(OSError):
        cut = rng.randrange(len(content) + 1)
        link.settimeout(0.2)
        link.sendall(content[:cut])
        if rng.random() < 0.3:
            time.sleep(0.002)
        link.sendall(content[cut:])
    end = rng.randrange(4)
    with suppress(OSError):
        if end == 0:
            link.shutdown(socket.SHUT_WR)
        elif end == 1:  # closes with a reset
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == 2:
            link.settimeout(0.01)
            _check_status(link.recv(65536))
    if end == 3:
        slow.append(link)
    else:
        link.close()
    while len(slow) > 100:
        slow.pop(rng.randrange(len(slow))).close()
    if rng.random() < 0.3:
        began = time.monotonic()
        body = pictures()[0]
        head = "POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(address, timeout=9) as normal:
            normal.sendall(head.encode() + body)
            answer = normal.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert time.monotonic() - began < 2
    assert logged.lines == [], logged.lines


def _check_status(answer: bytes) -> None:
    assert not answer or answer.startswith((b"HTTP/1.1 1", b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 503")), answer


# --- run folders


def damaged_run(rng: random.Random, folder: Path) -> None:
    """A run folder with a damaged file is refused, or all questions are answered."""
    copy = Path(shutil.copytree(run_folder().path, folder / "run"))
    file = copy / rng.choice(["config.json", "evaluation.json", "paths.safetensors", FILE, "model.safetensors"])
    if file.suffix == ".safetensors" and rng.random() < 0.7:
        tensors, about = files.load_tensors(file)
        for name in rng.sample(sorted(tensors), min(len(tensors), rng.choice([1, 1, 2]))):
            tensors[name] = _damaged(rng, tensors[name])
        files.save_tensors(file, {name: tensor for name, tensor in tensors.items() if tensor is not None}, about=about)
    else:
        content = bytearray(file.read_bytes())
        place = rng.randrange(len(content))
        swap = [b"", b"-", b"9" * 30, b"NaN", b"1e999", b"null", b'"\\ud800"', b"[]", rng.randbytes(3)]
        content[place : place + rng.randrange(4)] = rng.choice(swap)
        file.write_bytes(content)
    made = create_app(RunFolder.open(copy), data() if rng.random() < 0.7 else None)
    for target in (b"/api/run", b"/api/images?order=hardest", b"/api/images/3/route?view=crop", b"/api/map?kind=pca"):
        check(ask("GET", target, PLAIN, [], application=made))
    content = check(ask("POST", b"/api/route", PLAIN, [pictures()[0]], application=made))
    if "tsne" in content.get("place", {}):  # otherwise it would be computed
        check(ask("GET", b"/api/map?kind=tsne", PLAIN, [], application=made))
    loop().run_until_complete(_closed(made))


async def _closed(made: FastAPI) -> None:
    async with made.router.lifespan_context(made):
        pass


def _damaged(rng: random.Random, tensor: torch.Tensor) -> Any:
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: tensor.flatten()[:-1].clone(),
        lambda: torch.zeros_like(tensor),
        lambda: tensor[None].clone(),
        lambda: tensor.to(rng.choice([torch.float64, torch.int64, torch.uint8, torch.float16])),
    ]
    changed = tensor.clone()
    if tensor.numel():
        worst = [torch.nan, torch.inf, -1e30, 1e30] if tensor.is_floating_point() else [255, 40, 127]
        changed.view(-1)[rng.randrange(tensor.numel())] = rng.choice(worst)
    return rng.choice([*changes, lambda: changed, lambda: changed])()


ATTACKS = [
    Attack("explorer: requests", request, quick=60, weight=2.0),
    Attack("explorer: uploaded images", upload, quick=60, weight=2.0),
    Attack("explorer: connections", connection, quick=40),
    Attack("explorer: damaged run folders", damaged_run, quick=8, weight=0.1),
]
