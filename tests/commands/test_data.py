import json
from pathlib import Path

import pytest

from codinet.cli import main
from codinet.data.catalogue import KNOWN

Said = pytest.CaptureFixture[str]


def test_known_sets_are_listed_with_their_terms(tmp_path: Path, capsys: Said) -> None:
    assert main(["data", "--json", "--data-root", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    assert {row["name"]: row["present"] for row in rows} == {name: name == "digits" for name in KNOWN}
    assert all(row["terms"] and row["page"].startswith("http") for row in rows)


def test_without_json_a_table_is_printed(tmp_path: Path, capsys: Said) -> None:
    assert main(["data", "list", "--data-root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in KNOWN)


def test_list_takes_no_names(capsys: Said) -> None:
    assert main(["data", "list", "cifar10", "svhn"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "codinet: list shows all data sets and takes no names, got 'cifar10 svhn'.\n"


def test_the_embedded_digits_verify(capsys: Said) -> None:
    assert main(["data", "verify", "digits", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["digits"]
    assert verdict["ok"] is True
    assert main(["data", "download", "digits"]) == 0


def test_files_that_do_not_verify_are_an_error_after_the_table(tmp_path: Path, capsys: Said) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    (folder / "train_32x32.mat").write_bytes(b"cut short")
    assert main(["data", "verify", "svhn", "--json", "--data-root", str(tmp_path)]) == 2
    said = capsys.readouterr()
    verdicts = {verdict["file"]: verdict for verdict in json.loads(said.out)["svhn"]}
    assert "truncated" in verdicts["train_32x32.mat"]["detail"]
    assert verdicts["test_32x32.mat"]["detail"] == "missing"
    assert "codinet data download svhn" in said.err


@pytest.mark.parametrize("action", ["download", "verify"])
@pytest.mark.parametrize(
    ("names", "words"),
    [([], "requires a data set, for example codinet data"), (["cifr10"], "perhaps you meant cifar10")],
)
def test_a_wrong_name_is_refused(action: str, names: list[str], words: str, capsys: Said) -> None:
    assert main(["data", action, *names]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
