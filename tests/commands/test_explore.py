"""The command: its errors, and that Ctrl-C and SIGTERM end it quickly."""

import http.client
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from codinet.commands.explore import Args, run
from codinet.errors import UserError

CODE = (
    "import sys; from pathlib import Path; from codinet.commands.explore import Args, run; "
    "run(Args(Path(sys.argv[1]), port=0, device='cpu'))"
)


def test_without_the_extra_the_error_names_it(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else real(name))
    with pytest.raises(UserError, match=r"needs fastapi; install them with pip install fastapi uvicorn"):
        run(Args(finished_run))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    with pytest.raises(UserError, match="no run folder"):
        run(Args(tmp_path / "nothing", port=0))


def test_a_port_in_use_is_refused_before_anything_is_loaded(finished_run: Path) -> None:
    pytest.importorskip("fastapi")
    from codinet.explorer.serve import listen

    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} is in use"):
            run(Args(finished_run, port=port))


def test_an_address_of_another_machine_is_refused(finished_run: Path) -> None:
    pytest.importorskip("fastapi")
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1 is not an address of this machine") as told:
        run(Args(finished_run, host="192.0.2.1"))
    assert "--port" not in str(told.value)


def test_an_unfinished_run_frees_the_port(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    from codinet.explorer import serve

    (own_run / "model.safetensors").unlink()
    real, taken = serve.listen, []

    def remembered(host: str, port: int) -> Any:
        taken.append(real(host, port))
        return taken[-1]

    monkeypatch.setattr(serve, "listen", remembered)
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        run(Args(own_run, port=0))
    assert taken[0].fileno() == -1


def start(run: Path, before: str = "") -> tuple[subprocess.Popen[str], str]:
    """The command as a process, which runs some code before, and the URL that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + CODE, str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert found, process.communicate()
    return process, found[0]


@pytest.mark.skipif(sys.platform == "win32", reason="sends an interrupt as Unix terminals do")
def test_serves_without_the_data_set_and_ends_quietly_on_an_interrupt(own_run: Path, digits_npz: Path) -> None:
    pytest.importorskip("fastapi")
    config = own_run / "config.json"
    config.write_text(config.read_text().replace(str(digits_npz), "/nowhere/few.npz"))
    process, url = start(own_run)
    with urllib.request.urlopen(url + "api/run", timeout=60) as answer:
        assert b'"images":0' in answer.read()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert errors.startswith("codinet: without test images: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals as Unix does")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_ends_while_an_image_is_decoded(finished_run: Path, number: signal.Signals, code: int) -> None:
    pytest.importorskip("fastapi")
    process, url = start(finished_run, "import PIL.Image, time; PIL.Image.open = lambda *_, **__: time.sleep(600); ")
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", "/api/route", b"image", {"Content-Type": "application/octet-stream"})
    time.sleep(1)
    began = time.monotonic()
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    connection.close()
    assert time.monotonic() - began < 15  # 2 s for the request and 2 s for its thread
    assert (process.returncode, out, errors) == (code, "", "")
