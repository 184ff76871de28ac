"""What the README shows is true: its Python runs, its commands exist, its links and pictures lead somewhere."""

import re
from pathlib import Path

import pytest

from codinet.cli import VERBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "codinet").symlink_to(finished_run)
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert found is not None
    exec(found.group(1), {})


def test_the_verbs_it_shows_exist() -> None:
    assert set(re.findall(r"^codinet (\w+) ", README, flags=re.MULTILINE)) <= set(VERBS)


@pytest.mark.parametrize(
    "document", ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(document: str) -> None:
    file = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text()):
        assert (file.parent / target).exists(), target
