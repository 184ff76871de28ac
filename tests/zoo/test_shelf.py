import logging
from pathlib import Path

import pytest

from codinet.errors import UserError
from codinet.files import DamagedError
from codinet.zoo.shelf import cards, find, listed

NAME = "digits-resnet20-06"


@pytest.mark.parametrize("content", [b'{"of": "another program"}', b"{", b"[]", b"\xff"])
def test_an_invalid_file_is_skipped_with_one_warning(
    zoo: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (zoo / "stray.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert [card.name for card in cards()] == [entry["name"] for entry in listed()] == [NAME]
    assert len(caplog.messages) == 1
    assert "stray.json" in caplog.messages[0]
    assert caplog.messages[0].endswith("It is skipped.")


def test_a_network_is_found_beside_invalid_files(zoo: Path, caplog: pytest.LogCaptureFixture) -> None:
    (zoo / "stray.json").write_text("{}")
    assert find(NAME).name == NAME
    assert caplog.messages == []  # they were not read
    with pytest.raises(DamagedError, match="is not a card that this version reads"):
        find("stray")
    with pytest.raises(UserError, match=rf"Unknown network of the zoo 'other'; choose from {NAME}\."):
        find("other")
