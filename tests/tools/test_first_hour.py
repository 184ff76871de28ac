"""The first hour, without playing it: its commands, its page, what it refuses, how a command is run and ended."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import blocks_in, dialogue

from codinet.errors import UserError
from tools import first_hour as hour
from tools import first_hour_page as page

ROOT = Path(__file__).parents[2]
FOUND = page.Outcome(accuracy=96.67, cost_share=0.589, tested=60, right=141, predicted=150, onnx_same=150, onnx=150)
SUMMARY = page.Summary(FOUND, "Commit 0123456789ab, torch 2.13.0", cores=2, load=0.5)
RECORDS = [
    page.Record("Clone", "git clone REPOSITORY codinet && cd codinet", "", 2.0),
    page.Record("Train", "codinet train photos --budget 0.6", "\n".join(map(str, range(100))), 130.0),
    page.Record(
        "Explore", "codinet explore RUN", "Exploring /home/me/hour/codinet/runs/a at http://127.0.0.1:1/\n", 40.0
    ),
    page.Record("A timm network", "python network.py", "done\n", 20.0, file="network.py", program="print('done')\n"),
]
CLEAN = page.Sanitizer(
    Path("/home/me/hour/codinet"), Path("/home/me/hour"), Path("/src/codinet"), Path("/data/prepare.py")
)


def step(command: str, **changes: Any) -> hour.Step:
    return replace(hour.Step("Step", command, 1, venv=""), **changes)


def test_the_commands_are_those_of_the_documentation() -> None:
    texts = [(ROOT / "README.md").read_text(), *(file.read_text() for file in (ROOT / "docs").glob("*.md"))]
    documented = {re.sub(r"\s+#.*", "", line).strip() for text in texts for line in text.splitlines()}
    documented |= {code for text in texts for code in re.findall(r"`([^`\n]+)`", text)}
    own = {"python PREPARE imagenette data", "python3 -m venv onnx-env", "python network.py"}
    assert {one.command for one in hour.STEPS} - own <= documented


def test_every_verb_of_an_hour_is_played() -> None:
    verbs = [one.command.split()[1] for one in hour.STEPS if one.command.startswith("codinet ")]
    assert verbs == ["train", "eval", "predict", "report", "explore", "export"]


def test_the_page_shows_targets_commands_outputs_and_times() -> None:
    text = page.render(RECORDS, SUMMARY, CLEAN)
    assert "Commit 0123456789ab" in text
    assert "3.2 minutes on 2 cores | met |" in text
    assert "96.7 % of 60 test photos at 0.589 of the static cost | met |" in text
    assert "94.0 % of them (141 of 150)" in text
    assert "## Train, 2.2 minutes" in text
    assert "… 75 lines …" in text
    assert "Exploring runs/a at http://127.0.0.1:1/" in text
    blocks = blocks_in(text, "page")
    commands = [line for block in blocks if block.language == "console" for line, _ in dialogue(block.text)]
    assert commands == [record.command for record in RECORDS]
    assert [block.text for block in blocks if block.language == "python"] == ["print('done')\n"]
    pictures = re.findall(r"\]\((images/[^)]+)\)", text)
    assert len(pictures) == 4
    assert all((ROOT / "docs" / file).exists() for file in pictures)


def test_a_missed_target_is_said() -> None:
    slow = [replace(RECORDS[0], seconds=1300.0)]
    poor = replace(SUMMARY, outcome=replace(FOUND, accuracy=88.0))
    dear = replace(SUMMARY, outcome=replace(FOUND, cost_share=0.63))
    other = replace(SUMMARY, outcome=replace(FOUND, onnx_same=149))
    assert page.missed(RECORDS, SUMMARY) == []
    for records, summary, words in (
        (slow, SUMMARY, "21.7 minutes on 2 cores"),
        (RECORDS, poor, "88.0 % of 60 test photos at 0.589"),
        (RECORDS, dear, "96.7 % of 60 test photos at 0.630"),
        (RECORDS, other, "149 of 150 photos"),
    ):
        (sentence,) = page.missed(records, summary)
        assert words in sentence
        assert re.search(rf"{re.escape(words)}.*\*\*missed\*\*", page.render(records, summary, CLEAN))
    many = replace(SUMMARY, cores=16)
    assert "**not judged: 16 cores**" in page.render(slow, many, CLEAN)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("in /home/me/hour/codinet/data and /home/me/hour/codinet", "in data and ."),
        ("from /src/codinet, /home/me/hour/x", "from REPOSITORY, ../x"),
        ("/data/prepare.py: done", "PREPARE: done"),
        ("File '/usr/lib/python3.11/x.py', 1/2 and and/or", "File '…/x.py', 1/2 and and/or"),
        ("Looking in indexes: https://host/simple\nSuccessfully installed a", "Successfully installed a"),
        ("at http://127.0.0.1:8000/ and https://host/x, file:///a/b", "at http://127.0.0.1:8000/ and URL URL"),
        ("\x1b[32m50 %\r100 %\x1b[0m", "100 %"),
        ("     ━━━━ 7.1/7.1 MB\n┏━━━┓", "┏━━━┓"),
    ],
)
def test_the_machine_is_removed_from_outputs(text: str, clean: str) -> None:
    assert CLEAN(text) == clean


def test_without_photos_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs photos: --prepare must be a program that unpacks them, got .*nothing"):
        hour.play(tmp_path / "hour", tmp_path / "nothing")
    assert not (tmp_path / "hour").exists()
    with pytest.raises(UserError, match="must have 100 photos of n01440764 in train, found 0"):
        hour.choose_photos(tmp_path)


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="FOLDER must be new or empty"):
        hour.play(tmp_path, Path(__file__))


def test_photos_are_evenly_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour, "PHOTOS", 10)
    monkeypatch.setattr(hour, "NEW", 5)
    for code in hour.CLASSES:
        for part, number in (("train", 2 * hour.PHOTOS), ("val", hour.NEW)):
            folder = tmp_path / "data" / "imagenette" / part / code
            folder.mkdir(parents=True)
            for index in range(number):
                (folder / f"{index:03}.JPEG").write_text(f"{code} {part} {index}")
    hour.choose_photos(tmp_path)
    assert len(list(tmp_path.glob("photos/*/*.jpg"))) == 30
    assert len(list(tmp_path.glob("new-photos/*.jpg"))) == 15
    assert (tmp_path / "photos" / "tench" / "009.jpg").read_text() == "n01440764 train 18"
    assert (tmp_path / "new-photos" / "tench-004.jpg").read_text() == "n01440764 val 4"


def test_a_command_is_recorded(tmp_path: Path) -> None:
    given = step("echo RUN WORD && pwd", given={"RUN": "runs/a"})
    record = hour.run_step(given, tmp_path, {"WORD": "two  words"})
    assert record.command == "echo runs/a WORD && pwd"
    assert record.output.splitlines() == ["runs/a two  words", str(tmp_path)]


def test_a_failed_and_a_late_command_end_the_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="exit code 3; the end of its output is above"):
        hour.run_step(step("echo not found && exit 3"), tmp_path, {})
    assert "not found" in capsys.readouterr().err
    with pytest.raises(UserError, match="has not finished within"):
        hour.run_step(step("sleep 60", minutes=0.001), tmp_path, {})


def test_a_server_is_asked_and_stopped(tmp_path: Path) -> None:
    (tmp_path / "server.sh").write_text(
        "trap 'echo stopped; exit 0' INT\necho at http://127.0.0.1:1/\nsleep 30 & wait\n"
    )
    record = hour.run_step(step("bash server.sh", ask=lambda url, _: f"asked {url}"), tmp_path, {})
    assert record.output.split("\n") == ["at http://127.0.0.1:1/", "stopped", "asked http://127.0.0.1:1/"]


def test_the_onnx_example_of_the_documentation_is_found() -> None:
    program = hour.onnx_example(ROOT)
    assert "onnxruntime" in program
    assert not re.search(r"import (torch|codinet)|from (torch|codinet)", program)
