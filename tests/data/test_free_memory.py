from pathlib import Path

import pytest

from codinet.data import free_memory
from codinet.data.free_memory import available_bytes, require_memory
from codinet.errors import UserError


def test_data_that_does_not_fit_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1000)
    require_memory(800, what="it", hint="shrink it")
    with pytest.raises(UserError, match=r"^it would take .* are free; shrink it\.$"):
        require_memory(801, what="it", hint="shrink it")


def test_nothing_is_refused_if_free_memory_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(free_memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path / "none")
    assert available_bytes() is None
    require_memory(10**18, what="it", hint="shrink it")


def test_the_limit_of_the_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4 kB\n")
    monkeypatch.setattr(free_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    assert available_bytes() == 4096
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() == 4096
