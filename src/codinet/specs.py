"""Names of networks: codinet's own, `timm:NAME`, `torchvision:NAME`, or `package.module:function`.

Importing this module does not import torch, so the command line can check a name at once.
"""

import os
import re
from importlib import metadata
from typing import NamedTuple

from codinet.errors import UserError, shown, unknown

OWN, TIMM, TORCHVISION, PYTHON = "codinet", "timm", "torchvision", "python"
ALLOWED_CODE = "CODINET_ALLOW_CODE"  # environment variable: functions that a run may call, separated by commas
_LIBRARY_NAME = re.compile(r"[A-Za-z0-9_.]+")  # without "hf-hub:", which would download code settings
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_allowed: set[str] = set()


class Spec(NamedTuple):
    """Where a network comes from."""

    library: str  # OWN, TIMM, TORCHVISION or PYTHON
    name: str  # in that library; for PYTHON, package.module:function


def parse_spec(arch: str) -> Spec:
    """Parse the name of a network. Whether a library has a network of that name is checked when it is built.

    Args:
        arch: The name, as in `--arch`.

    Returns:
        The parsed name; `UserError` if it has no valid form.
    """
    if not isinstance(arch, str):
        raise UserError(f"A network must be a name as text, got {shown(arch)}.")
    library, colon, name = arch.partition(":")
    if not colon:
        return Spec(OWN, arch)
    if library in (TIMM, TORCHVISION):
        if not _LIBRARY_NAME.fullmatch(name):
            raise UserError(f"{library}: must be followed by the name of a network, got {shown(arch)}.")
        return Spec(library, name)
    if not _FUNCTION.fullmatch(arch):
        raise UserError(
            f"A network must be one of codinet's own, timm:NAME, torchvision:NAME or package.module:function, got "
            f"{shown(arch)}."
        )
    return Spec(PYTHON, arch)


def require_arch(arch: str) -> Spec:
    """Parse the name of a network; `UserError` for an unknown network of codinet's own."""
    spec = parse_spec(arch)
    if spec.library == OWN:
        from codinet.backbones import ARCHITECTURES

        if arch not in ARCHITECTURES:
            raise unknown("architecture", arch, ARCHITECTURES)
    return spec


def slug(arch: str) -> str:
    """The name of a network as part of a file name."""
    return arch.replace(":", "-")


def allow_code(function: str) -> None:
    """Allow runs and saved networks to build their network with this function.

    A run folder only names the function, and anyone may have written the folder. Therefore codinet calls no function
    that a file names unless it is allowed, here or in the environment variable CODINET_ALLOW_CODE.

    Args:
        function: package.module:function.
    """
    if parse_spec(function).library != PYTHON:
        raise UserError(f"A function must be package.module:function, got {shown(function)}.")
    _allowed.add(function)


def require_allowed(function: str) -> None:
    """`UserError` unless `allow_code` or the environment allows this function."""
    if function not in _allowed | set(os.environ.get(ALLOWED_CODE, "").split(",")):
        raise UserError(
            f"This network is built by the function {function}, which may run any code; if you trust it, set "
            f"{ALLOWED_CODE}={function}, or call codinet.allow_code in Python."
        )


def library_version(spec: Spec) -> str | None:
    """The version of the library of a network; None for codinet's own networks and the user's functions."""
    return metadata.version(spec.library) if spec.library in (TIMM, TORCHVISION) else None


def library_versions(arch: str) -> dict[str, str]:
    """The library that builds a network, and its version, to record beside the version of torch."""
    spec = parse_spec(arch)
    version = library_version(spec)
    return {} if version is None else {spec.library: version}
