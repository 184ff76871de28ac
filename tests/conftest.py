"""Real runs, small enough to be made in a second, and what many tests need to make their own."""

import builtins
import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    # Without a GPU, kernels run in Triton's interpreter. Triton reads this when it is first imported, which importing
    # codinet may do.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tests.few_digits import save_few_digits
from tests.hub_server import TOKEN, Hub, served_hub
from tests.quick_flags import derive_flags_once
from tests.repeated_metrics import repeated_metrics

from codinet.adopt import import_vision
from codinet.cli import main
from codinet.config import NetworkConfig, RunConfig, ScheduleConfig
from codinet.data import Dataset, load
from codinet.errors import UserError
from codinet.files import load_tensors
from codinet.resolving import resolve
from codinet.runs import RunFolder
from tools.zoo_add import add

# Runs note their commit; asking git each time would be slow.
os.environ.setdefault("CODINET_COMMIT", "tests")

# Workers of pytest-xdist share the cores; by default each would also start processes that compile for torch.compile.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A shell starts background jobs with interrupts ignored, and so would be the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Networks and graphs are made of many small objects; with the default of 700 a collection would begin all the time.
gc.set_threshold(50_000, 20, 100)

derive_flags_once()

# By default an example that takes 200 ms fails its test, which a busy machine brings about by itself.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


# Files with tests that take ten seconds and more.
LONG = ("test_lint.py", "test_compiles.py", "test_matrix.py", "test_code_blocks.py", "test_sweep.py", "test_kills.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with long tests. At the end, one worker of pytest-xdist would wait for the other to finish such a test."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Workers of pytest-xdist share the cores, and sums in one order are equal bit for bit."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _quick_interpreter() -> None:
    """Saves more than half the time of Triton's interpreter.

    It looks for overflows, and ignores what it finds unless it debugs. Whenever a kernel calls a function, it lists
    the whole language to find the few hundred names to replace.
    """
    if importlib.util.find_spec("triton") is None:
        return
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    assert not interpreter.interpreter_builder.options.debug
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)

    @functools.cache
    def names(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in names(package):
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Has the garbage collector skip the modules and tests that are loaded, half a million objects that stay.

    It would look at all of them in every full collection, here and in every forked process.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def digits_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 + 40 of the digits."""
    return save_few_digits(tmp_path_factory.mktemp("data") / "few.npz")


@pytest.fixture(scope="session")
def few(digits_npz: Path) -> Dataset:
    """The same 64 + 40 digits, loaded."""
    return load(str(digits_npz), Path())


@pytest.fixture(scope="session")
def small_run(digits_npz: Path) -> RunConfig:
    """2 + 1 epochs of four steps."""
    return resolve(
        RunConfig(
            str(digits_npz),
            network=NetworkConfig(arch="resnet20"),
            schedule=ScheduleConfig(epochs=2, finetune=1, batch=16),
        )
    )


@pytest.fixture(scope="session")
def train_words(digits_npz: Path) -> Callable[..., list[str]]:
    """The words of a command that trains 1 + 1 epochs of four steps into a folder, by default from new weights."""

    def words(out: Path, *more: str, source: Path | str = digits_npz, start: str | None = "none") -> list[str]:
        schedule = ["--epochs", "1", "--finetune", "1", "--batch", "16"]
        schedule += [] if start is None else ["--start", start]
        return ["train", str(source), "--arch", "resnet20", *schedule, "--device", "cpu", "--out", str(out), *more]

    return words


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, train_words: Callable[..., list[str]]) -> Iterator[Path]:
    """A finished run folder. Tests must not change it; copy it, or use `own_run`."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(train_words(out)) == 0
    before = sorted(out.rglob("*"))
    yield out
    assert sorted(out.rglob("*")) == before, "a test wrote into finished_run"


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A finished run folder to spoil."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory, train_words: Callable[..., list[str]]) -> Path:
    """A finished run on a data set that has a name; tests leave it as it is."""
    out = tmp_path_factory.mktemp("zoo") / "run"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(train_words(out, "--batch", "128", "--finetune", "0", source="digits")) == 0
    return out


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory, digits_run: Path) -> Path:
    """The folder of a zoo that holds this run under the name digits-resnet20-06; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("zoo") / "weights"
    add(RunFolder.open(digits_run), "digits-resnet20-06", Path(), device=torch.device("cpu"), into=folder)
    return folder


@pytest.fixture
def zoo(stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo to spoil, in the place of the package's own."""
    folder = shutil.copytree(stocked, tmp_path / "zoo")
    monkeypatch.setenv("CODINET_ZOO", str(folder))
    return folder


@pytest.fixture
def empty_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No zoo, in the place of the package's own."""
    monkeypatch.setenv("CODINET_ZOO", str(tmp_path / "none"))
    return tmp_path / "none"


@pytest.fixture(scope="session")
def assert_same_run() -> Callable[[Path, Path], None]:
    """Two run folders hold the same weights, bit for bit, the same metrics and the same figures."""

    def check(one: Path, other: Path) -> None:
        ours, theirs = (load_tensors(folder / "model.safetensors")[0] for folder in (one, other))
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
        assert repeated_metrics(one) == repeated_metrics(other)
        assert (one / "evaluation.json").read_text() == (other / "evaluation.json").read_text()

    return check


@pytest.fixture
def library(request: pytest.FixtureRequest) -> ModuleType:
    """The package that a test names (torchvision, timm), or a skip where it is not installed."""
    try:
        import_vision(request.param.split(".")[0])
    except UserError as error:
        pytest.skip(str(error))
    return importlib.import_module(request.param)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hugging Face hub on this machine, in the place of the real one."""
    from huggingface_hub import constants

    with served_hub() as server:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # What the environment variables HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_DISABLE_XET set at the first import.
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield server


@pytest.fixture
def hide_package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package look as if it were not installed."""

    def hide(package: str) -> None:
        real = builtins.__import__

        def without(name: str, *rest: Any, **more: Any) -> Any:
            if name.split(".")[0] == package:
                raise ImportError(name)
            return real(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", without)

    return hide


@pytest.fixture
def disk_of() -> Callable[[int], AbstractContextManager[None]]:
    """Within `disk_of(n)` no file of this process can grow beyond n bytes."""

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # Python ignores the signal, so writes just fail
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def memory_of() -> Callable[[int], AbstractContextManager[None]]:
    """Within `memory_of(n)` this process can allocate n bytes more.

    Some systems promise more memory than there is, and end a process that uses it.
    """

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    return limit


_HOLDER = """
import sys
from pathlib import Path
from codinet import files

with files.lock_folder(Path(sys.argv[1]), "not expected"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held_by_another() -> Callable[[Path], AbstractContextManager[None]]:
    """Has another process hold a folder (`files.lock_folder`) until it is killed."""

    @contextlib.contextmanager
    def hold(folder: Path) -> Iterator[None]:
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", _HOLDER, folder], stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield
            process.kill()

    return hold
