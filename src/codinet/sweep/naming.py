"""Names of runs: network and method, what they were asked to cost, and whatever else tells them apart."""

from collections.abc import Sequence
from typing import Any

from codinet.config import RunConfig
from codinet.sweep.methods import method_of

# How a field is written where runs of one method differ in it, in this order.
_FIELDS = (
    ("network", "router", "{}"),
    ("network", "relaxation", "{}"),
    ("losses", "alpha", "alpha{}"),
    ("losses", "beta", "beta{}"),
    ("losses", "m_c", "mc{}"),
    ("losses", "m_d", "md{}"),
)


def names_of(configs: Sequence[RunConfig]) -> list[str]:
    """A name for each config, the seed left out: equal for runs that differ in their seed alone, else not."""
    values: dict[tuple[str, str], set[Any]] = {}
    for config in configs:
        for part, field, _ in _FIELDS:
            values.setdefault((method_of(config), field), set()).add(_value(config, part, field))
    return [_name(config, values) for config in configs]


def _name(config: RunConfig, values: dict[tuple[str, str], set[Any]]) -> str:
    method = method_of(config)
    words = [config.network.arch, method]
    for field in ("budget", "gamma"):
        if (number := _value(config, "losses", field)) is not None:
            words.append(f"{field}{_short(number)}")
    words += [
        form.format(_short(_value(config, part, field)))
        for part, field, form in _FIELDS
        if len(values[method, field]) > 1
    ]
    return "-".join(words)


def _value(config: RunConfig, part: str, field: str) -> Any:
    return getattr(getattr(config, part), field)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    brief = f"{value:g}"
    # Two numbers must never share a name.
    return brief if float(brief) == value else repr(value)
