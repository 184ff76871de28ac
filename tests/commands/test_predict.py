import json
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from codinet.cli import main
from codinet.data import Dataset

Said = pytest.CaptureFixture[str]


@pytest.fixture
def good(tmp_path: Path, few: Dataset) -> list[Path]:
    """Two digits as files."""
    files = [tmp_path / "one.png", tmp_path / "two [copy].bmp"]
    for number, file in enumerate(files):
        Image.fromarray(few.test.images_NCHW[number, 0].numpy()).save(file)
    return files


def bomb(file: Path) -> Path:
    """A PNG of a few bytes that says it is 60,000 pixels wide and high."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))))
    return file


@pytest.fixture
def bad(tmp_path: Path, good: list[Path]) -> dict[str, Path]:
    """Files that are refused, by what is said of them."""
    (tmp_path / "notes.txt").write_text("no image at all")
    whole = good[0].read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").write_bytes(b"")
    return {
        "notes.txt is not an image": tmp_path / "notes.txt",
        "half.png is damaged or cut short": tmp_path / "half.png",
        "empty.jpg is not an image": tmp_path / "empty.jpg",
        "bomb.png is too large": bomb(tmp_path / "bomb.png"),
        "missing.png cannot be opened": tmp_path / "missing.png",
    }


def test_good_files_are_answered(finished_run: Path, good: list[Path], capsys: Said) -> None:
    assert main(["predict", str(finished_run), *map(str, good), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    result = json.loads(said.out)
    assert result["refused"] == []
    assert [answer["file"] for answer in result["predictions"]] == [str(file) for file in good]
    for answer in result["predictions"]:
        assert set(answer) >= {"file", "label", "confidence", "blocks_run", "cost_share", "path"}
        assert answer["blocks_run"] == sum(answer["path"])
        assert answer["label"] in "0123456789"


def test_bad_files_are_refused_by_name_while_the_good_are_answered(
    finished_run: Path, good: list[Path], bad: dict[str, Path], capsys: Said
) -> None:
    words = [str(file) for file in (good[0], *bad.values(), good[1])]
    assert main(["predict", str(finished_run), *words, "--json"]) == 2
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert [answer["file"] for answer in result["predictions"]] == [str(file) for file in good]
    assert [refusal["file"] for refusal in result["refused"]] == [str(file) for file in bad.values()]
    for why, refusal in zip(bad, result["refused"], strict=True):
        assert why in refusal["why"]
        assert why in said.err
    assert said.err.startswith("codinet: 5 of 7 files refused: ")
    assert said.err.count("\n") == 1


def test_people_get_a_table(
    finished_run: Path, good: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(good[0].parent)
    assert main(["predict", str(finished_run), *(file.name for file in good)]) == 0
    said = capsys.readouterr().out
    assert "one.png" in said
    assert "two [copy].bmp" in said
    assert "of 9" in said


def test_when_all_are_refused_nothing_is_printed(finished_run: Path, bad: dict[str, Path], capsys: Said) -> None:
    assert main(["predict", str(finished_run), *map(str, bad.values())]) == 2
    assert capsys.readouterr().out == ""


def test_no_file_is_no_question(finished_run: Path, capsys: Said) -> None:
    assert main(["predict", str(finished_run)]) == 2
    assert "name one image file or more" in capsys.readouterr().err
