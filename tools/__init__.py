"""Maintainer tools, run from the repository root as `python -m tools.NAME`. They are not part of the wheel."""
