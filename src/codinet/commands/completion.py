"""`codinet --completion SHELL`: one completion script for all verbs, made from their help texts.

The script is static, so that pressing Tab does not start Python.
"""

import contextlib
import importlib
import io
import os
import re
from functools import cache
from typing import NamedTuple

from codinet.cli import VERBS, parse
from codinet.errors import UserError, unknown

# zsh runs the bash script. A second compinit would forget the completions that were defined since the first one.
_ZSH = """(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -Uz bashcompinit && bashcompinit
"""


class _Flag(NamedTuple):
    name: str
    takes_value: bool
    choices: tuple[str, ...]


def script(shell: str = "") -> str:
    """The completion script.

    Args:
        shell: bash, zsh or fish.
    """
    if not shell:
        raise UserError("--completion requires the name of a shell: bash, zsh or fish.")
    if shell not in ("bash", "zsh", "fish"):
        raise unknown("shell", shell, ("bash", "zsh", "fish"))
    flags = {verb: _flags(verb) for verb in VERBS}
    if shell == "fish":
        return _fish(flags)
    return (_ZSH if shell == "zsh" else "") + _bash(flags)


@cache
def _flags(verb: str) -> list[_Flag]:
    """The flags in a verb's help text."""
    module, text = importlib.import_module(f"codinet.commands.{verb}"), io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"  # one column of flags, each in one line with its values
    try:
        with contextlib.redirect_stdout(text):
            parse(module.Args, ["--help"], prog=f"codinet {verb}")
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns
    found = []
    for head in re.findall(r"^[^\w-]{2}(--\w.*?)(?:  |$)", text.getvalue(), re.MULTILINE):
        names, value = re.findall(r"--[\w-]+", head), re.sub(r"--[\w-]+,?", "", head).strip()
        choices = re.search(r"\{([^}]*)\}", value)
        found += [_Flag(name, bool(value), tuple(choices[1].split(",")) if choices else ()) for name in names]
    return found


def _bash(flags: dict[str, list[_Flag]]) -> str:
    values = [
        f'      "{verb} {flag.name}") found="{" ".join(flag.choices)}" ;;'
        for verb, all_flags in flags.items()
        for flag in all_flags
        if flag.choices
    ]
    names = [f'      {verb}) found="{" ".join(flag.name for flag in flags[verb])}" ;;' for verb in flags]
    lines = [
        "_codinet() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" found=""',
        "  if (( COMP_CWORD == 1 )); then",
        f'    found="{" ".join(flags)}"',
        '  elif [[ "$cur" == -* ]]; then',
        '    case "${COMP_WORDS[1]}" in',
        *names,
        "    esac",
        "  else",
        '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in',
        *values,
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$found" -- "$cur"))',
        "}",
        "complete -o default -F _codinet codinet",
    ]
    return "\n".join(lines)


def _fish(flags: dict[str, list[_Flag]]) -> str:
    lines = [
        "function __codinet_verb",
        "    set -l typed (commandline -opc)",
        '    test (count $typed) -gt 1; and test "$typed[2]" = $argv[1]',
        "end",
        *(f"complete -c codinet -n __fish_use_subcommand -f -a {verb} -d '{what}'" for verb, what in VERBS.items()),
    ]
    for verb, all_flags in flags.items():
        for flag in all_flags:
            line = f"complete -c codinet -n '__codinet_verb {verb}' -l {flag.name.removeprefix('--')}"
            line += f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -r" if flag.takes_value else ""
            lines.append(line)
    return "\n".join(lines)
