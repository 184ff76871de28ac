"""Kill real trainings at random moments, resume them, and compare the end with a training that was left alone."""

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from tests.few_digits import save_few_digits
from tests.repeated_metrics import repeated_metrics

from codinet.data.npz import load_digits
from codinet.files import load_tensors

LIVES = Path(__file__).parents[1] / "train" / "lives.py"
PATIENCE = 300  # seconds that one life may take


@dataclass(frozen=True)
class Scenario:
    """A training to kill: its flags, its data, its number of processes."""

    name: str
    flags: tuple[str, ...] = ()
    images: bool = False  # from a folder of files that is never held in memory
    size: int = 1  # processes
    only: bool = False  # kill one process and leave the others to notice


SCENARIOS = [
    Scenario("resident images"),
    Scenario("streamed images", ("--loader", "stream")),
    Scenario("image files, decoded when used", ("--image-size", "8"), images=True),
    Scenario("moving average, cutout, three views", ("--ema", "0.9", "--cutout", "3", "--views", "3")),
    Scenario("two processes", size=2),
    Scenario("one of two processes", size=2, only=True),
]


@dataclass
class Result:
    """The outcome of a campaign: counts of `kills`, runs that ended the `same`, and runs that were `lost`."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def campaign(scenario: Scenario, kills: int, seed: int) -> Result:
    """Kill trainings of a scenario this many times; each is resumed until it is finished, then compared."""
    result, dice = Result(), random.Random(f"{scenario.name} {seed}")
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="codinet-kills-")))
        driver = stack.enter_context(
            subprocess.Popen([sys.executable, LIVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(driver.kill)
        source = _images(room / "images") if scenario.images else save_few_digits(room / "few.npz")

        def live(out: Path, **fate: Any) -> dict[str, Any]:
            words = ["train", str(source), "--arch", "resnet20", "--epochs", "2", "--finetune", "2", "--batch", "16"]
            # The others wait this long for a process that is killed before it has joined.
            words += ["--device", "cpu", "--wait-minutes", "0.1" if scenario.only else "5"]
            words += ["--out", str(out), "--resume", *scenario.flags]
            fate |= {"save_seconds": -1, "ask_every": 1, "lazy": scenario.images}
            request = {"words": words, "out": str(out), "size": scenario.size, "fate": fate, "patience": PATIENCE}
            assert driver.stdin is not None
            assert driver.stdout is not None
            print(json.dumps(request), file=driver.stdin, flush=True)
            return json.loads(driver.stdout.readline())

        whole = room / "whole"
        end = live(whole)
        if end["code"] != 0:
            result.findings.append(f"{scenario.name}: the training that nobody killed ended with {end}")
            return result
        number = 0
        while result.counts["kills"] < kills:
            number += 1
            _kill_until_finished(live, room / str(number), whole, scenario, dice, result, kills)
    return result


def _kill_until_finished(
    live: Any, out: Path, whole: Path, scenario: Scenario, dice: random.Random, result: Result, kills: int
) -> None:
    while True:
        last = result.counts["kills"] >= kills
        end = live(out, **({} if last else _fate(scenario, dice)))
        if -9 in end["codes"]:
            result.counts["kills"] += 1
            lost = [code for code in end["codes"] if code not in (-9, 0, 2)]
        else:
            lost = [code for code in end["codes"] if code]
        if lost or "Traceback" in end["said"]:
            result.counts["lost"] += 1
            result.findings.append(f"{scenario.name}: {end['codes']} {end['said'][-2000:]}")
            return
        if end["code"] == 0 and (out / "evaluation.json").exists():
            break
    difference = _difference(out, whole)
    result.counts["lost" if difference else "same"] += 1
    if difference:
        result.findings.append(f"{scenario.name}: {difference} differs from the training that nobody killed")


def _fate(scenario: Scenario, dice: random.Random) -> dict[str, Any]:
    if not scenario.only and dice.random() < 0.2:
        return {"rename": dice.choice(("before", "after"))}
    if not scenario.only and dice.random() < 0.25:
        return {"writing": True}
    fate: dict[str, Any] = {"after": dice.uniform(0, 1.2), "saves": 1_000_000}
    return fate | ({"only": dice.randrange(scenario.size)} if scenario.only else {})


def _difference(one: Path, other: Path) -> str | None:
    ours, theirs = (load_tensors(folder / "model.safetensors")[0] for folder in (one, other))
    if ours.keys() != theirs.keys():
        return "the list of weights"
    for name in ours:
        if not ours[name].equal(theirs[name]):
            return name
    if repeated_metrics(one) != repeated_metrics(other):
        return "metrics.jsonl"
    if (one / "evaluation.json").read_bytes() != (other / "evaluation.json").read_bytes():
        return "evaluation.json"
    leftovers = [path.name for path in one.rglob("*.tmp")]
    return f"a leftover ({leftovers[0]})" if leftovers else None


def _images(folder: Path) -> Path:
    digits = load_digits()
    for place, (image_CHW, label) in enumerate(zip(digits.train.images_NCHW[:80], digits.train.labels_N, strict=False)):
        file = folder / str(int(label)) / f"{place:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image_CHW[0].numpy()).save(file)
    return folder
