"""Executes the shell commands of the documentation, in this process where possible.

A `codinet` command runs as it is printed, up to the replacements of `INSTEAD` and `SMALLER`. The printed words are
parsed first, and those of `train` and `sweep` are resolved to a config and a plan. A command that is not known fails.
"""

import contextlib
import glob
import importlib.util
import io
import json
import re
import runpy
import shutil
import signal
import sys
import threading
import tomllib
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, joined, words_of

from codinet.cli import VERBS, main, parse
from codinet.commands import sweep, train
from codinet.commands.config_file import with_file
from codinet.resolving import resolve
from codinet.sweep import from_static

# Names in the documentation, and what stands for them here.
INSTEAD = {
    "RUN": "runs/mine",
    "FOLDER": "new-photos",
    "zoo:cifar10-resnet110-056": "zoo:cifar10-resnet32-065",
    "digits": "few.npz",
    "pictures": "photos",
    "flowers": "photos",
    "/data/imagenet": "photos",
    "timm:convnext_atto": "timm:test_convnext",
    "timm:convnext*": "timm:convnext_[an]*",
    "resnet32": "resnet14",
    "resnet50": "resnet14",
    "resnet110": "resnet14",
    "cuda": "cpu",
    "bfloat16": "float32",
    "kernels": "eager",
}
# Flags that make a command short; they replace those of the command.
SMALLER: dict[str, dict[str, str | None]] = {
    "train": {"--epochs": "1", "--finetune": "0", "--batch": "10", "--image-size": "32"},
    "bench": {"--rounds": "1", "--images": "2", "--engines": "branch", "--batch": "1", "--threads": "1"},
    "bench --train": {"--rounds": "1", "--batch": "2", "--threads": "1"},
    "report": {"--no-tsne": None, "--no-time": None},
    "explore": {"--port": "0"},
    "tools.predict_speed": {"--rounds": "1", "--batch": "2"},
    "tools.export_speed": {"--images": "2", "--turn": "2"},
    "tools.cpu_speed": {"--rounds": "1", "--images": "2", "--batch": "2", "--threads": "1"},
}
# Each run of a sweep is a process of its own, which takes seconds. So a sweep is planned and not started; a Python
# block of docs/sweep.md starts one.
PLANNED = ("sweep",)
# Expensive commands that leave nothing that other commands of a page need: of those with the same key, one runs per
# process, and the others are parsed.
ONCE: dict[str, Callable[[list[str]], str]] = {
    "report": lambda words: "report",
    "bench": lambda words: "bench --train" if "--train" in words else f"bench {words[1]}",
}
# Variables that Slurm, or a script of the documentation, sets.
VARIABLES = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "first,second", "first": "first"}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


