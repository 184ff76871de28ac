"""`codinet train --config`: flags from a YAML or JSON file, or the settings of an earlier run.

A file has the names of the flags as keys, either in one level (`epochs: 30`) or in the parts of a run's config.json
(`schedule: {epochs: 30}`). Its values become a command line and are checked like one.
"""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from codinet import files
from codinet.cli import parse
from codinet.commands.own_data import NONE
from codinet.config import PARTS, RunConfig, flag_of
from codinet.errors import UserError, shown, suggestion
from codinet.methods import method_named

_MAX_YAML_BYTES = 2**20
_MAX_JSON_BYTES = 2**24  # config.json of a run also has the names of all classes
_NOT_IN_FILES = ("config", "resume", "json", "wait_minutes")
# A setting on the command line, and the settings of the file that it replaces as well.
_REPLACES = {
    "budget": ("gamma", "target_rate"),
    "gamma": ("budget", "target_rate"),
    "target_rate": ("budget", "gamma"),
    "start": ("start_sha256", "weights", "weights_sha256", "pretrained"),
    "weights": ("weights_sha256", "start", "start_sha256", "pretrained"),
    "pretrained": ("start", "start_sha256", "weights", "weights_sha256"),
    "teacher": ("teacher_sha256", "distill"),
    "schedule": ("milestones",),
}

A = TypeVar("A")  # the flags of `codinet train`


def with_file(args: A) -> A:
    """The flags of --config with those of the command line, which come first.

    Args:
        args: The flags of the command line, with `config`, the file. All flags that a file may set are None, or a dict
            of the given ones.
    """
    given: Any = args
    path = given.config
    entries = _entries(_read(path), path, type(args))
    source = entries.pop("source", None)
    typed = {name for part in PARTS for name in getattr(given, part)}
    replaced = {other for name in typed for other in _REPLACES.get(name, ())} - typed
    if given.method is not None:  # it has its own defaults for these
        replaced |= {"routed", "router", "alpha", "beta", "score_decay"} - typed
    if given.network.get("routed") is False or (given.method is not None and not method_named(given.method).routed):
        replaced |= {"budget", "gamma", "target_rate"} - typed
    words = [word for name, value in entries.items() if name not in replaced for word in _words(name, value, path)]
    try:
        from_file: Any = parse(type(args), words, prog="codinet train")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if source is not None and not isinstance(source, str):
        raise UserError(f"{path}: source must be text.")
    start, arch = from_file.extra.get("start") or NONE, given.network.get("arch")
    if "start" not in typed and start.lower() != NONE and arch not in (None, from_file.network.get("arch", arch)):
        raise UserError(f"The settings of {path} start from {start}, which is not a {arch}; add --start none.")
    changes: dict[str, Any] = {"source": given.source or source or ""}
    for entry in dataclasses.fields(given):
        ours, theirs = getattr(given, entry.name), getattr(from_file, entry.name)
        if entry.name in PARTS:
            changes[entry.name] = theirs | ours
        elif entry.name not in ("source", *_NOT_IN_FILES):
            changes[entry.name] = theirs if ours is None else ours
    return dataclasses.replace(given, **changes)


def _read(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    suffix = file.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise UserError(f"--config must be a .yaml or .json file, or a run folder, got {path}.")
    try:
        text = files.read(file, _MAX_JSON_BYTES if suffix == ".json" else _MAX_YAML_BYTES)
    except OSError as error:
        raise files.unreadable(file, error) from error
    try:
        content = files.parse_json(text) if suffix == ".json" else _parse_yaml(text)
    except ValueError as error:
        raise UserError(f"--config {file} cannot be read ({error}).") from error
    if isinstance(content, dict) and "format" in content and isinstance(content.get("config"), dict):
        content = content["config"]  # of a run folder
    if not isinstance(content, dict):
        raise UserError(f"--config {file} must have settings with names, such as epochs: 30.")
    return content


def _parse_yaml(text: bytes) -> Any:
    """Parse YAML; `ValueError` if it is invalid."""
    try:
        import yaml
    except ImportError as error:
        raise UserError("YAML files require pyyaml; install it with pip install pyyaml, or use JSON.") from error
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("aliases are not supported")  # a few nested ones expand to gigabytes
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem or 'invalid YAML'}{where}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("it is not valid YAML") from error


def _entries(content: dict[Any, Any], path: Path, kind: type) -> dict[str, Any]:
    """The settings of a file by name. An unknown name and one that is given twice are a `UserError`."""
    settings = _settings()
    switches = {name for name, hint in get_type_hints(kind).items() if bool in get_args(hint)} | {"routed"}
    others = {entry.name for entry in dataclasses.fields(kind)} - {*PARTS, *_NOT_IN_FILES}
    found: dict[str, Any] = {}

    def add(key: Any, value: Any, known: set[str]) -> None:
        name = key.replace("-", "_") if isinstance(key, str) else None
        if name not in known:
            near = suggestion(name, known) if name else ""
            raise UserError(f"{path} has an unknown setting {shown(key)}{near}; see codinet train --help.")
        if name in found:
            raise UserError(f"{path} has the setting {name} twice.")
        if name in switches and not isinstance(value, bool | None):
            raise UserError(f"{path}: {name} must be true or false.")
        found[name] = value

    for key, value in content.items():
        if key in PARTS and isinstance(value, dict):  # "schedule" is a part and a setting
            for inner, setting in value.items():
                add(inner, setting, set(get_type_hints(get_type_hints(RunConfig)[key])))
        elif key not in PARTS or key in settings:
            add(key, value, settings | others)
        elif value is not None:
            raise UserError(f"{path}: {key} must have settings with names, such as those of a run's config.json.")
    return found


def _settings() -> set[str]:
    """The names of all settings of a run that are in a part of its config."""
    return {name for part in PARTS for name in get_type_hints(get_type_hints(RunConfig)[part])}


def _words(name: str, value: Any, path: Path) -> list[str]:
    """A setting on the command line."""
    flag = flag_of(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, list) and all(type(item) in (int, float) for item in value):
        return [flag, *map(str, value)]
    if value is None:
        return [f"{flag}=None"] if name in _settings() else []
    if type(value) not in (int, float, str):
        raise UserError(f"{path}: {name} must be a number, text, true or false, or a list of numbers.")
    return [f"{flag}={value}"]
