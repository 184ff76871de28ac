import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NAME = "digits-resnet20-06"


@pytest.fixture
def change_card(zoo: Path) -> Callable[..., Path]:
    """Changes entries of the card; the value "removed" removes one. Returns the card's file."""

    def change(**values: Any) -> Path:
        file = zoo / f"{NAME}.json"
        content = {**json.loads(file.read_text()), **values}
        file.write_text(json.dumps({key: value for key, value in content.items() if value != "removed"}))
        return file

    return change
