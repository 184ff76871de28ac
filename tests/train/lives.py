"""A driver of training lives: imports torch once, then forks the processes of each life, so that one begins in no time.

Reads requests from stdin, a JSON document a line, and answers each with one:

    words    what `codinet` is called with
    out      the run folder, to watch it
    size     how many processes train together
    fate     how the life ends before its time, if it does:
             {"after": s, "saves": n}   killed after s seconds, or once it has written n checkpoints
             the same and {"only": r}   the process of rank r is killed, and the others left to themselves
             and {"stall": true}        it is stopped instead, and killed once the others have ended
             {"writing": true}          killed as soon as a half-written checkpoint is seen
             {"rename": "before"}       killed just before (or "after") a file gets a name that none had
             {"disk": n}                no file can grow beyond n bytes
             and, with any, {"launched": true}, to tell a single process of its rank too,
             {"save_seconds": s, "ask_every": n} of `codinet.train.loop`,
             {"lazy": true}, to decode images of files when they are used
    patience after so many seconds all processes are killed; 300 by default

    signal   what ended the life's first process, or 0
    code     its exit code, if it came to its own end
    codes    the exit codes of all processes, those of killed ones negative
    said     what they wrote to stderr
    half     whether it left a half-written file
"""

import gc
import json
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401  (loaded before the first life, not in each)
import torch

from codinet import block_costs, create_model
from codinet.cli import main, parse
from codinet.commands import train
from codinet.data import free_memory
from codinet.train import loop

Fate = dict[str, Any]


def live(words: list[str], fate: Fate, stderr: int) -> None:
    """A life, in a process of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    torch.set_num_threads(1)
    loop.PAUSE_SECONDS = -1
    loop.SAVE_SECONDS = fate.get("save_seconds", loop.SAVE_SECONDS)
    loop.ASK_EVERY = fate.get("ask_every", loop.ASK_EVERY)
    if fate.get("lazy"):
        free_memory.available_bytes = lambda: 0
    if "disk" in fate:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fate["disk"], fate["disk"]))
    if "rename" in fate:
        die_at_a_rename(after=fate["rename"] == "after")
    code = 1
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
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
    there = os.listdir(out / "checkpoints") if (out / "checkpoints").is_dir() else []
    return [name for name in there if "safetensors" in name]


def name_rank(rank: int, size: int, port: int) -> None:
    """Tell a process what torchrun would tell it."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def watch(processes: list[int], out: Path, fate: Fate, patience: float) -> list[int]:
    """Wait for a life's end, or bring it about; the status of each process."""
    born = time.monotonic()
    old = set(list_names(out))
    saved: set[str] = set()
    statuses: dict[int, int] = {}
    while True:
        for process in set(processes) - set(statuses):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = status
        if len(statuses) == len(processes):
            return [statuses[process] for process in processes]
        names = list_names(out)
        saved |= {name for name in names if name.endswith(".safetensors")} - old
        if ("after" in fate and (time.monotonic() - born > fate["after"] or len(saved) >= fate["saves"])) or (
            "writing" in fate and any(name.endswith(f".{processes[0]}.tmp") for name in names)
        ):
            doomed = [processes[fate["only"]]] if "only" in fate else processes
            doomed = [process for process in doomed if process not in statuses]
            if fate.get("stall") and len(statuses) + len(doomed) < len(processes):
                for process in doomed:
                    os.kill(process, signal.SIGSTOP)
            else:
                for process in doomed:
                    os.kill(process, signal.SIGKILL)
                for process in doomed:
                    statuses[process] = os.waitpid(process, 0)[1]
        if time.monotonic() - born > patience:
            for process in set(processes) - set(statuses):
                os.kill(process, signal.SIGABRT)  # which counts as lost, unlike the kill of a fate
        time.sleep(0.0005 if "writing" in fate else 0.002)  # a half-written file is there for a moment only


def answer(request: dict[str, Any]) -> dict[str, Any]:
    out, fate, size = Path(request["out"]), request["fate"], request["size"]
    port = find_port() if size > 1 or "launched" in fate else 0
    processes = []
    with tempfile.TemporaryFile() as said:
        for rank in range(size):
            process = os.fork()
            if process == 0:
                if port:
                    name_rank(rank, size, port)
                live(request["words"], fate, said.fileno())
            processes.append(process)
        codes = [
            os.waitstatus_to_exitcode(status) for status in watch(processes, out, fate, request.get("patience", 300))
        ]
        said.seek(0)
        words = said.read().decode()
    return {
        "signal": max(0, -codes[0]),
        "code": None if codes[0] < 0 else codes[0],
        "codes": codes,
        "said": words,
        "half": bool(list(out.rglob(f".*.{processes[0]}.tmp"))),
    }


if __name__ == "__main__":
    block_costs(create_model("resnet20"), (3, 8, 8))  # has torch load what would take each life a second or two
    runpy.run_path(str(Path(__file__).parents[1] / "quick_flags.py"))["derive_flags_once"]()  # then once is now
    parse(train.Args, ["digits"], prog="codinet train")
    gc.set_threshold(50_000, 20, 100)  # as in tests/conftest.py
    gc.collect()
    gc.freeze()  # or every collection of a life would look at all that is loaded, and so copy it
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
