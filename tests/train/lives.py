"""A driver of training lives: imports torch once, then forks a process for each life, so that one begins in no time.

Reads requests from stdin, a JSON document a line, and answers each with one:

    words    what `codinet` is called with
    out      the run folder, to watch it
    fate     how the life ends before its time, if it does:
             {"after": s, "saves": n}   killed after s seconds, or once it has written n checkpoints
             {"writing": true}          killed as soon as a half-written checkpoint is seen
             {"rename": "before"}       killed just before (or "after") a file gets a name that none had
             {"disk": n}                no file can grow beyond n bytes

    signal   what ended the life, or 0
    code     its exit code, if it came to its own end
    said     what it wrote to stderr
    half     whether it left a half-written file
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import codinet.commands.train  # noqa: F401  (loaded before the first life, not in each)
from codinet import block_costs, create_model
from codinet.cli import main
from codinet.train import loop

Fate = dict[str, Any]


def live(words: list[str], fate: Fate, stderr: int) -> None:
    """A life, in a process of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    torch.set_num_threads(1)
    loop.SAVE_SECONDS = fate.get("save_seconds", loop.SAVE_SECONDS)
    if "disk" in fate:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fate["disk"], fate["disk"]))
    if "rename" in fate:
        die_at_a_rename(after=fate["rename"] == "after")
    code = 1
    try:
        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # whatever happens, this process is not a second driver


def die_at_a_rename(*, after: bool) -> None:
    rename = os.replace

    def last_rename(source: Path, target: Path) -> None:
        new = not Path(target).exists()
        if after or not new:
            rename(source, target)
        if new:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = last_rename  # type: ignore[assignment]


def list_names(out: Path) -> list[str]:
    """Of checkpoints, whole and half-written."""
    return os.listdir(out / "checkpoints") if (out / "checkpoints").is_dir() else []


def watch(process: int, out: Path, fate: Fate) -> int:
    """Wait for a life's end, or bring it about; its status."""
    born = time.monotonic()
    old = set(list_names(out))
    saved: set[str] = set()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        names = list_names(out)
        saved |= {name for name in names if name.endswith(".safetensors")} - old
        if ("after" in fate and (time.monotonic() - born > fate["after"] or len(saved) >= fate["saves"])) or (
            "writing" in fate and any(name.endswith(f".{process}.tmp") for name in names)
        ):
            os.kill(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1]
        time.sleep(0.0005)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    out, fate = Path(request["out"]), request["fate"]
    with tempfile.TemporaryFile() as said:
        process = os.fork()
        if process == 0:
            live(request["words"], fate, said.fileno())
        status = watch(process, out, fate)
        said.seek(0)
        words = said.read().decode()
    killed = os.WIFSIGNALED(status)
    return {
        "signal": os.WTERMSIG(status) if killed else 0,
        "code": None if killed else os.WEXITSTATUS(status),
        "said": words,
        "half": bool(list(out.rglob(f".*.{process}.tmp"))),
    }


if __name__ == "__main__":
    block_costs(create_model("resnet20"), (3, 8, 8))  # has torch load what would take each life a second or two
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
