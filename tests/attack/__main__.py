"""`make attack`: try tens of thousands of bad inputs and a thousand kills, and write a table of the outcomes.

    python -m tests.attack --inputs 50000 --kills 1000 --jobs 2 --table attack.md

Every attack runs in processes of its own, with a limit on time and memory for each input. A process that hangs is ended
with a traceback and is a finding; its attack continues with the next seed. Exits with 1 if there is any finding.
"""

import argparse
import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.catalogue import ATTACKS
from tests.attack.harness import Attack, try_seed
from tests.attack.kills import SCENARIOS, Scenario, campaign

CHUNK = 1000  # inputs that one process tries, at most
SLACK = 2**31  # address space beyond an attack's memory limit, for what is mapped and never touched


@dataclass
class Tally:
    """The outcomes of one attack or of one kill scenario."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="first seed; another one tries other inputs")
    parser.add_argument("--only", default="", help="only attacks and kill scenarios whose name contains this")
    parser.add_argument("--table", type=Path, help="write the table to this file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, first, count = args.worker
        return work(name, int(first), int(count))
    began = time.monotonic()
    chosen = [attack for attack in ATTACKS if args.only in attack.name]
    weights = sum(attack.weight for attack in chosen)
    scenarios = [scenario for scenario in SCENARIOS if args.only in scenario.name]
    with ThreadPoolExecutor(args.jobs) as pool:
        kills = [
            pool.submit(_kill, scenario, -(-args.kills // len(scenarios)), args.seed)
            for scenario in scenarios
            if args.kills
        ]
        counts = [-int(-args.inputs * attack.weight // weights) for attack in chosen if args.inputs]
        tallies = list(pool.map(lambda attack, count: _try(attack, args.seed, count), chosen[: len(counts)], counts))
        killed = [kill.result() for kill in kills]
    text = _table(tallies, killed, time.monotonic() - began)
    print(text)
    if args.table:
        args.table.write_text(text)
    return 1 if any(tally.findings for tally in [*tallies, *killed]) else 0


def _try(attack: Attack, first: int, count: int) -> Tally:
    """Try `count` seeds of an attack, in processes of at most `CHUNK`."""
    tally, began, end = Tally(attack.name), time.monotonic(), first + count
    while first < end:
        number = min(CHUNK, end - first)
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaints:
            words = [sys.executable, "-m", "tests.attack", "--worker", attack.name, str(first), str(number)]
            try:
                code = subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=complaints,
                    timeout=number * attack.seconds + 120,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
            said.seek(0)
            complaints.seek(0)
            lines = [json.loads(line) for line in said.read().splitlines() if line.startswith(b"{")]
            complaint = complaints.read().decode(errors="replace")
        for line in lines:
            tally.outcomes[line["verdict"]] += 1
            if line["verdict"] not in ("answer", "refused"):
                tally.findings.append(f"{attack.name} seed {line['seed']}: {line['detail']}")
        first += len(lines)
        if len(lines) < number:  # the next seed ended the process
            tally.outcomes["hang or crash"] += 1
            tally.findings.append(f"{attack.name} seed {first}: exit code {code}\n{complaint[-3000:]}")
            first += 1
    tally.seconds = time.monotonic() - began
    print(f"{attack.name}: {dict(tally.outcomes)} in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    return tally


def work(name: str, first: int, count: int) -> int:
    """The worker: try seeds one after the other and print a JSON document for each."""
    attack = next(attack for attack in ATTACKS if attack.name == name)
    with os.fdopen(os.dup(1), "w") as answers:  # attempts may close or write to stdout
        os.dup2(2, 1)
        faulthandler.dump_traceback_later(120, exit=True)
        try_seed(attack, first)  # builds what all attempts share, outside the limits
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = mapped + attack.memory + SLACK
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for seed in range(first, first + count):
            faulthandler.dump_traceback_later(attack.seconds, exit=True)
            outcome = try_seed(attack, seed)
            faulthandler.cancel_dump_traceback_later()
            print(
                json.dumps({"seed": seed, "verdict": outcome.verdict, "detail": outcome.detail}),
                file=answers,
                flush=True,
            )
    return 0


def _kill(scenario: Scenario, number: int, seed: int) -> Tally:
    tally, began = Tally(scenario.name), time.monotonic()
    result = campaign(scenario, number, seed)
    tally.outcomes, tally.findings, tally.seconds = result.counts, result.findings, time.monotonic() - began
    print(f"{tally.name}: {dict(tally.outcomes)} in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    return tally


def _table(tallies: list[Tally], killed: list[Tally], seconds: float) -> str:
    bad = ("traceback", "memory", "hang or crash")
    rows = [
        "| attack | inputs | right answer | refused | traceback | over memory | hang or crash |",
        "|---|" + "---:|" * 6,
    ]
    total: Counter[str] = Counter()
    for tally in tallies:
        total += tally.outcomes
        rows.append(_row(tally.name, tally.outcomes, bad))
    rows.append(_row("**all**", total, bad))
    rows += [
        "",
        "| training that is killed | kills | runs finished and bit-exact | runs lost |",
        "|---|---:|---:|---:|",
    ]
    ended: Counter[str] = Counter()
    for tally in killed:
        ended += tally.outcomes
        rows.append(
            f"| {tally.name} | {tally.outcomes['kills']:,} | {tally.outcomes['same']:,} | {tally.outcomes['lost']:,} |"
        )
    rows.append(f"| **all** | {ended['kills']:,} | {ended['same']:,} | {ended['lost']:,} |")
    findings = [finding for tally in [*tallies, *killed] for finding in tally.findings]
    rows += ["", f"{sum(total.values()):,} inputs and {ended['kills']:,} kills in {seconds / 60:.0f} minutes."]
    return "\n".join([*rows, "", *(f"```\n{finding}\n```" for finding in findings)]) + "\n"


def _row(name: str, outcomes: Counter[str], bad: tuple[str, ...]) -> str:
    numbers = [sum(outcomes.values()), outcomes["answer"], outcomes["refused"], *(outcomes[kind] for kind in bad)]
    return f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


if __name__ == "__main__":
    sys.exit(main())
