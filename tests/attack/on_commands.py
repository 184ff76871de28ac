"""Attacks on the command line: every verb with odd words, on odd names, on changed run folders.

Commands run in this process through `codinet.cli.main`. Each must end with exit code 0 or 2 and without a traceback; an
error is one line on stderr; with --json, stdout is one document of strict JSON or nothing.
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from tests.attack.damage import changed, spoilt, text_of
from tests.attack.harness import Attack
from tests.attack.on_files import NAME, base, content_of, copied, few, picture

from codinet import files
from codinet.cli import VERBS, main
from codinet.config import RunConfig

MIB = 2**20

# Words for any flag. A real command line has no NUL and no surrogates but those of bytes that are not UTF-8.
ODD = [
    *("", "0", "1", "2", "-1", "0.5", "-0.5", "1e-9", "1e999", "nan", "inf", "-inf", "x", "None", "True", "[", "{}"),
    *("999999999999999999999", "1_000", "0x10", "½", "٣", "é", "a b", "a\nb", "\x1b[31m", "\udcff", "-", "--", "--x"),
    *("~", "zoo:", "zoo:x", "zoo:../x", f"zoo:{NAME}", "..", "/dev/null", "cpu", "cuda", "cuda:99", "meta", "cpu:7"),
    *("x" * 300, "digits", "few.npz", "run", "run/config.json", "missing", "missing/x", "$^{", "%s", "{x!r}", "🦆"),
]
# For flags that decide how long a command takes: nothing that could be carried out.
REFUSED = ["", "0", "-1", "x", "nan", "1.5", "None", "é", "-inf"]
LONG = {
    *("epochs", "finetune", "batch", "views", "arch", "image_size", "workers", "rounds", "images", "threads", "port"),
    *("stall_minutes", "wait_minutes", "warmup", "preset", "compile", "amp", "kernels", "train", "compiled", "modes"),
    *("list", "open", "tsne", "plot", "engines", "action", "seed"),
}
# What is put at the end, where the last word counts, so that no command takes long or reaches for the network.
QUICK: dict[str, list[str]] = {
    "train": ["--epochs", "1", "--finetune", "0", "--batch", "16", "--arch", "resnet20", "--device", "cpu"],
    "eval": ["--device", "cpu"],
    "predict": ["--device", "cpu"],
    "analyze": ["--no-tsne", "--images", "4", "--device", "cpu"],
    "report": ["missing"],
    "explore": ["--port", "99999"],
    "sweep": ["--workers", "0", "--no-plot"],
    "bench": ["--rounds", "1", "--images", "1", "--batch", "1", "--engines", "masked", "--device", "cpu"],
    "export": [],
    "data": [],
    "models": ["--bad"],
}
POSITIONAL: dict[str, list[list[str]]] = {
    "train": [["few.npz"], ["few.npz"], ["digits"], ["missing"], []],
    "eval": [["run"], ["run"], [f"zoo:{NAME}"], ["missing"], []],
    "predict": [["run", "a.png"], ["run"], ["run", "missing.png"], [f"zoo:{NAME}", "a.png"], ["run", "run"]],
    "analyze": [["run"], ["run", "run"], [f"zoo:{NAME}"], ["missing"], []],
    "report": [["run"], []],
    "explore": [["run"], ["missing"]],
    "sweep": [["digits"], ["few.npz"], ["paper-table-svhn"], ["paper-x"], []],
    "bench": [["run"], *[["missing"]] * 4, []],  # a bench that is carried out takes a second
    "export": [["run"], [f"zoo:{NAME}"], ["missing"]],
    "data": [["list"], ["verify", "digits"], ["verify", "cifar10"], ["download"], ["download", "x"], ["sell"]],
    "models": [[]],
}


@functools.cache
def flags_of(verb: str) -> list[str]:
    """The names of the fields that are a verb's flags."""
    return _flags(importlib.import_module(f"codinet.commands.{verb}").Args)


def _flags(kind: Any) -> list[str]:
    hints = get_type_hints(kind)
    settings = get_type_hints(RunConfig)  # whose parts are dicts in the flags of train
    found = []
    for entry in dataclasses.fields(kind):
        inner = settings[entry.name] if hints[entry.name] == dict[str, Any] else hints[entry.name]
        found += _flags(inner) if dataclasses.is_dataclass(inner) else [entry.name]
    return found


@contextlib.contextmanager
def place(folder: Path) -> Iterator[None]:
    """Within, the working folder holds a run, an image and some data; the zoo is a copy, too."""
    copied("run", folder)
    shutil.copytree(base() / "zoo", folder / "zoo")
    (folder / "few.npz").write_bytes(few())
    (folder / "a.png").write_bytes(picture(random.Random(0)))
    before, zoo = Path.cwd(), os.environ.get("CODINET_ZOO")
    os.chdir(folder)
    os.environ["CODINET_ZOO"] = "zoo"
    try:
        yield
    finally:
        os.chdir(before)
        if zoo is None:
            del os.environ["CODINET_ZOO"]
        else:
            os.environ["CODINET_ZOO"] = zoo


