import json
from pathlib import Path

import pytest

from codinet.files import DamagedError
from codinet.sweep import Planned
from codinet.sweep.folder import PLAN, keep_plan


@pytest.fixture
def begun(tmp_path: Path, planned: list[Planned]) -> Path:
    """A folder with a plan."""
    keep_plan(tmp_path, planned)
    return tmp_path / PLAN


def test_a_plan_from_before_a_setting_is_the_same_sweep(begun: Path, planned: list[Planned]) -> None:
    content = json.loads(begun.read_text())
    for run in content["runs"]:
        del run["config"]["extra"], run["config"]["data"]["watch"], run["config"]["schedule"]["milestones"]
    begun.write_text(json.dumps(content))
    keep_plan(begun.parent, planned)


def test_a_plan_with_settings_that_nobody_knows_says_which(begun: Path, planned: list[Planned]) -> None:
    content = json.loads(begun.read_text())
    content["runs"][0]["config"]["network"]["depth"] = 7
    begun.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match=r"sweep\.json is not a sweep's plan \(.*unknown or missing entries depth\)"):
        keep_plan(begun.parent, planned)
