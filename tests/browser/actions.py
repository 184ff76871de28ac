"""What several browser tests do on a page."""

from typing import Any

import pytest


def until(page: Any, question: str, arg: Any = None) -> None:
    """Polls from Python, because a page whose policy forbids `eval` cannot poll itself."""
    for _ in range(200):
        if page.evaluate(question, arg):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true: {question}")


def slide(page: Any, value: float) -> None:
    """Moves the slider of the explorer."""
    page.locator("#threshold").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); }",
        value,
    )
