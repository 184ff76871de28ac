from pathlib import Path

import pytest

from codinet.data import memory
from codinet.data.memory import available_bytes, require_room
from codinet.errors import UserError


def test_refuses_what_does_not_fit_and_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    require_room(800, what="it", way_out="shrink it")
    with pytest.raises(UserError, match=r"^it would take .* are free; shrink it\.$"):
        require_room(801, what="it", way_out="shrink it")


def test_refuses_nothing_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
    assert available_bytes() is None
    require_room(10**18, what="it", way_out="shrink it")


def test_the_container_counts_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert available_bytes() == 4096
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() == 4096
