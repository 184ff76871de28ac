import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import codinet
from codinet import environment
from codinet.environment import commit, describe, pick_device, seconds_of, torch_threads
from codinet.errors import UserError


def test_a_description_names_versions_device_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODINET_COMMIT", "abc")
    said = describe(torch.device("cpu"))
    assert said["codinet"] == codinet.__version__
    assert said["torch"] == torch.__version__
    assert said["device"] == "cpu"
    assert said["threads"] == torch.get_num_threads()
    assert said["commit"] == "abc"
    assert set(said) == {"codinet", "commit", "python", "torch", "device", "threads", "platform"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the package seems to have been imported from."""
    monkeypatch.delenv("CODINET_COMMIT", raising=False)
    monkeypatch.setattr(codinet, "__file__", str(tmp_path / "src" / "codinet" / "__init__.py"))
    return tmp_path


def git(folder: Path, *words: str) -> str:
    """git without the user's settings."""
    surroundings = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    said = subprocess.run(
        ["git", *identity, "-C", str(folder), *words], env=surroundings, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def test_the_commit_of_a_checkout_and_whether_files_differ(checkout: Path) -> None:
    (checkout / "file").write_text("one")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        git(checkout, *words)
    known = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert commit() == known
    (checkout / "file").write_text("two")
    assert commit() == f"{known}-dirty"


def test_an_installed_package_has_no_commit(checkout: Path) -> None:
    assert commit() is None


def test_a_checkout_without_git_has_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git").mkdir()
    assert commit() is None  # a damaged one
    monkeypatch.setenv("PATH", str(checkout))
    assert commit() is None


def runs(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_a_git_that_never_answers_is_stopped_with_its_children(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (checkout / ".git").mkdir()
    stalled = checkout / "bin" / "git"
    stalled.parent.mkdir()
    stalled.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\necho abc\nsleep 600\n")
    stalled.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stalled.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(environment, "GIT_SECONDS", 0.5)
    assert commit() is None
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while runs(child):
        assert time.monotonic() < deadline, "the child of git is still running"
        time.sleep(0.01)


def test_the_device_asked_for() -> None:
    assert pick_device("cpu") == torch.device("cpu")


def test_the_best_device_there_is() -> None:
    best = pick_device(None)
    assert best.type == ("cuda" if torch.cuda.is_available() else best.type)
    assert torch.ones(1, device=best).item() == 1


@pytest.mark.parametrize("name", ["", "gpu", "cuda:99", "meta", "cpu:x", "cuda:-1"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"Device '{name}' is not available; use --device cpu"):
        pick_device(name)


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    seen = []
    with suppress(ValueError), torch_threads(before + 1):
        seen.append(torch.get_num_threads())
        raise ValueError
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_the_time_of_a_call_on_the_cpu() -> None:
    assert 0.01 <= seconds_of(lambda: time.sleep(0.01), torch.device("cpu")) < 5
