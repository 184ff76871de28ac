"""Writers of small files in the official layouts, and a web server on this machine."""

import pickle
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar_rows(seed: int, rows: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random images (rows, 3072) and labels that cycle through the classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (rows, 3072), dtype=np.uint8)
    return pixels, np.arange(seed, seed + rows) % number


@pytest.fixture
def cifar10_binary() -> Callable[..., Path]:
    def write(root: Path, rows: int = 3) -> Path:
        folder = root / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        for seed, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
            pixels, labels = cifar_rows(seed, rows, 10)
            (folder / name).write_bytes(np.hstack([labels[:, None].astype(np.uint8), pixels]).tobytes())
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
        return folder

    return write


@pytest.fixture
def cifar10_python() -> Callable[..., Path]:
    def write(root: Path, rows: int = 3, protocol: int = 2) -> Path:
        folder = root / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            pixels, labels = cifar_rows(seed, rows, 10)
            batch = {"batch_label": name, "labels": labels.tolist(), "data": pixels}
            (folder / name).write_bytes(pickle.dumps(batch, protocol))
        meta = {"num_cases_per_batch": 10000, "label_names": CIFAR10_NAMES, "num_vis": 3072}
        (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))
        return folder

    return write


@pytest.fixture
def cifar100_binary() -> Callable[..., Path]:
    def write(root: Path, rows: int = 120) -> Path:
        folder = root / "cifar-100-binary"
        folder.mkdir(parents=True)
        for seed, name in enumerate(["train.bin", "test.bin"]):
            pixels, labels = cifar_rows(seed, rows, 100)
            both = np.stack([labels // 5, labels], axis=1).astype(np.uint8)
            (folder / name).write_bytes(np.hstack([both, pixels]).tobytes())
        (folder / "fine_label_names.txt").write_text("\n".join(f"class_{i}" for i in range(100)))
        return folder

    return write


@pytest.fixture
def cifar100_python() -> Callable[..., Path]:
    def write(root: Path, rows: int = 120) -> Path:
        folder = root / "cifar-100-python"
        folder.mkdir(parents=True)
        for seed, name in enumerate(["train", "test"]):
            pixels, labels = cifar_rows(seed, rows, 100)
            batch = {b"fine_labels": labels.tolist(), b"coarse_labels": (labels // 5).tolist(), b"data": pixels}
            (folder / name).write_bytes(pickle.dumps(batch, 2))
        meta = {"fine_label_names": [f"class_{i}" for i in range(100)], "coarse_label_names": []}
        (folder / "meta").write_bytes(pickle.dumps(meta, 2))
        return folder

    return write


_STORED = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 9, "i8": 12, "u8": 13}
_CLASSES = {"f8": 6, "f4": 7, "i1": 8, "u1": 9, "i2": 10, "u2": 11, "i4": 12, "u4": 13, "i8": 14, "u8": 15}


def _element(order: str, kind: int, content: bytes, *, small: bool) -> bytes:
    if small and 0 < len(content) <= 4:
        return struct.pack(f"{order}I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def mat_array(
    name: str,
    array: np.ndarray,
    *,
    order: str = "<",
    compressed: bool = True,
    small: bool = True,
    stored: str | None = None,
    array_class: int | None = None,
    complex_flag: bool = False,
) -> bytes:
    """One variable of a MATLAB 5 file."""
    kind = array.dtype.str[1:]
    stored = stored or kind
    flags = (array_class or _CLASSES[kind]) | (0x0800 if complex_flag else 0)
    values = array.astype(f"{order}{stored}").tobytes(order="F")
    body = (
        _element(order, 6, struct.pack(f"{order}II", flags, 0), small=small)
        + _element(order, 5, struct.pack(f"{order}{array.ndim}i", *array.shape), small=small)
        + _element(order, 1, name.encode(), small=small)
        + _element(order, _STORED[stored], values, small=small)
    )
    matrix = struct.pack(f"{order}II", 14, len(body)) + body
    if not compressed:
        return matrix
    packed = zlib.compress(matrix)
    return struct.pack(f"{order}II", 15, len(packed)) + packed


def mat_file(*variables: bytes, order: str = "<") -> bytes:
    mark = b"IM" if order == "<" else b"MI"
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + mark
    return header + b"".join(variables)


@pytest.fixture(scope="session")
def mat() -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    """(one variable, a whole file of variables)."""
    return mat_array, mat_file


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder of `per_class` PNGs for each class, all of different grey levels or colours."""

    def write(
        where: str = "pictures",
        classes: tuple[str, ...] = ("cat", "dog"),
        per_class: int = 5,
        size: tuple[int, int] = (12, 10),
        mode: str = "RGB",
    ) -> Path:
        for label, name in enumerate(classes):
            folder = tmp_path / where / name
            folder.mkdir(parents=True)
            for index in range(per_class):
                level = 20 * index + label
                colour = level if mode == "L" else (level, 255 - level, 100)
                Image.new(mode, (size[1], size[0]), colour).save(folder / f"{index:03}.png")
        return tmp_path / where

    return write


@dataclass
class WebServer:
    """The files and the faults of the server; tests change them between requests."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes to send before hanging up, per request
    status: list[int] = field(default_factory=list)  # answers to give instead, per request
    content_length: bool = True
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def web_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setenv("no_proxy", "*")
    state = WebServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            if state.status:
                self.send_error(state.status.pop(0))
                return
            content = state.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if state.content_length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            self.wfile.write(body[: state.cut_after.pop(0)] if state.cut_after else body)
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            """Ignore clients that close the connection, as some tests do."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
