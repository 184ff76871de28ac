"""What the picture-taker says where it cannot take any. That it can is tests/browser's."""

import sys
from pathlib import Path

import pytest

from codinet.explorer import screenshots


def test_says_what_to_install_without_playwright(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert screenshots.main([str(finished_run), str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "screenshots: A browser is driven with Playwright; install it with pip install playwright.\n"
    )


def test_says_what_to_install_without_chromium(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("playwright")
    monkeypatch.delenv("CODINET_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screenshots.main([str(finished_run), str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("screenshots: There is no Chromium on this machine")


def test_says_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert screenshots.main([str(tmp_path / "nothing"), str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err
