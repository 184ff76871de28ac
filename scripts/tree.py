"""The README's tree: one line a module, from the first sentence of its docstring.

python scripts/tree.py           rewrites the tree between its two markers
python scripts/tree.py --check   exits 1 where the README is behind
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "codinet"
START, END = "<!-- tree -->", "<!-- /tree -->"


def tree() -> str:
    """Files of the package first, then its rooms."""
    lines = ["```", "src/codinet/"]
    lines += [_line(file, 1) for file in sorted(PACKAGE.glob("*.py"))]
    for room in sorted(folder for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()):
        lines.append(f"  {room.name}/".ljust(28) + _first_sentence(room / "__init__.py"))
        lines += [_line(file, 2) for file in sorted(room.glob("*.py")) if file.name != "__init__.py"]
    return "\n".join([*lines, "```"])


def _line(file: Path, depth: int) -> str:
    return f"{'  ' * depth}{file.name}".ljust(28) + _first_sentence(file)


def _first_sentence(file: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<!Eq)\. ", text)[0].rstrip(".:")


def main() -> int:
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(START)
    _, after = rest.split(END)
    wanted = f"{before}{START}\n{tree()}\n{END}{after}"
    if "--check" in sys.argv:
        return int(readme.read_text() != wanted)
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
