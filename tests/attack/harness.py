"""What an attack is, and how one of its inputs is tried.

An attack makes one bad (or odd) input from a seed and hands it to the product. The product must give a correct
answer or raise `UserError` with one line of text, within bounded time and memory. Anything else is a finding.
`make test` tries a few seeds of every attack (`test_attacks.py`); `make attack` tries tens of thousands
(`python -m tests.attack`).
"""

import random
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from codinet.errors import UserError

MIB = 2**20

Verdict = Literal["answer", "refused", "traceback", "memory"]


@dataclass(frozen=True)
class Attack:
    """One kind of bad input.

    `attempt(rng, folder)` makes an input from `rng` (writing files only into `folder`, which is empty), gives it to
    the product and returns if the answer is right. It lets `UserError` through, and asserts what a right answer is.
    """

    name: str
    attempt: Callable[[random.Random, Path], None]
    seconds: float = 10.0  # one attempt may take at most this long
    memory: int = 512 * MIB  # resident memory may grow by at most this much during one attempt
    quick: int = 20  # seeds tried by `make test`
    weight: float = 1.0  # share of the inputs of `make attack`; lower it for slow attempts


class Outcome(NamedTuple):
    verdict: Verdict
    detail: str = ""


def try_seed(attack: Attack, seed: int) -> Outcome:
    """Try one input of an attack in this process."""
    before = _reset_peak()
    with tempfile.TemporaryDirectory(prefix="codinet-attack-", ignore_cleanup_errors=True) as folder:
        try:
            attack.attempt(random.Random(f"{attack.name} {seed}"), Path(folder))
            outcome = Outcome("answer")
        except UserError as error:
            outcome = _check_sentence(str(error))
        except Exception:
            outcome = Outcome("traceback", traceback.format_exc())
    growth = _status("VmHWM") - before
    if growth > attack.memory and outcome.verdict in ("answer", "refused"):
        return Outcome("memory", f"memory grew by {growth / MIB:.0f} MiB, limit {attack.memory / MIB:.0f} MiB")
    return outcome


def _check_sentence(sentence: str) -> Outcome:
    if not sentence.strip() or len(sentence.splitlines()) != 1 or not sentence.isprintable():
        return Outcome("traceback", f"the error is not one printable line: {sentence!r}")
    return Outcome("refused", sentence)


def _reset_peak() -> int:
    """Forget the peak of resident memory; returns what is resident now. Linux only, 0 elsewhere."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _status("VmRSS")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
