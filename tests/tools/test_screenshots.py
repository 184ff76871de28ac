"""Errors of the screenshot tool. tests/browser takes real screenshots."""

import sys
from pathlib import Path

import pytest

from tools import screenshots


def test_missing_playwright(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert screenshots.main([str(finished_run), str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "codinet: Screenshots require Playwright; install it with pip install playwright.\n"
    )


def test_missing_chromium(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("playwright")
    monkeypatch.delenv("CODINET_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screenshots.main([str(finished_run), str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("codinet: Screenshots require Chromium")


def test_missing_report(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert screenshots.main([str(finished_run), str(tmp_path), "--report", str(tmp_path / "index.html")]) == 2
    assert "--report must be an HTML file" in capsys.readouterr().err


def test_missing_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert screenshots.main([str(tmp_path / "nothing"), str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err
