import csv
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from PIL import Image

from codinet import files
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
        "half.png is damaged or truncated": tmp_path / "half.png",
        "empty.jpg is not an image": tmp_path / "empty.jpg",
        "bomb.png is too large": bomb(tmp_path / "bomb.png"),
        "missing.png cannot be opened": tmp_path / "missing.png",
    }


def test_good_files_are_answered(finished_run: Path, good: list[Path], capsys: Said) -> None:
    assert main(["predict", str(finished_run), *map(str, good), "--json", "--device", "cpu"]) == 0
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
    assert main(["predict", str(finished_run), *words, "--json", "--device", "cpu"]) == 2
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
    assert main(["predict", str(finished_run), *(file.name for file in good), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "one.png" in said
    assert "two [copy].bmp" in said
    assert "of 9" in said


def test_names_of_files_are_whole_where_no_person_reads_them(
    finished_run: Path, tmp_path: Path, good: list[Path], capsys: Said
) -> None:
    file = tmp_path / ("a long name " * 15 + ".png")
    good[0].rename(file)
    assert main(["predict", str(finished_run), str(file), "--device", "cpu"]) == 0
    assert str(file) in capsys.readouterr().out


def test_of_a_folder_all_images_are_answered_in_the_order_of_their_names(
    finished_run: Path, tmp_path: Path, good: list[Path], bad: dict[str, Path], capsys: Said
) -> None:
    (tmp_path / "below.png").mkdir()
    (tmp_path / ".hidden.png").write_bytes(good[0].read_bytes())
    folder, single = tmp_path, tmp_path / "below.png" / "ONE.PNG"
    single.write_bytes(good[0].read_bytes())
    assert main(["predict", str(finished_run), str(single.parent), str(folder), "--json", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert [answer["file"] for answer in result["predictions"]] == [str(file) for file in (single, *good)]
    refused = [folder / name for name in ("bomb.png", "empty.jpg", "half.png")]
    assert [refusal["file"] for refusal in result["refused"]] == [str(file) for file in refused]
    assert said.err.startswith("codinet: 3 of 6 files refused: ")


def test_a_folder_without_images_is_refused_by_name(
    finished_run: Path, tmp_path: Path, good: list[Path], capsys: Said
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["predict", str(finished_run), str(good[0]), str(tmp_path / "empty"), "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert "one.png" in said.out
    assert f"1 of 2 files refused: {tmp_path / 'empty'} contains no images" in said.err


@pytest.mark.parametrize(("threshold", "blocks"), [("0", 9), ("1", 0)])
def test_the_threshold_decides_how_much_runs(
    finished_run: Path, good: list[Path], threshold: str, blocks: int, capsys: Said
) -> None:
    assert (
        main(["predict", str(finished_run), str(good[0]), "--threshold", threshold, "--json", "--device", "cpu"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["threshold"] == float(threshold)
    assert [answer["blocks_run"] for answer in result["predictions"]] == [blocks]


def test_a_threshold_must_be_a_probability(finished_run: Path, good: list[Path], capsys: Said) -> None:
    assert main(["predict", str(finished_run), str(good[0]), "--threshold", "1.5", "--device", "cpu"]) == 2
    assert "--threshold must be a number from 0 to 1, got 1.5" in capsys.readouterr().err


def test_when_all_are_refused_nothing_is_printed(finished_run: Path, bad: dict[str, Path], capsys: Said) -> None:
    assert main(["predict", str(finished_run), *map(str, bad.values()), "--device", "cpu"]) == 2
    assert capsys.readouterr().out == ""


def test_no_file_is_no_question(finished_run: Path, capsys: Said) -> None:
    assert main(["predict", str(finished_run), "--device", "cpu"]) == 2
    assert "give one image file or more" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--json"], []])
def test_an_answer_that_is_not_a_number_is_refused(
    own_run: Path, good: list[Path], more: list[str], capsys: Said
) -> None:
    file = own_run / "model.safetensors"
    tensors, about = files.load_tensors(file)
    tensors["fc.weight"].fill_(3e38)  # finite, but the logits are not
    files.save_tensors(file, tensors, about)
    assert main(["predict", str(own_run), str(good[0]), *more, "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert f"The network computes NaN or infinity for {good[0]}" in said.err
    if more:
        content = files.parse_json(said.out)  # strict
        assert content["predictions"] == []
        assert len(content["refused"]) == 1
    assert main(["eval", str(own_run), *more, "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "The network computes NaN or infinity on images of few" in said.err


@pytest.mark.parametrize("number", [1, 2])
def test_an_answer_whose_routers_overflow_is_refused(
    own_run: Path, good: list[Path], number: int, capsys: Said
) -> None:
    file = own_run / "model.safetensors"
    tensors, about = files.load_tensors(file)
    tensors["routers.each.0.hidden.weight"].fill_(1)
    tensors["routers.each.0.out.weight"].fill_(3e38)
    files.save_tensors(file, tensors, about)
    assert main(["predict", str(own_run), *map(str, good[:number]), "--json", "--device", "cpu"]) == 2
    content = files.parse_json(capsys.readouterr().out)
    assert content["predictions"] == []
    assert len(content["refused"]) == number
    assert all("NaN or infinity" in refusal["why"] for refusal in content["refused"])


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("batch", ["1", "2", "5"])
def test_the_batch_size_does_not_change_the_answers(
    finished_run: Path, good: list[Path], bad: dict[str, Path], batch: str, capsys: Said
) -> None:
    words = [str(file) for file in (good[0], *bad.values(), good[1])]
    documents = []
    for more in ([], ["--batch", batch]):
        assert main(["predict", str(finished_run), *words, *more, "--json", "--device", "cpu"]) == 2
        documents.append(json.loads(capsys.readouterr().out))
    one, other = documents
    assert other["refused"] == one["refused"]
    for ours, theirs in zip(other["predictions"], one["predictions"], strict=True):
        assert ours.keys() == theirs.keys()
        assert (ours["file"], ours["label"], ours["path"]) == (theirs["file"], theirs["label"], theirs["path"])
        assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--batch", "0"], "--batch must be 1 or more, got 0"),
        (["--out", "answers.xlsx"], "--out must end in .csv or .parquet, got answers.xlsx"),
        (["--out", "answers"], "--out must end in .csv or .parquet, got answers"),
        (["--out", "missing/answers.csv"], "Cannot write to the folder missing: No such file or directory"),
        (["--out", "notes/answers.csv"], "Cannot write to the folder notes: Not a directory"),
        (["--out", "folder.csv"], "--out must be a file, got the folder folder.csv"),
    ],
)
def test_invalid_flags_are_rejected_before_the_run_is_opened(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "notes").write_text("a file")
    before = sorted(tmp_path.iterdir())
    assert main(["predict", "no-such-run", "a.png", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"codinet: {sentence}")
    assert said.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_csv_has_a_row_for_each_file(
    finished_run: Path, good: list[Path], bad: dict[str, Path], tmp_path: Path, capsys: Said
) -> None:
    out, words = tmp_path / "answers.csv", [str(file) for file in (good[0], *bad.values(), good[1])]
    out.write_text("an earlier table")
    assert main(["predict", str(finished_run), *words, "--out", str(out), "--json", "--device", "cpu"]) == 2
    content = json.loads(capsys.readouterr().out)
    table = rows(out)
    assert list(table[0]) == ["file", "label", "confidence", "blocks_run", "cost_share", "path", "error"]
    assert [row["file"] for row in table] == words
    answered = [row for row in table if not row["error"]]
    for row, expected in zip(answered, content["predictions"], strict=True):
        assert (row["file"], row["label"]) == (expected["file"], expected["label"])
        assert float(row["confidence"]) == expected["confidence"]
        assert float(row["cost_share"]) == expected["cost_share"]
        assert int(row["blocks_run"]) == expected["blocks_run"]
        assert [int(digit) for digit in row["path"]] == expected["path"]
    refused = [row for row in table if row["error"]]
    assert [(row["file"], row["error"]) for row in refused] == [(one["file"], one["why"]) for one in content["refused"]]
    assert {row[name] for row in refused for name in ("label", "confidence", "blocks_run", "cost_share", "path")} == {
        ""
    }
    assert main(["predict", str(finished_run), str(good[0]), "--out", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr() == (f"Wrote 1 row to {out}\n", "")
    assert len(rows(out)) == 1


def test_csv_quotes_names_that_look_like_formulas_or_have_line_breaks(
    finished_run: Path, good: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["=1+2,3.png", "@sum.png", 'a "quoted"\nname.png', "+1.png", "\ttab.png"]
    for name in names:
        Path(name).write_bytes(good[0].read_bytes())
    raw = b"\xff.png"
    Path(raw.decode(errors="surrogateescape")).write_bytes(good[0].read_bytes())
    words = [*names, raw.decode(errors="surrogateescape")]
    assert main(["predict", str(finished_run), *words, "--out", "answers.csv", "--device", "cpu"]) == 0
    assert [row["file"] for row in rows(Path("answers.csv"))] == [*names, "\\udcff.png"]
    text = Path("answers.csv").read_text()
    assert '\n"=1+2,3.png","' in text
    assert '\n"@sum.png","' in text
    assert '\n"a ""quoted""\nname.png","' in text


def test_a_full_disk_leaves_the_earlier_table(
    finished_run: Path,
    good: list[Path],
    tmp_path: Path,
    disk_of: Callable[[int], AbstractContextManager[None]],
    capsys: Said,
) -> None:
    out = tmp_path / "answers.csv"
    out.write_text("an earlier table")
    with disk_of(10):
        assert main(["predict", str(finished_run), str(good[0]), "--out", str(out), "--device", "cpu"]) == 2
    assert f"Could not write {out}" in capsys.readouterr().err
    assert out.read_text() == "an earlier table"


def test_parquet_needs_pyarrow(tmp_path: Path, hide_package: Callable[[str], None], capsys: Said) -> None:
    hide_package("pyarrow")
    assert main(["predict", "no-such-run", "a.png", "--out", str(tmp_path / "answers.parquet")]) == 2
    assert capsys.readouterr().err == (
        "codinet: A .parquet file needs pyarrow; install it with pip install pyarrow, or choose a .csv file.\n"
    )


def test_parquet_has_the_columns_of_csv(
    finished_run: Path, good: list[Path], bad: dict[str, Path], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["predict", str(finished_run), str(good[0]), str(bad["notes.txt is not an image"]), "--device", "cpu"]
    for name in ("answers.csv", "answers.parquet"):
        assert main([*words, "--out", str(tmp_path / name)]) == 2
    one, other = parquet.read_table(tmp_path / "answers.parquet").to_pylist()
    plain, refused = rows(tmp_path / "answers.csv")
    assert {name: str(value) for name, value in one.items() if value is not None} == {
        name: value for name, value in plain.items() if value
    }
    assert (other["file"], other["label"], other["error"]) == (refused["file"], None, refused["error"])


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_in_a_terminal_only(
    finished_run: Path, good: list[Path], terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    assert main(["predict", str(finished_run), *map(str, good), "--json", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert ("2/2" in said.err) is terminal
    assert len(json.loads(said.out)["predictions"]) == 2