def check(words: list[str], encoding: str = "utf-8") -> int:
    """Run a command; whatever it was given, it ends as a command should."""
    content, complaints = io.BytesIO(), io.StringIO()
    stdout = io.TextIOWrapper(content, encoding=encoding)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(complaints):
        code = main(words)
    said, text = complaints.getvalue(), content.getvalue()
    assert code in (0, 2), (code, words, said)
    assert "Traceback" not in said, said
    if code == 2:
        last = said.splitlines()[-1]
        assert last.startswith("codinet: "), said
        assert last.isprintable(), last
    if "--json" in words and "--help" not in words and text:
        files.parse_json(text)
    return code


def _odd_words(verb: str, rng: random.Random) -> list[str]:
    words = list(rng.choice(POSITIONAL[verb]))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        flag = rng.choice(flags_of(verb))
        spelled = f"--{flag.replace('_', '-')}"
        if flag in LONG:
            words += [spelled, rng.choice(REFUSED)]
        elif rng.random() < 0.1:
            words.append(rng.choice((spelled[:-1], spelled.upper(), f"--no-{spelled[2:]}", spelled)))
        elif rng.random() < 0.2:
            words.append(f"{spelled}={rng.choice(ODD)}")
        else:
            words += [spelled, *rng.choices(ODD, k=rng.choice((0, 1, 1, 1, 2)))]
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), rng.choice([word for word in ODD if word not in ("--",)]))
    return words


def odd_words(rng: random.Random, folder: Path) -> None:
    """A verb with odd flags and values."""
    verb = rng.choice(list(VERBS))
    words = [verb, *_odd_words(verb, rng), *QUICK[verb]]
    if verb != "explore" and rng.random() < 0.4:
        words.append("--json")
    if rng.random() < 0.02:
        words = [rng.choice(ODD), *words[1:]]
    with place(folder):
        check(words, rng.choice(("utf-8", "utf-8", "ascii", "latin-1")))


def changed_runs(rng: random.Random, folder: Path) -> None:
    """A verb on a run folder in which one file is changed."""
    verb = rng.choice(("eval", "predict", "analyze", "export", "train", "explore"))
    verb = "bench" if rng.random() < 0.03 else verb
    words = {
        "predict": ["run", "a.png"],
        "export": ["run", "--out", "a.onnx", "--kind", rng.choice(("static", "masked"))],
        "train": ["few.npz", "--out", "run", "--resume"],
    }.get(verb, ["run"])
    with place(folder):
        name = rng.choice([file.name for file in sorted(Path("run").iterdir())])
        file = Path("run") / name
        content = file.read_bytes()
        kind = rng.randrange(4)
        if kind == 0:
            file.unlink()
        elif kind == 1 or not name.endswith((".json", ".jsonl")):
            file.write_bytes(spoilt(content, rng))
        elif name == "metrics.jsonl":
            file.write_bytes(b"".join(text_of(changed(files.parse_json(line), rng)) for line in content.splitlines()))
        else:
            file.write_bytes(text_of(changed(files.parse_json(content), rng)))
        check([verb, *words, *QUICK[verb], *(["--json"] if verb != "explore" else [])])


def odd_names(rng: random.Random, folder: Path) -> None:
    """A run folder, an image and an output with odd names."""
    odd = rng.choice(
        ("a\nb", "\x1b[31mred", "$a^$", "é", "\udcff", "a b", "[bold]", "%s", "-x", "日本", "'", '"', "x" * 200)
    )
    with place(folder):
        run, image = Path(f"{odd}.run"), Path(f"{odd}.png")
        Path("run").rename(run)
        Path("a.png").rename(image)
        verb = rng.choice(("eval", "predict", "analyze", "export"))
        words = {
            "eval": [str(run), "--paths", f"{odd}.safetensors"],
            "predict": [f"./{run}", f"./{image}"],
            "export": [f"./{run}", "--out", f"./{odd}.onnx"],
        }.get(verb, [f"./{run}"])
        check([verb, *words, *QUICK[verb], *rng.choice((["--json"], []))], rng.choice(("utf-8", "ascii")))


def changed_zoo(rng: random.Random, folder: Path) -> None:
    """A verb on the zoo with a changed card."""
    with place(folder):
        card = changed(files.parse_json(content_of(f"zoo/{NAME}.json")), rng)
        Path("zoo", f"{NAME}.json").write_bytes(text_of(card))
        words = rng.choice(
            (
                ["analyze", f"zoo:{NAME}", *QUICK["analyze"]],
                ["predict", f"zoo:{NAME}", "a.png"],
                ["eval", f"zoo:{NAME}"],
                ["export", f"zoo:{NAME}", "--out", "a.onnx", "--kind", "masked"],
            )
        )
        check([*words, "--json"])


ATTACKS = [
    Attack("commands: odd words", odd_words, quick=60, weight=4, memory=768 * MIB, seconds=30),
    Attack("commands: changed run folders", changed_runs, quick=8, memory=768 * MIB, seconds=30),
    Attack("commands: odd names", odd_names, quick=6, weight=0.5, memory=768 * MIB, seconds=30),
    Attack("commands: changed cards", changed_zoo, quick=20, memory=768 * MIB, seconds=30),
]
