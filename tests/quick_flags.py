"""Has tyro derive the flags of a command once. It does so for every command line, which takes 0.1 s for `train`."""

from typing import Any

from tyro._parsers import ParserSpecification


def derive_flags_once() -> None:
    derive, derived = ParserSpecification.from_callable_or_type, {}

    def cached(kind: Any, **settings: Any) -> ParserSpecification:
        if settings["parent_classes"]:  # a part of a command
            return derive(kind, **settings)
        if kind not in derived:
            derived[kind] = derive(kind, **settings)
        return derived[kind]

    ParserSpecification.from_callable_or_type = cached  # type: ignore[assignment]
