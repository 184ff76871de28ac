"""Training methods: how routers score, decide and learn. One module per method, each with a `METHOD`.

The rest of codinet gets a method by the name that a config records, and knows none of them. This module lists the names
and imports no torch; `method` has the interface, and `router_kinds` the routers of all methods.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codinet.methods.method import Method

NAMES = (  # each is a module
    *("codinet", "vanilla", "static", "convaig", "skipnet", "blockdrop", "act", "sact"),
    *("random", "fixed"),
)
DEFAULT = NAMES[0]


def method_named(name: str) -> "Method":
    """Return a method by its name; `UserError` for an unknown one."""
    from codinet.checks import require_choice

    require_choice("method", name, NAMES)
    return importlib.import_module(f"codinet.methods.{name}").METHOD
