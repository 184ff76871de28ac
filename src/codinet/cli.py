"""The command line: verb → module of `codinet.commands`, one table.

A verb's module has `Args`, a dataclass that is its flags, and `run(args)`. People get tables and progress
bars; with --json, one JSON document on stdout and nothing else there. What is the user's to fix ends in one
sentence on stderr and exit code 2.
"""

import contextlib
import importlib
import io
import re
import sys
from typing import Any

import tyro

import codinet
from codinet.errors import UserError, unknown

VERBS = {
    "train": "train a routed network to a budget",
    "eval": "accuracy, cost and paths of a trained run",
    "predict": "class, confidence and path of image files",
    "data": "list, download and verify data sets",
    "models": "the networks that can be trained",
}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"codinet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("codinet: interrupted; a training run goes on with the same command and --resume.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone; there is nobody left to tell
        return 141


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
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
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=prog, args=words, config=(tyro.conf.OmitArgPrefixes,), **known)
    except SystemExit as stop:
        if stop.code in (0, None):
            return None
        raise UserError(f"{_one_sentence(said.getvalue())}; see {prog} --help.") from None


def _one_sentence(box: str) -> str:
    """The first part of tyro's framed message, without the frame."""
    lines = [line.strip("│ ") for line in box.splitlines()]
    first: list[str] = []
    for line in lines:
        if re.fullmatch(r"[─╭╰].*", line):
            if first:
                break
            continue
        first.append(line)
    return " ".join(first).strip().rstrip(".") or "The command line could not be read"


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in VERBS.items())
    return f"{codinet.__doc__}\n\n{verbs}\n\ncodinet VERB --help tells a verb's flags."
