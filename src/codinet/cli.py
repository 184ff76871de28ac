"""The command line: each verb is a module of `codinet.commands` with `Args`, a dataclass of its flags, and `run(args)`.

People get tables and progress bars; with --json, stdout gets one JSON document and nothing else. An error that the user
can fix is one line on stderr and exit code 2. Under torchrun, only local rank 0 prints. Modules of verbs import torch
inside `run`, so that help and errors in flags come at once.
"""

import codecs
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tyro

import codinet
from codinet.errors import UserError, first_line, one_line, unknown
from codinet.flags import REGISTRY, one_sentence

VERBS = {
    "train": "train a routed network to a cost budget",
    "eval": "accuracy, cost and paths of a run on its test set",
    "predict": "classify image files and show their paths",
    "analyze": "how a run distributes images over paths",
    "report": "a page of figures and tables about runs",
    "explore": "a local web page that shows how a run routes images",
    "sweep": "train many runs over budgets, margins, seeds",
    "bench": "speed of every engine, relative to the static network",
    "export": "write a run as an ONNX file",
    "data": "list, download and verify data sets",
    "models": "list the networks, and the trained ones",
}

# How to continue a command that was interrupted.
_CONTINUE = {
    "train": "continue with the same command and --resume",
    "sweep": "repeat the command to continue",
    "data": "repeat the command to continue a download",
}
_HANDLER = "codinet.ascii"  # name of the error handler for characters that stdout cannot encode
# Replacements on an ASCII-only stdout; all other characters are escaped.
_ASCII = dict(zip("×–—·█“”’─│╭╮╰╯", 'x--.#""\'-|++++', strict=True)) | {"…": "...", "±": "+-", "→": "->"}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code. `argv` is the command line without the program's name."""
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _dispatch(words), verb=words[0] if words else "")


def guarded(call: Callable[[], int], *, verb: str = "") -> int:
    """Call a command and return its exit code: 2 for an error that the user can fix, which is printed in one line.

    Args:
        call: The command.
        verb: Its name, for what an interrupt prints.
    """
    _replace_closed_streams()
    try:
        with _any_text_on_stdout():
            code = _call(call, verb)
            sys.stdout.flush()  # here, because a failure at exit would be reported as a bug
        return code
    except BrokenPipeError:
        _discard_stdout()  # nobody reads the rest
        return 141
    except OSError as error:
        _discard_stdout()
        return _print_os_error(error)


def _call(call: Callable[[], int], verb: str) -> int:
    try:
        return call()
    except UserError as error:
        _print_error(str(error))
        return 2
    except KeyboardInterrupt:
        _print_error(f"interrupted; {_CONTINUE[verb]}." if verb in _CONTINUE else "interrupted.")
        return 130
    except MemoryError:
        _print_error("Out of memory; use a smaller --batch or smaller images.")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        return _print_os_error(error)


def _print_os_error(error: OSError) -> int:
    """Print, for example, that a file name is too long, a folder is not writable, or a disk is full."""
    if error.filename is None:
        _print_error(f"{error.strerror or first_line(error)}; check where the output goes.")
    else:
        _print_error(f"{error.filename}: {error.strerror}; check the path.")
    return 2


def _replace_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by the null device.

    Otherwise a file that is opened later would get the descriptor of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


@contextlib.contextmanager
def _any_text_on_stdout() -> Iterator[None]:
    """Replace characters that stdout cannot encode instead of raising an error."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    before = stdout.errors
    stdout.reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # reconfigure also flushes
            stdout.reconfigure(errors=before)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """The error handler, for `codecs.register_error`."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(one) or one.encode("unicode_escape").decode() for one in text), error.end


codecs.register_error(_HANDLER, _in_ascii)


def _discard_stdout() -> None:
    with contextlib.suppress(OSError):  # a replaced stdout may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(sentence: str) -> None:
    if _prints():
        with contextlib.suppress(OSError):
            print(f"codinet: {one_line(sentence)}", file=sys.stderr, flush=True)


def _prints() -> bool:
    """Whether this process prints; under torchrun, one process of each machine does."""
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
    if verb == "--completion":
        print(importlib.import_module("codinet.commands.completion").script(*rest[:1]))
        return 0
    if verb not in VERBS:
        raise unknown("command", verb, VERBS)
    module = importlib.import_module(f"codinet.commands.{verb}")
    args = parse(module.Args, rest, prog=f"codinet {verb}")
    if args is not None:
        found = module.run(args) or {}  # arguments that were chosen by the command, such as the default of --out
        if _prints():
            importlib.import_module("codinet.commands.printing").print_next(verb, vars(args) | found)
    return 0


def parse(kind: type, words: list[str], *, prog: str) -> Any:
    """Parse flags.

    Args:
        kind: A dataclass whose fields are the flags.
        words: The command line after the verb.
        prog: How help and errors name the command.

    Returns:
        An instance of `kind`; None if help was requested, which is printed then. Wrong flags are a `UserError`.
    """
    message = io.StringIO()
    try:
        help_text = contextlib.nullcontext() if _prints() else contextlib.redirect_stdout(io.StringIO())
        with contextlib.redirect_stderr(message), help_text:
            config = (tyro.conf.OmitArgPrefixes,)
            return tyro.cli(kind, prog=prog, args=words, config=config, registry=REGISTRY)
    except SystemExit as stop:
        if stop.code in (0, None):
            return None
        raise UserError(f"{one_sentence(message.getvalue())}; see {prog} --help.") from None


_COMPLETION = "codinet --completion bash (or zsh, fish) prints a completion script."


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in VERBS.items())
    return f"{codinet.__doc__}\n\n{verbs}\n\ncodinet VERB --help shows its flags. {_COMPLETION}"
