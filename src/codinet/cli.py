"""The command line: verb → module of `codinet.commands`, one table.

A verb's module has `Args`, a dataclass that is its flags, and `run(args)`. People get tables and progress bars; with
--json, one JSON document on stdout and nothing else there. An error that the user can fix is one line on stderr and
exit code 2. Of the processes that torchrun starts on a machine, only local rank 0 prints.
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
from codinet.flags import READING, one_sentence

VERBS = {
    "train": "train a routed network to a budget",
    "eval": "accuracy, cost and paths of a trained run",
    "predict": "class, confidence and path of image files",
    "analyze": "how a run's paths are distributed",
    "report": "one page of figures and tables about runs",
    "explore": "a local page that shows how a run routes images",
    "sweep": "many runs over budgets, margins, seeds",
    "bench": "speed of every engine against the static net",
    "export": "a trained run as an ONNX file",
    "data": "list, download and verify data sets",
    "models": "the networks that can be trained, and the trained ones",
    "zoo": "trained networks that come with codinet; adding one",
    "results": "result tables, next to the paper's",
}


_HANDLER = "codinet.ascii"  # of characters that stdout lacks
# Stand-ins for characters that an ASCII-only stdout does not have; all others are escaped.
_ASCII = dict(zip("×–—·█“”’─│╭╮╰╯", 'x--.#""\'-|++++', strict=True)) | {"…": "...", "±": "+-", "→": "->"}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _dispatch(words))


def guarded(call: Callable[[], int]) -> int:
    """Run a command and return its exit code: 2 for an error that the user can fix, which is printed in one line."""
    _replace_closed_streams()
    try:
        with _any_text_on_stdout():
            code = _guarded(call)
            sys.stdout.flush()  # here, because at exit Python would report a failure as a bug
        return code
    except BrokenPipeError:
        _discard_stdout()  # the reader has gone, so the rest of the output goes nowhere
        return 141
    except OSError as error:
        _discard_stdout()
        return _refused_by_system(error)


def _guarded(call: Callable[[], int]) -> int:
    try:
        return call()
    except UserError as error:
        _tell(str(error))
        return 2
    except KeyboardInterrupt:
        _tell("interrupted; a training run goes on with the same command and --resume.")
        return 130
    except MemoryError:
        _tell("The memory of this machine is too small for this; use a smaller --batch or smaller images.")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        return _refused_by_system(error)


def _refused_by_system(error: OSError) -> int:
    """For example a file name that is too long, a folder without permission, a full disk."""
    if error.filename is None:
        _tell(f"{error.strerror or first_line(error)}; check where the output goes.")
    else:
        _tell(f"{error.filename}: {error.strerror}; check the path.")
    return 2


def _replace_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by the null device.

    In this order, because a stream takes the lowest free descriptor: it must not be that of a file opened later.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


@contextlib.contextmanager
def _any_text_on_stdout() -> Iterator[None]:
    """Within, characters that the encoding of stdout lacks are replaced, and no error."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    before = stdout.errors
    stdout.reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it flushes, too
            stdout.reconfigure(errors=before)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(one) or one.encode("unicode_escape").decode() for one in text), error.end


codecs.register_error(_HANDLER, _in_ascii)


def _discard_stdout() -> None:
    with contextlib.suppress(OSError):  # a stand-in for stdout has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(sentence: str) -> None:
    if _speaks():
        with contextlib.suppress(OSError):
            print(f"codinet: {one_line(sentence)}", file=sys.stderr, flush=True)


def _speaks() -> bool:
    """Whether this process prints for all processes of its machine."""
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
    """The flags as a value of `kind`; None when help was requested and printed."""
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
    return f"{codinet.__doc__}\n\n{verbs}\n\ncodinet VERB --help shows its flags."
