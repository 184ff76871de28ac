"""How the command line parses flags and shows them: additions to tyro's rules, and checks that verbs share."""

import ast
import dataclasses
import inspect
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from codinet.errors import UserError

REGISTRY = ConstructorRegistry()
_expanding: set[type] = set()  # dataclasses whose flags are being looked up


def require_probability(flag: str, value: float) -> None:
    """`UserError` unless the value is between 0 and 1. `flag` is the name without dashes."""
    if not 0 <= value <= 1:
        raise UserError(f"--{flag} must be a number from 0 to 1, got {value:g}.")


def given_only(presets: Mapping[str, Any]) -> Any:
    """A type for tyro with the flags of a dataclass; parsing gives a dict of the flags on the command line only.

    So a default may depend on another flag without a second look at the command line.

    Args:
        presets: Instances of the dataclass by name, for the defaults in the help text. The first is the default one.
    """
    names, values = list(presets), list(presets.values())
    kind = type(values[0])
    hints, texts = get_type_hints(kind), _attribute_docstrings(kind)
    flags = {}
    for entry in dataclasses.fields(kind):
        by_default: dict[str, list[str]] = {}
        for name, value in zip(names, values, strict=True):
            by_default.setdefault(_default_text(getattr(value, entry.name)), []).append(name)
        default, *others = by_default
        shown = [f"default: {default}"] if default else []
        shown += [f"{', '.join(by_default[other])}: {other}" for other in others]
        hint = f"({'; '.join(shown)})" if shown else ""
        flags[entry.name] = Annotated[hints[entry.name], tyro.conf.arg(help=texts[entry.name], help_behavior_hint=hint)]
    made = TypedDict(kind.__name__, flags, total=False)  # type: ignore[misc]
    made.__doc__ = kind.__doc__
    return made


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """The string below each field of a class."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        above.target.id: below.value.value
        for above, below in pairwise(definition.body)
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _default_text(value: Any) -> str:
    """A default as it would be typed; empty for None, which the help text explains."""
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return " ".join(shlex.quote(str(one)) for one in values)


@REGISTRY.primitive_rule
def _optional_flag(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Show an optional flag like a required one: FLOAT instead of {None}|FLOAT. The value None is still accepted."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if get_origin(info.type) not in (Union, UnionType) or NoneType not in get_args(info.type) or len(kinds) != 1:
        return None
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], set(info.markers)))
    if not isinstance(found, PrimitiveConstructorSpec):
        return None
    parse, to_words, is_instance = found.instance_from_str, found.str_from_instance, found.is_instance
    return dataclasses.replace(
        found,
        instance_from_str=lambda words: None if words == ["None"] else parse(words),
        str_from_instance=lambda value: ["None"] if value is None else to_words(value),
        is_instance=lambda value: value is None or is_instance(value),
    )


@REGISTRY.struct_rule
def _dataclass_flags(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The flags that tyro finds in a dataclass, displayed by `_displayed`."""
    if not dataclasses.is_dataclass(info.type) or info.type in _expanding:
        return None
    _expanding.add(info.type)  # without this, the next call would end up here again
    try:
        found = ConstructorRegistry.get_struct_spec(info)
    finally:
        _expanding.remove(info.type)
    if not isinstance(found, StructConstructorSpec):
        return None
    return dataclasses.replace(found, fields=tuple(map(_displayed, found.fields)))


def _displayed(flag: StructFieldSpec) -> StructFieldSpec:
    """Show a positional argument by its name instead of its type, and hide an empty default."""
    kind, *markers = get_args(flag.type) if get_origin(flag.type) is Annotated else (flag.type,)
    if any(getattr(marker, "constructor_factory", None) for marker in markers):  # of `given_only`
        return flag
    required = flag.default is tyro.MISSING or flag.default is tyro.constructors.MISSING_NONPROP
    name = None
    if tyro.conf.Positional in markers and get_origin(kind) is not Literal:
        name = flag.name.upper()
        name = f"[{name} ...]" if get_origin(kind) is tuple else name if required else f"[{name}]"
    hint = "" if required or flag.default is None or flag.default in ((), "") else None
    annotated: Any = Annotated[(kind, *markers, tyro.conf.arg(metavar=name, help_behavior_hint=hint))]
    return dataclasses.replace(flag, type=annotated)


_REWORDED = {
    r"Error parsing (\S+): could not convert string to float: (.*)": r"\1 must be a number, got \2",
    r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)": r"\1 must be a whole number, got \2",
    r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]": r"\1 does not accept \2",
    r"invalid choice (\S+) for argument '(\S+)'. Expected one of \((.*?),?\)": r"\2 must be one of \3, got \1",
    r"Missing value for argument '(\S+)'. Expected \d+ values": r"\1 requires a value",
}


def one_sentence(box: str) -> str:
    """tyro's error message and its suggestion, without frame, colours and help texts."""
    parts: list[list[str]] = [[]]  # the lines before the first horizontal rule, between it and the second, …
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines():
        line = line.strip("│ ")
        if re.fullmatch(r"[─-]{3,}|[╭╰].*", line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    message, suggestion = [*parts, [], []][1:3]
    similar = re.search(r"--[\w-]+", " ".join(suggestion)) if " ".join(suggestion).startswith("Perhaps") else None
    sentence = " ".join(message).rstrip(".") or "The command line cannot be parsed"
    for pattern, replacement in _REWORDED.items():
        sentence = re.sub(pattern, replacement, sentence)
    return sentence + (f" (perhaps you meant {similar.group()})" if similar else "")
