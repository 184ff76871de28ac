from pathlib import Path

import pytest

from codinet.analysis.names import short_names
from codinet.errors import UserError


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names([Path("/a/b/one"), Path("/a/c/two")]) == ["one", "two"]
    assert short_names([Path("/a/b/one"), Path("/a/c/one")]) == ["b/one", "c/one"]


def test_the_same_folder_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="twice"):
        short_names([tmp_path, tmp_path / "x" / ".."])
