"""The page docs/first-hour.md: what `tools/first_hour.py` did, what came out, how long it took."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MINUTES, ACCURACY, BUDGET = 20.0, 90.0, 0.6  # the targets
CORES = 2  # that the target for the time is about
TOLERANCE = 0.02  # of the cost share, which is calibrated on training photos and measured on test photos
SHOWN, WIDTH = (9, 16), 160  # first and last lines, and columns, of an output
# Where packages come from differs between machines, and pip's notices are about pip.
_SKIPPED = re.compile(
    r"\s*(Looking in|Downloading|Using cached|Collecting|Processing|WARNING: Location|\[notice\]) |\s+━"
)
_URL = re.compile(r"(?:https?|file)://(?!127\.0\.0\.1|download\.pytorch\.org)[^\s'\"]+")
_PATH = re.compile(r"(?<![\w./:…])/(?:[^\s/:'\"]+/)+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Record:
    """A command that was run."""

    title: str
    command: str
    output: str
    seconds: float
    shown: tuple[int, int] = SHOWN  # how many lines of its output, at the start and at the end
    file: str | None = None  # a program that was written first
    program: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the photos gave."""

    accuracy: float  # in percent, of the test photos
    cost_share: float
    tested: int
    right: int  # of the new photos
    predicted: int
    onnx_same: int  # of the answers of ONNX Runtime: those with the class of `codinet predict`
    onnx: int


@dataclass(frozen=True)
class Summary:
    """What the page says above the commands."""

    outcome: Outcome
    environment: str  # commit, date and versions
    cores: int
    load: float  # of the machine before the first command


@dataclass(frozen=True)
class Sanitizer:
    """Removes from a text what belongs to one machine: folders, addresses of package indexes, colours."""

    clone: Path
    folder: Path
    repository: Path
    prepare: Path

    def __call__(self, text: str) -> str:
        """The text with paths relative to the clone."""
        for path, name in (
            (f"{self.clone}/", ""),
            (str(self.clone), "."),
            (f"{self.folder}/", "../"),
            (str(self.folder), ".."),
            (str(self.prepare), "PREPARE"),
            (str(self.repository), "REPOSITORY"),
        ):
            text = text.replace(path, name)
        lines = [_COLOUR.sub("", line).split("\r")[-1].rstrip() for line in text.split("\n")]
        kept = "\n".join(line for line in lines if not _SKIPPED.match(line))
        return _PATH.sub("…/", _URL.sub("URL", kept))


def shorten(text: str, shown: tuple[int, int] = SHOWN) -> list[str]:
    """The first and last lines of an output, each cut to a readable width."""
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in text.split("\n") if line.strip()]
    first, last = shown
    left_out = len(lines) - first - last
    if left_out <= 1:
        return lines
    return [*lines[:first], f"… {left_out} lines …", *lines[-last:]]


def duration(seconds: float) -> str:
    """For example `48 s` or `2.5 minutes`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def targets(records: list[Record], summary: Summary) -> list[tuple[str, str, str]]:
    """Each target, what was found, and `met`, `missed` or why it cannot be judged."""
    total, found = sum(record.seconds for record in records), summary.outcome
    in_time = "met" if total < 60 * MINUTES else "missed"
    if summary.cores > CORES:
        in_time = f"not judged: {summary.cores} cores"
    accurate = found.accuracy >= ACCURACY and found.cost_share <= BUDGET + TOLERANCE
    return [
        (
            f"all commands in less than {MINUTES:g} minutes on two cores",
            f"{total / 60:.1f} minutes on {summary.cores} cores",
            in_time,
        ),
        (
            f"at least {ACCURACY:g} % on the photos at a budget of {BUDGET:g}",
            f"{found.accuracy:.1f} % of {found.tested} test photos at {found.cost_share:.3f} of the static cost",
            "met" if accurate else "missed",
        ),
        (
            "ONNX Runtime without torch gives the classes of `codinet predict`",
            f"{found.onnx_same} of {found.onnx} photos",
            "met" if found.onnx_same == found.onnx == found.predicted else "missed",
        ),
    ]


def missed(records: list[Record], summary: Summary) -> list[str]:
    """The targets that are missed, with what was found."""
    return [f"{name}: {found}" for name, found, verdict in targets(records, summary) if verdict == "missed"]


def render(records: list[Record], summary: Summary, clean: Sanitizer) -> str:
    """The page.

    Args:
        records: The commands in their order.
        summary: What came out.
        clean: Removes what belongs to the machine.

    Returns:
        The page in Markdown.
    """
    found = summary.outcome
    share = 100 * found.right / found.predicted
    parts = [
        "# The first hour",
        "Everything that a new user does first, in a fresh clone: install, demo, train on 300 photos, look at the "
        "result,\nexport it, use it without torch, route a network of timm. `tools/first_hour.py` ran these commands "
        "and wrote this page:",
        "```bash\npython -m tools.first_hour FOLDER --prepare PREPARE      # in the repository\n```",
        f"{summary.environment}.\nA CPU with {summary.cores} cores; load average {summary.load:.1f} before the first "
        "command.",
        _table(("target", "found", ""), [_strong(row) for row in targets(records, summary)]),
        "The photos are the first three classes of Imagenette in alphabetical order of their folders, 100 of each, "
        "evenly spaced\nin the order of the files (PREPARE unpacks them). codinet takes every fifth as a test photo. "
        "`new-photos` are others, of\nImagenette's validation part, which training never reads: "
        f"{share:.1f} % of them ({found.right} of {found.predicted}) are classified correctly.\nThe command is the "
        "default one, with the default seed.",
        _table(
            ("step", "time"),
            [(record.title, duration(record.seconds)) for record in records]
            + [("**all**", f"**{duration(sum(record.seconds for record in records))}**")],
        ),
        "Long outputs are shortened, and paths are relative to the clone. From the demo on, the environment is active "
        "(`source\n.venv/bin/activate`), in the two steps about ONNX Runtime it is `onnx-env`.",
    ]
    for record in records:
        parts.append(f"## {record.title}, {duration(record.seconds)}")
        if record.file:
            parts.append(f"`{record.file}`:\n\n```python\n{record.program.rstrip()}\n```")
        parts.append(
            "\n".join(["```console", f"$ {record.command}", *shorten(clean(record.output), record.shown), "```"])
        )
        parts.extend(_PICTURES.get(record.title, ()))
    return "\n\n".join(parts) + "\n"


def _pictures(name: str) -> tuple[str, ...]:
    """The pictures that tools/screenshots.py takes."""
    return (
        f"![The {name}, light](images/{name}-light.png)\n![The {name}, dark](images/{name}-dark.png)",
        f"![The {name} on a phone, light](images/{name}-phone.png)\n"
        f"![The {name} on a phone, dark](images/{name}-phone-dark.png)",
    )


_PICTURES = {"Install, demo": _pictures("report"), "Explore": _pictures("explorer")}  # which show its result


def _strong(row: tuple[str, str, str]) -> tuple[str, str, str]:
    return row if row[2] == "met" else (*row[:2], f"**{row[2]}**")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
