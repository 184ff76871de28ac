"""Play a new user's first hour in a fresh clone, and write down what it shows: docs/first-hour.md and docs/images.

    python -m tools.first_hour FOLDER --prepare ../shared/data/prepare.py

FOLDER must be new or empty; it gets the clone, its environments and its runs. `--prepare` is a program that unpacks
Imagenette (`prepare.py imagenette OUT` writes OUT/imagenette/{train,val}/CLASS/*.JPEG). The commands are those of the
README and docs/, which a test checks. Every command has a time limit. The exit code is 1 if a target is missed.
"""

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from time import monotonic, sleep

import tyro

from codinet.cli import guarded
from codinet.errors import UserError
from tools import first_hour_page as page
from tools.screenshots import find_chromium

ROOT = Path(__file__).parents[1]
RUN = "runs/photos-resnet32-routed-seed0"
# The first three classes of Imagenette in alphabetical order of their folders.
CLASSES = {"n01440764": "tench", "n02102040": "springer-spaniel", "n02979186": "cassette-player"}
PHOTOS, NEW = 100, 50  # of each class: to train and test, and to predict
VERSIONS = ("torch", "timm", "torchvision", "onnxruntime", "numpy", "pillow")


@dataclass(frozen=True)
class Step:
    """A command of the first hour."""

    title: str
    command: str  # as the documentation gives it
    minutes: float  # time limit
    given: Mapping[str, str] = field(default_factory=dict)  # what stands for words of the command
    venv: str = ".venv"  # the active environment; "" is none
    program: tuple[str, Callable[[Path], str]] | None = None  # a file to write first, and its text for a clone
    shown: tuple[int, int] = page.SHOWN  # how many lines of its output, at the start and at the end
    before: Callable[[Path], None] | None = None  # called with the clone; not timed
    ask: Callable[[str, Path], str] | None = None  # for a server: called with its address, returns its answer

    @property
    def typed(self) -> str:
        """The command as the user types it."""
        return " ".join(self.given.get(word, word) for word in self.command.split(" "))


def onnx_example(clone: Path) -> str:
    """The program of docs/inference.md that needs neither codinet nor torch."""
    text = (clone / "docs" / "inference.md").read_text()
    return re.findall(r"```python\n(.*?)```", text[text.index("A complete program") :], re.DOTALL)[0]


def timm_example(_clone: Path) -> str:
    """A program that routes and trains a network of timm on the photos."""
    return (ROOT / "tools" / "first_hour_network.py").read_text()


def ask_explorer(url: str, clone: Path) -> str:
    """Send a photo to the explorer, as the page does; return the request and the start of the answer."""
    photo = min((clone / "new-photos").iterdir())
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{url}api/route?threshold=0.5", photo.read_bytes(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return f"POST {request.full_url} with new-photos/{photo.name}:\n{answer.read().decode()}"


