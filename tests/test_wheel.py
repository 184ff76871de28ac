"""The wheel, in an environment that has it and its declared dependencies, and nothing else."""

import json
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

# What a user does first, in one process, because torch is slow to import.
FIRST_STEPS = """
import importlib.util, json
from pathlib import Path
from PIL import Image
import codinet
from codinet.cli import main

assert importlib.util.find_spec("pytest") is None  # nothing else is installed
model = codinet.create_model("resnet32", pretrained="cifar10")
run = codinet.open_run("zoo:cifar10-resnet32-065")
Image.fromarray(run.sample_images().split.images_NCHW[0].permute(1, 2, 0).numpy()).save("image.png")
schedule = ["--epochs", "1", "--finetune", "0", "--arch", "resnet14"]
assert main(["train", "digits", "--preset", "demo", *schedule, "--device", "cpu", "--out", "run", "--json"]) == 0
assert main(["eval", "run", "--device", "cpu", "--json"]) == 0
assert main(["predict", "zoo:cifar10-resnet32-065", "image.png", "--device", "cpu", "--json"]) == 0
Path("facts.json").write_text(json.dumps({"codinet": codinet.__file__, "classes": run.data.classes}))
assert not model.training
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("built")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def metadata_of(wheel: Path) -> tuple[list[str], list[Requirement]]:
    """The files of a wheel, and what it requires without extras."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (file,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(archive.read(file).decode())
    required = [Requirement(text) for text in found.get_all("Requires-Dist", [])]
    return names, [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]


def closure(required: list[Requirement]) -> set[str]:
    """The names of the distributions that these requirements install."""
    found: set[str] = set()
    waiting = [(one.name, frozenset(one.extras)) for one in required]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        found.add(name)
        for text in distribution(name).requires or []:
            one = Requirement(text)
            if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            if (key := (one.name, frozenset(one.extras))) not in seen:
                seen.add(key)
                waiting.append(key)
    return found


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder that pip installed the wheel into, and an environment that sees it and its dependencies only."""
    place = tmp_path_factory.mktemp("clean")
    installed, dependencies = place / "installed", place / "dependencies"
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *words, "--target", installed, built[0]], check=True, timeout=100)
    dependencies.mkdir()
    for name in closure(metadata_of(built[0])[1]):
        of = distribution(name)
        for top in {file.parts[0] for file in of.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (dependencies / top).exists():
                (dependencies / top).symlink_to(str(of.locate_file(top)))
    return installed, {"PYTHONPATH": f"{installed}:{dependencies}", "HOME": str(place), "OMP_NUM_THREADS": "1"}


def python(words: list[str | Path], env: dict[str, str], folder: Path) -> str:
    """Run Python without its site-packages, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-S", "-P", *words],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names, _ = metadata_of(built[0])
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"codinet"}
    source = ROOT / "src" / "codinet"
    kept = {file.relative_to(source.parent).as_posix() for file in source.rglob("*") if file.is_file()}
    kept = {name for name in kept if "__pycache__" not in name}
    assert kept == {name for name in names if ".dist-info/" not in name}
    assert {"codinet/py.typed", "codinet/explorer/static/index.html"} <= set(names)
    assert "codinet/zoo/weights/cifar10-resnet110-056.safetensors" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert built[0].stat().st_size < 30e6


def test_the_source_distribution_has_what_make_needs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {"/".join(Path(name).parts[1:]) for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "tests/conftest.py"} <= names
    assert {"tools/zoo_add.py", "docs/results.md", "src/codinet/zoo/weights/cifar10.samples.npz"} <= names
    assert not [name for name in names if name.startswith(("runs/", ".venv/", ".git/"))]


def test_the_command_works_where_only_the_wheel_is(clean: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    installed, env = clean
    assert "codinet VERB --help" in python([installed / "bin" / "codinet", "--help"], env, tmp_path)
    assert "cifar10-resnet110-056" in python([installed / "bin" / "codinet", "models"], env, tmp_path)
    said = python(["-c", FIRST_STEPS], env, tmp_path)
    trained, evaluated, predicted = (json.loads(part) for part in _documents(said))
    assert trained["accuracy"] == evaluated["accuracy"] > 10
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert Path(facts["codinet"]).is_relative_to(installed)
    (answer,) = predicted["predictions"]
    assert answer["label"] in facts["classes"]


def _documents(text: str) -> list[str]:
    """JSON documents that follow each other."""
    found, rest, decoder = [], text.strip(), json.JSONDecoder()
    while rest:
        _, end = decoder.raw_decode(rest)
        found.append(rest[:end])
        rest = rest[end:].strip()
    return found
