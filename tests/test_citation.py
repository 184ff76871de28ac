"""What is cited is what there is: one version, and no date before the release."""

import re
from pathlib import Path

from codinet import __version__

ROOT = Path(__file__).parents[1]
CITATION = (ROOT / "CITATION.cff").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def cited(entry: str) -> str | None:
    found = re.search(rf"^{entry}: (.+)$", CITATION, flags=re.MULTILINE)
    return found and found[1]


def test_citation_and_changelog_name_the_packages_version_and_one_date() -> None:
    heading = re.search(r"^## (\S+) \((\S+)\)$", CHANGELOG, flags=re.MULTILINE)
    assert heading is not None
    assert heading[1] == cited("version") == __version__
    assert heading[2] == (cited("date-released") or "unreleased")
