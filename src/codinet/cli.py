"""The command line: verb → module of `codinet.commands`, one table.

A verb's module has `Args`, a dataclass that is its flags, and `run(args)`. People get tables and progress
bars; with --json, one JSON document on stdout and nothing else there. What is the user's to fix ends in one
sentence on stderr and exit code 2. Of the processes that torchrun starts on a machine the first one speaks.
"""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import tyro

import codinet
from codinet.errors import UserError, unknown
from codinet.flags import READING, one_sentence

VERBS = {
    "train": "train a routed network to a budget",
    "eval": "accuracy, cost and paths of a trained run",
    "predict": "class, confidence and path of image files",
    "analyze": "how a run's paths are distributed",
    "report": "one page of figures and tables on runs",
    "explore": "a local page on which to see how a run routes images",
    "sweep": "many runs over budgets, margins, seeds",
    "bench": "speed of every engine against the static net",
    "export": "a trained run as an ONNX file",
    "data": "list, download and verify data sets",
    "models": "the networks that can be trained, and those that are",
    "zoo": "trained networks that come along; adding one",
    "results": "tables of what runs came to, beside the paper's",
}


def main(argv: list[str] | None = None) -> int:
    try:
        words = sys.argv[1:] if argv is None else argv
        code = guarded(lambda: _dispatch(words))
        sys.stdout.flush()  # here, not at exit, where a reader that has gone would be reported as an error
        return code
    except BrokenPipeError:
        # Whoever read our output has gone; the rest of it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def guarded(call: Callable[[], int]) -> int:
    """The call's exit code; what is the user's to fix, said in one sentence, is 2."""
    try:
        return call()
    except UserError as error:
        _tell(str(error))
        return 2
    except KeyboardInterrupt:
        _tell("interrupted; a training run goes on with the same command and --resume.")
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        # What the system refuses wherever a path is looked at: a name too long, a folder that may not be entered.
        _tell(f"{error.filename or 'a file'}: {error.strerror or error}; check the path.")
        return 2


def _tell(sentence: str) -> None:
    if _speaks():
        print(f"codinet: {sentence}", file=sys.stderr)


def _speaks() -> bool:
    """Whether this process tells what all of its machine come to."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"codinet {codinet.__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        raise unknown("command", verb, VERBS)
    module = importlib.import_module(f"codinet.commands.{verb}")
    default = module.defaults(rest) if hasattr(module, "defaults") else None
    args = parse(module.Args, rest, prog=f"codinet {verb}", default=default)
    if args is not None:
        module.run(args)
    return 0


def parse(kind: type, words: list[str], *, prog: str, default: Any = None) -> Any:
    """The flags as a value of `kind`; None when help was asked for and printed."""
    said = io.StringIO()
    known = {} if default is None else {"default": default}
    try:
        help_text = contextlib.nullcontext() if _speaks() else contextlib.redirect_stdout(io.StringIO())
        with contextlib.redirect_stderr(said), help_text:
            config = (tyro.conf.OmitArgPrefixes,)
            return tyro.cli(kind, prog=prog, args=words, config=config, registry=READING, **known)
    except SystemExit as stop:
        if stop.code in (0, None):
            return None
        raise UserError(f"{one_sentence(said.getvalue())}; see {prog} --help.") from None


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in VERBS.items())
    return f"{codinet.__doc__}\n\n{verbs}\n\ncodinet VERB --help tells a verb's flags."