class Shell:
    """Runs the commands of one page in the current folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, given: set[Path], zoo: Path, seen: set[str]) -> None:
        """
        Args:
            monkeypatch: Of the test.
            given: Folders that are here before the page begins; a command that writes one of them may replace it.
            zoo: A zoo whose networks were trained on the data in the folder data.
            seen: The expensive commands that have run in this process.
        """
        self.monkeypatch, self.given, self.zoo, self.seen = monkeypatch, given, zoo, seen
        self.output = ""  # of the last command

    def run(self, line: str) -> None:
        """Run a line; an error if it is not known, or if it fails."""
        line = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda name: VARIABLES[name[1]], line)
        if assigned := re.fullmatch(r"(\w+)=\$\(scontrol show hostnames .* \| head -n 1\)", line):
            assert assigned[1] in VARIABLES
            return
        for words in joined(words_of(line)):
            self._run_words(words)

    def _run_words(self, words: list[str]) -> None:
        redirect = next((word for word in words if word in (">", ">>")), None)
        target = None
        if redirect:
            words, (target,) = words[: (at := words.index(redirect))], words[at + 1 :]
        program, *rest = words
        handler = HANDLERS.get(program)
        assert handler is not None, f"the test does not know how to run {program}"
        self.output = ""
        handler(self, rest)
        if target is not None:
            with Path(target).expanduser().open("a" if redirect == ">>" else "w") as file:
                file.write(self.output)

    # Commands that really run

    def codinet(self, words: list[str]) -> None:
        if not words or words[0] not in VERBS:
            self._main(words)
            return
        verb = words[0]
        resolved(words)
        if verb in PLANNED and "--list" not in words:
            return
        words = [verb, *smaller(verb, replaced(words[1:]))]
        if verb in ONCE:
            key = ONCE[verb](words)
            if key in self.seen:
                return
            self.seen.add(key)
        with self.monkeypatch.context() as patch:
            if "--data-root" in words and any(word.startswith("zoo:") for word in words):
                patch.setenv("CODINET_ZOO", str(self.zoo))
            if verb == "explore":
                self._explore(words)
                return
            self._make_way(words)
            self._main(words)

    def _main(self, words: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        assert code == 0, f"codinet {' '.join(words)}: {err.getvalue()}"
        self.output = out.getvalue() + err.getvalue()
        if "--json" in words:
            json.loads(out.getvalue())

    def _make_way(self, words: list[str]) -> None:
        """Remove a folder that the command writes, if it was here before the page began."""
        out = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if words[0] == "train" and out in self.given and "--resume" not in words:
            shutil.rmtree(out)
            self.given.discard(out)

    def _explore(self, words: list[str]) -> None:
        """Load the page as a browser does, then interrupt the command."""
        opened: list[str] = []
        self.monkeypatch.setattr(webbrowser, "open", opened.append)
        out, err, page, ended = io.StringIO(), io.StringIO(), {}, threading.Event()

        def visit() -> None:
            try:
                while not (address := re.search(r"http://\S+", out.getvalue())):
                    if ended.wait(0.02):
                        return
                for path in ("", "api/run"):
                    with urllib.request.urlopen(address[0] + path, timeout=30) as answer:
                        page[path] = answer.read()
            finally:
                if not ended.is_set():
                    signal.raise_signal(signal.SIGINT)

        visitor = threading.Thread(target=visit, daemon=True)
        self.monkeypatch.setenv("no_proxy", "*")
        visitor.start()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        ended.set()
        visitor.join(30)
        assert code == 0, err.getvalue()
        assert b"<html" in page[""]
        assert json.loads(page["api/run"])
        assert bool(opened) == ("--open" in words)

    def torchrun(self, words: list[str]) -> None:
        """Check the flags of torchrun, then run the command in one process."""
        from torch.distributed.run import get_args_parser

        args = get_args_parser().parse_args(words)
        assert args.module
        assert args.training_script == "codinet"
        assert "," not in args.nproc_per_node
        self.codinet(args.training_script_args)

    def python(self, words: list[str]) -> None:
        option, module, *rest = words
        assert option == "-m"
        assert module.startswith("tools."), f"the test does not know how to run python -m {module}"
        rest = with_flags([word for name in replaced(rest) for word in globbed(name)], SMALLER.get(module, {}))
        file = importlib.util.find_spec(module)
        assert file is not None, f"{module} does not exist"
        out = io.StringIO()
        with self.monkeypatch.context() as patch, contextlib.redirect_stdout(out):
            for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
                patch.delitem(sys.modules, name)  # Python warns of a module that is imported and run
            if module == "tools.zoo_add":
                patch.setenv("CODINET_ZOO", "zoo")
            patch.setattr(sys, "argv", [module, *rest])
            code: Any = None
            try:
                runpy.run_module(module, run_name="__main__")
            except SystemExit as stop:
                code = stop.code
            assert code in (0, None), f"python -m {module} {' '.join(rest)}: {out.getvalue()}"
        self.output = out.getvalue()

    def echo(self, words: list[str]) -> None:
        self.output = " ".join(words) + "\n"

    def mkdir(self, words: list[str]) -> None:
        option, *folders = words
        assert option == "-p"
        for folder in folders:
            Path(folder).expanduser().mkdir(parents=True, exist_ok=True)

    def srun(self, words: list[str]) -> None:
        HANDLERS[words[0]](self, words[1:])

    # Commands of which only the arguments are checked: they would need the internet, a new environment or an hour

    def make(self, words: list[str]) -> None:
        (target,) = words
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), f"make has no target {target}"

    def pip(self, words: list[str]) -> None:
        install, *rest = words
        assert install == "install"
        what = [word for word in rest if not word.startswith("-") and not word.startswith("https://")]
        for name in what:
            if local := re.fullmatch(r"\.(?:\[([\w,]+)\])?", name):
                extras = set(local[1].split(",")) if local[1] else set()
                assert extras <= set(PYPROJECT["project"]["optional-dependencies"]), f"no such extra: {name}"
            else:
                package, _, version = name.partition("==")
                pinned = (ROOT / "constraints.txt").read_text()
                assert f"\n{package}=={version.partition('+')[0]}\n" in pinned, f"{name} is not what we test with"
        for address in (word for word in rest if word.startswith("https://")):
            assert address in MAKEFILE

    def git(self, words: list[str]) -> None:
        clone, source, self._clone = words
        assert (clone, source) == ("clone", "REPOSITORY")

    def cd(self, words: list[str]) -> None:
        assert words == [self._clone], "cd leads to the clone"

    def source(self, words: list[str]) -> None:
        (folder,) = re.findall(r"^VENV := (\S+)", MAKEFILE, re.MULTILINE)
        assert words == [f"{folder}/bin/activate"]

    def tensorboard(self, words: list[str]) -> None:
        option, _folder = words
        assert option == "--logdir"
        assert "tensorboard" in PYPROJECT["project"]["optional-dependencies"]


_NAMES = "codinet torchrun python echo mkdir srun make pip git cd source tensorboard"
HANDLERS: dict[str, Callable[[Shell, list[str]], None]] = {name: getattr(Shell, name) for name in _NAMES.split()}


def resolved(words: list[str]) -> Any:
    """The parsed flags of a verb; for train the config, for sweep the plan."""
    verb, *rest = words
    module = importlib.import_module(f"codinet.commands.{verb}")
    args = parse(module.Args, [word for name in rest for word in globbed(name)], prog=f"codinet {verb}")
    if isinstance(args, train.Args):
        args = with_file(args) if args.config is not None else args
        assert args.source
        return resolve(train.config_from(args), gpu=False)
    if isinstance(args, sweep.Args) and not args.list:
        planned = sweep._plan(args, gpu=False)
        assert planned
        return from_static(planned) if args.from_static else planned
    return args


def replaced(words: list[str]) -> list[str]:
    """The words with the names of `INSTEAD`, and with the files that a pattern matches."""
    return [part for word in words for part in globbed(INSTEAD.get(word, word))]


def globbed(word: str) -> list[str]:
    """The files that a pattern matches, as in a shell."""
    return (sorted(glob.glob(word)) or [word]) if "*" in word else [word]


def smaller(verb: str, words: list[str]) -> list[str]:
    """The words with the flags of `SMALLER`."""
    flags = dict(SMALLER.get("bench --train" if verb == "bench" and "--train" in words else verb, {}))
    if verb == "train":
        if "--image-size" not in words:
            del flags["--image-size"]
        if words[0] == "cifar10":  # others get their network from a file, or start from the zoo
            flags["--arch"] = "resnet14"
        if "imagenet" in words:  # the preset
            flags |= {"--arch": "resnet14", "--image-size": "32"}
    if importlib.util.find_spec("tensorboard") is None:  # an extra that make test does not install
        words = [word for word in words if word != "--tensorboard"]
    return with_flags(words, flags)


def with_flags(words: list[str], flags: dict[str, str | None]) -> list[str]:
    """The words with these flags; values that the words give to them are removed."""
    kept, skipping = [], False
    for word in words:
        if word.startswith("--"):
            skipping = word in flags
        if not skipping:
            kept.append(word)
    for name, value in flags.items():
        kept += [name] if value is None else [name, value]
    return kept
