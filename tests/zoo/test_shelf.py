import logging
from pathlib import Path

import pytest

from codinet.errors import UserError
from codinet.files import DamagedError
from codinet.zoo.shelf import cards, find, listed

NAME = "digits-resnet20-06"


@pytest.mark.parametrize("content", [b'{"of": "another program"}', b"{", b"[]", b"\xff"])
def test_a_file_that_is_no_card_is_told_of_once_and_left_out(
    zoo: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (zoo / "stray.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert [card.name for card in cards()] == [entry["name"] for entry in listed()] == [NAME]
    assert len(caplog.messages) == 1
    assert "stray.json" in caplog.messages[0]
    assert caplog.messages[0].endswith("It is left out of the zoo.")


def test_a_network_is_found_beside_files_that_are_no_cards(zoo: Path, caplog: pytest.LogCaptureFixture) -> None:
    (zoo / "stray.json").write_text("{}")
    assert find(NAME).name == NAME
    assert caplog.messages == []  # they were not read
    with pytest.raises(DamagedError, match="is no card that this version reads"):
        find("stray")
    with pytest.raises(UserError, match=rf"'other' is no network of the zoo known here; known are {NAME}\."):
        find("other")