def choose_photos(clone: Path) -> None:
    """Copy evenly spaced photos of each class: of `train` into photos/CLASS, of `val` into new-photos."""
    for code, name in CLASSES.items():
        for part, number, pattern in (
            ("train", PHOTOS, f"photos/{name}/{{:03}}.jpg"),
            ("val", NEW, f"new-photos/{name}-{{:03}}.jpg"),
        ):
            found = sorted((clone / "data" / "imagenette" / part / code).glob("*.JPEG"))
            if len(found) < number:
                raise UserError(f"Imagenette must have {number} photos of {code} in {part}, found {len(found)}.")
            for index in range(number):
                target = clone / pattern.format(index)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found[index * len(found) // number], target)


ON_RUN = {"RUN": RUN}
STEPS = (
    Step("Clone", "git clone REPOSITORY codinet && cd codinet", 5, venv=""),
    Step("Install, demo", "make demo", 20, venv=""),
    Step("Photos", "python PREPARE imagenette data", 5),
    Step("Train", "codinet train photos --budget 0.6", 30, before=choose_photos),
    Step("Evaluate", "codinet eval RUN", 5, ON_RUN),
    Step("Predict", "codinet predict RUN new-photos --out answers.csv", 5, ON_RUN),
    Step("Report", "codinet report RUN", 10, ON_RUN),
    # Any free port, because 8000 may be in use here.
    Step("Explore", "codinet explore RUN", 5, {"RUN": f"{RUN} --port 0"}, ask=ask_explorer),
    Step("Export", "codinet export RUN --out model.onnx", 5, ON_RUN),
    Step("An environment without torch", "python3 -m venv onnx-env", 5, venv=""),
    Step("ONNX Runtime", "pip install onnxruntime numpy pillow", 10, venv="onnx-env"),
    Step(
        "ONNX without torch",
        "python classify.py model.onnx cat.jpg",
        5,
        {"cat.jpg": "new-photos/*.jpg"},
        venv="onnx-env",
        program=("classify.py", onnx_example),
        shown=(3, 1),
    ),
    Step("A timm network", "python network.py", 10, program=("network.py", timm_example)),
)
# Not part of the hour: the pictures of the documentation, from the runs above and the zoo.
PICTURES = (
    Step("Screenshots", "python -m tools.screenshots RUN OUT_DIR --report runs/demo/report/index.html", 10, ON_RUN),
    Step(
        "Animation",
        "python -m tools.screenshots RUN OUT_DIR --image 58 --gif",
        10,
        {"RUN": "zoo:cifar10-resnet110-056"},
    ),
    Step("Paths of the demo", "cp runs/demo/paths.png OUT_DIR/paths.png", 1),
)


def run_step(step: Step, folder: Path, words: Mapping[str, str]) -> page.Record:
    """Run a command as a new user's shell would.

    Args:
        step: The command.
        folder: The folder that holds the clone.
        words: What stands for words that the page shows as they are, such as REPOSITORY.

    Returns:
        Its output and time; raises `UserError` if it fails or takes too long.
    """
    clone = folder / "codinet"
    cwd = clone if clone.exists() else folder
    if step.before:
        step.before(clone)
    file, text = (step.program[0], step.program[1](clone)) if step.program else (None, "")
    if file:
        (clone / file).write_text(text)
    command = step.typed
    for word, meaning in words.items():
        command = command.replace(word, shlex.quote(meaning))
    env = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    env["PYTHONUNBUFFERED"] = "1"  # the order of a terminal
    if step.venv:  # what `source VENV/bin/activate` does
        env |= {"VIRTUAL_ENV": str(cwd / step.venv), "PATH": f"{cwd / step.venv / 'bin'}:{env['PATH']}"}
    start = monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            answer = _converse(process, said, step, clone)
            code = process.wait(max(0.1, start + 60 * step.minutes - monotonic()))
        except subprocess.TimeoutExpired as late:
            raise UserError(f"{step.command} has not finished within {step.minutes:g} minutes.") from late
        finally:
            _kill(process)
        seconds = monotonic() - start
        said.seek(0)
        output = said.read() + answer
    if code != 0:
        print(output[-3000:], file=sys.stderr)
        raise UserError(f"{step.command} failed with exit code {code}; the end of its output is above.")
    return page.Record(step.title, step.typed, output, seconds, step.shown, file, text)


def _converse(process: subprocess.Popen[bytes], said: io.TextIOBase, step: Step, clone: Path) -> str:
    """Wait for a server's address, ask it, and stop it with Ctrl-C; other commands are left alone."""
    if step.ask is None:
        return ""
    deadline = monotonic() + 60 * step.minutes
    while process.poll() is None and monotonic() < deadline:
        sleep(0.1)
        text = os.pread(said.fileno(), 100_000, 0).decode(errors="replace")
        if found := re.search(r"http://127\.0\.0\.1:\d+/", text):
            answer = step.ask(found[0], clone)
            os.killpg(process.pid, signal.SIGINT)
            return answer
    raise UserError(f"{step.command} has not served a page within {step.minutes:g} minutes.")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and its children, if they still run."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(30)


def outcome(clone: Path, records: list[page.Record]) -> page.Outcome:
    """Read the accuracies of the photos from the files that the commands wrote, and compare ONNX with `predict`."""
    if any((clone / "onnx-env").glob("lib/*/site-packages/torch")):
        raise UserError("onnx-env must not contain torch, but it does.")
    found = json.loads((clone / RUN / "evaluation.json").read_text())
    with (clone / "answers.csv").open(newline="") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    right = sum(Path(name).name.startswith(f"{label}-") for name, label in labels.items())
    (lines,) = (record.output.splitlines() for record in records if record.title == "ONNX without torch")
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    same = sum(labels.get(answer["file"]) == answer["class"] for answer in answers)
    return page.Outcome(found["accuracy"], found["cost_share"], found["n"], right, len(labels), same, len(answers))


def environment(clone: Path) -> str:
    """Commit, date, cores and versions, in one sentence."""
    python = str(clone / ".venv" / "bin" / "python")
    code = f"import platform, importlib.metadata as m; print(platform.python_version(), *map(m.version, {VERSIONS}))"
    commit, versions = (
        subprocess.run(line, cwd=clone, check=True, capture_output=True, text=True, timeout=60).stdout.split()
        for line in (["git", "rev-parse", "--short=12", "HEAD"], [python, "-c", code])
    )
    named = ", ".join(f"{name} {version}" for name, version in zip(("Python", *VERSIONS), versions, strict=True))
    threads = os.environ.get("OMP_NUM_THREADS")
    return f"Commit {commit[0]}, {date.today():%d %B %Y}, {named}" + (f", OMP_NUM_THREADS={threads}" if threads else "")


def check(folder: Path, prepare: Path, *, pictures: bool) -> None:
    """Raise a `UserError` if something that the hour needs is missing, before it starts."""
    if not prepare.is_file():
        raise UserError(f"The first hour needs photos: --prepare must be a program that unpacks them, got {prepare}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"FOLDER must be new or empty, got {folder}.")
    if pictures and find_chromium() is None:
        raise UserError("Screenshots require Chromium; install it, set CODINET_CHROMIUM, or pass --no-pictures.")


def play(folder: tyro.conf.Positional[Path], prepare: Path, pictures: bool = True) -> int:
    """Play the first hour.

    Args:
        folder: New or empty folder.
        prepare: Program that unpacks the photos.
        pictures: Whether to take the pictures of docs/images again.

    Returns:
        The exit code: 0, or 1 if a target is missed.
    """
    folder, prepare = folder.resolve(), prepare.resolve()
    check(folder, prepare, pictures=pictures)
    folder.mkdir(parents=True, exist_ok=True)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    words = {"REPOSITORY": str(ROOT), "PREPARE": str(prepare), "OUT_DIR": str(ROOT / "docs" / "images")}
    records: list[page.Record] = []
    for step in STEPS:
        print(f"{step.title}: {step.typed}", flush=True)
        records.append(run_step(step, folder, words))
        print(f"  {records[-1].seconds:.0f} s", flush=True)
    clone = folder / "codinet"
    summary = page.Summary(outcome(clone, records), environment(clone), cores, load)
    text = page.render(records, summary, page.Sanitizer(clone, folder, ROOT, prepare))
    (ROOT / "docs" / "first-hour.md").write_text(text)
    for step in PICTURES if pictures else ():
        print(run_step(step, folder, words).output.strip(), flush=True)
    missed = page.missed(records, summary)
    for target in missed:
        print(f"Missed: {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: tyro.cli(play)))
