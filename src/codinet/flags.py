"""How flags are parsed, shown and refused, in addition to tyro's own rules.

Newer versions of tyro have markers for some of this; these rules also work with the oldest version that we support.
"""

import dataclasses
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

READING = ConstructorRegistry()
_asked: set[type] = set()


@READING.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Show and refuse an optional flag as if it were required: FLOAT instead of {None}|FLOAT."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if get_origin(info.type) not in (Union, UnionType) or NoneType not in get_args(info.type) or len(kinds) != 1:
        return None
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], set(info.markers)))
    if not isinstance(found, PrimitiveConstructorSpec):
        return None
    read, write, fits = found.instance_from_str, found.str_from_instance, found.is_instance
    return dataclasses.replace(
        found,
        instance_from_str=lambda words: None if words == ["None"] else read(words),
        str_from_instance=lambda value: ["None"] if value is None else write(value),
        is_instance=lambda value: value is None or fits(value),
    )


@READING.struct_rule
def _flags(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The flags of a dataclass as tyro finds them, each displayed as `_shown` says."""
    if not dataclasses.is_dataclass(info.type) or info.type in _asked:
        return None
    _asked.add(info.type)  # or this rule would call itself instead of tyro's own rule
    try:
        found = ConstructorRegistry.get_struct_spec(info)
    finally:
        _asked.remove(info.type)
    if not isinstance(found, StructConstructorSpec):
        return None
    return dataclasses.replace(found, fields=tuple(map(_shown, found.fields)))


def _shown(flag: StructFieldSpec) -> StructFieldSpec:
    """Show a positional by its name instead of its type. Hide an empty default: the help text explains it."""
    kind, *about = get_args(flag.type) if get_origin(flag.type) is Annotated else (flag.type,)
    missing = flag.default is tyro.MISSING or flag.default is tyro.constructors.MISSING_NONPROP
    name = None
    if tyro.conf.Positional in about and get_origin(kind) is not Literal:
        name = flag.name.upper()
        name = f"[{name} ...]" if get_origin(kind) is tuple else name if missing else f"[{name}]"
    hint = "" if missing or flag.default is None or flag.default in ((), "") else None
    told: Any = Annotated[(kind, *about, tyro.conf.arg(metavar=name, help_behavior_hint=hint))]
    return dataclasses.replace(flag, type=told)


_REWORDED = {
    r"Error parsing (\S+): could not convert string to float: (.*)": r"\1 takes a number, not \2",
    r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)": r"\1 takes a whole number, not \2",
    r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]": r"\1 does not take \2",
}


def one_sentence(box: str) -> str:
    """tyro's message and its suggestion, without frame, colours and help texts."""
    parts: list[list[str]] = [[]]  # the lines before the first rule, between it and the second, …
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines():
        line = line.strip("│ ")
        if re.fullmatch(r"[─-]{3,}|[╭╰].*", line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    message, hint = [*parts, [], []][1:3]
    meant = re.search(r"--[\w-]+", " ".join(hint)) if hint and hint[0].startswith("Perhaps") else None
    sentence = " ".join(message).rstrip(".") or "The command line could not be read"
    for tyros, ours in _REWORDED.items():
        sentence = re.sub(tyros, ours, sentence)
    return sentence + (f" (perhaps you meant {meant.group()})" if meant else "")
