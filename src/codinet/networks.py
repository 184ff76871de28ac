"""Build any network from its config: codinet's own, timm's, torchvision's, or one of the user's own functions.

`build` is the only place where commands, runs and the zoo get a network from. It draws the initial weights from torch's
global generator; `pretrained_weights` and `read_weights` give others.
"""

import importlib
import inspect
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from codinet.adopt import import_vision, make_dynamic
from codinet.adopt.blank import without_initial_weights
from codinet.adopt.families import fixed_size
from codinet.adopt.parts import first_convolution
from codinet.checks import describe_misfits, require_kind, shown
from codinet.config import ModelConfig
from codinet.errors import UserError, first_line, suggestion
from codinet.files import DamagedError, load_foreign_tensors
from codinet.model import CoDiNet, RoutedNetwork, checked_config
from codinet.specs import OWN, PYTHON, TIMM, TORCHVISION, Spec, library_version, require_allowed, require_arch

DOWNLOAD_SECONDS = 60.0  # without a byte from the server
# Where training scripts put the weights, in the order of preference.
_NESTED = ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema", "ema")
_NOT_WEIGHTS = ("n_averaged",)  # of torch's AveragedModel
_COUNTER = ".num_batches_tracked"  # of BatchNorms; files of old versions lack it


@torch.inference_mode(False)  # inference tensors lack what tracing needs
def build(config: ModelConfig) -> RoutedNetwork:
    """Build a network with initial weights.

    Args:
        config: The network's name, its routers, and what its data determines.

    Returns:
        The network in training mode. `UserError` if its library is not installed, does not know the name, or builds a
        network that cannot be routed.
    """
    require_kind("config", config, ModelConfig, "a ModelConfig; create_model creates a network by name")
    spec = require_arch(config.arch)
    if spec.library == OWN:
        return CoDiNet(config)
    config = checked_config(config)
    return _adopt(_build_module(spec, config), config)


@torch.inference_mode(False)  # inference tensors lack what tracing needs
def build_blank(config: ModelConfig) -> RoutedNetwork:
    """Build a network whose parameters the caller overwrites, all of them, at once.

    This is faster than `build`: no initial weights are drawn, and the parts of an adopted network are not compared
    with the whole. Buffers have their values. Leaves the global RNG state unchanged.
    """
    require_kind("config", config, ModelConfig, "a ModelConfig; create_model creates a network by name")
    spec = require_arch(config.arch)
    with torch.random.fork_rng(devices=[]), without_initial_weights():
        if spec.library == OWN:
            return CoDiNet(config)
        config = checked_config(config)
        return _adopt(_build_module(spec, config), config, check=False)


def _adopt(module: nn.Module, config: ModelConfig, *, check: bool = True) -> RoutedNetwork:
    patterns = None if config.blocks is None else [each.strip() for each in config.blocks.split(",")]
    try:
        model = make_dynamic(
            module,
            blocks=patterns,
            router=config.router if config.routed else None,
            image_shape=config.image_shape,
            check=check,
        )
    except UserError as error:
        raise UserError(f"{config.arch} cannot be routed: {error}") from error
    model.config = config
    return model


# Modules


def _build_module(spec: Spec, config: ModelConfig) -> nn.Module:
    """The network itself, without routers, for the classes and images of the config."""
    options: dict[str, Any] = {"num_classes": config.num_classes}
    if spec.library == PYTHON:
        return _call_own(spec.name, config)
    make, size_name = _library_function(spec)
    if spec.library == TIMM:
        options["in_chans"] = config.in_channels
        options |= {"drop_path_rate": config.drop_path} if config.drop_path else {}
    if config.image_shape is not None:
        with torch.device("meta"), without_initial_weights():
            only = fixed_size(_called(spec, make, options))
        if only not in (None, config.image_shape[1:]):
            options[size_name] = (
                _one_side(config.image_shape) if spec.library == TORCHVISION else config.image_shape[1:]
            )
    module = _called(spec, make, options)
    if spec.library == TORCHVISION:
        _set_drop_path(module, config)
        if config.in_channels != 3:
            _replace_first_convolution(module, config.in_channels)
    return module


def _set_drop_path(module: nn.Module, config: ModelConfig) -> None:
    """Set the stochastic depth of a torchvision network: rates rise from 0 at the first block to that of the config."""
    layers = [part for part in module.modules() if type(part).__name__ == "StochasticDepth"]
    if config.drop_path and not layers:
        raise UserError(f"{config.arch} has no stochastic depth; leave --drop-path out.")
    for index, layer in enumerate(layers):
        setattr(layer, "p", config.drop_path * index / max(1, len(layers) - 1))  # noqa: B010  # its type is unknown


def _library_function(spec: Spec) -> tuple[Callable[..., nn.Module], str]:
    """The function that builds the network, and the name of its argument for the image size."""
    library = import_vision(spec.library)
    if spec.library == TIMM:
        if not library.is_model(spec.name):
            raise _unknown_network(spec, library.list_models())

        def make(**options: Any) -> nn.Module:
            return library.create_model(spec.name, pretrained=False, **options)

        return make, "img_size"
    if spec.name not in library.models.list_models(module=library.models):
        raise _unknown_network(spec, library.models.list_models(module=library.models))

    def make_torchvision(**options: Any) -> nn.Module:
        return library.models.get_model(spec.name, weights=None, **options)

    return make_torchvision, "image_size"


def _unknown_network(spec: Spec, known: list[str]) -> UserError:
    return UserError(
        f"{spec.library} {library_version(spec)} has no network {shown(spec.name)}"
        f"{suggestion(spec.name, known)}; {spec.library}.{_LISTINGS[spec.library]} lists its networks."
    )


_LISTINGS = {TIMM: "list_models()", TORCHVISION: "models.list_models()"}


def _called(spec: Spec, make: Callable[..., nn.Module], options: dict[str, Any]) -> nn.Module:
    try:
        return make(**options)
    except UserError:
        raise
    except Exception as error:  # a library may raise anything
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        raise UserError(
            f"{spec.library}:{spec.name} cannot be built with {given}: {first_line(error).rstrip('.')}."
        ) from error


def _one_side(image_shape: tuple[int, int, int]) -> int:
    _, height, width = image_shape
    if height != width:
        raise UserError(f"This network takes square images only, got {height}×{width}; use --image-size.")
    return height


def _replace_first_convolution(module: nn.Module, channels: int) -> None:
    """Give a network that takes colour images a first convolution for images of so many channels."""
    first = first_convolution(module)
    name = next(name for name, part in module.named_modules() if part is first)
    parent, _, child = name.rpartition(".")
    sizes: dict[str, Any] = {
        key: getattr(first, key) for key in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    }
    replacement = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **sizes)
    setattr(module.get_submodule(parent), child, replacement)


def _call_own(name: str, config: ModelConfig) -> nn.Module:
    """Call the user's function with `num_classes`, and `in_channels` and `image_size` if it takes them."""
    function, accepted = _own_function(name)
    size = None if config.image_shape is None else config.image_shape[1:]
    offered = {"in_channels": config.in_channels, "image_size": size, "drop_path": config.drop_path}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    options = {key: value for key, value in offered.items() if key in accepted or takes_all}
    if config.drop_path and "drop_path" not in options:
        raise UserError(f"{name} has no argument drop_path; leave --drop-path out.")
    try:
        module = function(num_classes=config.num_classes, **options)
    except UserError:
        raise
    except Exception as error:  # as above
        raise UserError(f"{name} failed: {first_line(error).rstrip('.')}.") from error
    require_kind(f"The result of {name}", module, nn.Module, "a torch module")
    return module


def _own_function(name: str) -> tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]:
    """One of the user's functions and its arguments. It may be in a module of the current folder."""
    require_allowed(name)
    module_name, _, function_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a command starts without it
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return function, inspect.signature(function).parameters
    except Exception as error:  # importing may raise anything
        raise UserError(f"{name} cannot be imported: {first_line(error).rstrip('.')}; check the path.") from error


def supports_drop_path(arch: str) -> bool:
    """Whether a network has stochastic depth that can be set (`--drop-path`)."""
    spec = require_arch(arch)
    if spec.library == OWN:
        return False
    if spec.library == PYTHON:
        return "drop_path" in _own_function(spec.name)[1]
    make, _ = _library_function(spec)
    try:
        with torch.device("meta"):
            module = make(**({"drop_path_rate": 0.1} if spec.library == TIMM else {}))
    except Exception:  # the network does not take the argument
        return False
    return any(type(part).__name__ in ("DropPath", "StochasticDepth") for part in module.modules())


# What libraries state about their networks


class InputInfo(NamedTuple):
    """How a library prepares the images of a network."""

    size: int  # side length
    crop: float  # the fraction of the shorter side that is kept
    mean: tuple[float, ...]  # of bytes
    std: tuple[float, ...]


def input_info(arch: str) -> InputInfo | None:
    """How the library of a network prepares images; None for codinet's own networks and the user's functions."""
    spec = require_arch(arch)
    if spec.library == TIMM:
        _library_function(spec)  # for its checks
        settings = import_vision(TIMM).get_pretrained_cfg(spec.name).to_dict()
        size, crop, mean, std = (settings[key] for key in ("input_size", "crop_pct", "mean", "std"))
        return InputInfo(size[-1], float(crop), _of_bytes(mean), _of_bytes(std))
    if spec.library == TORCHVISION:
        _library_function(spec)
        transforms = _torchvision_weights(spec).transforms()
        size, resized = transforms.crop_size[0], transforms.resize_size[0]
        return InputInfo(size, size / resized, _of_bytes(transforms.mean), _of_bytes(transforms.std))
    return None


def _of_bytes(values: Any) -> tuple[float, ...]:
    return tuple(255 * float(value) for value in values)


def _torchvision_weights(spec: Spec) -> Any:
    return import_vision(TORCHVISION).models.get_model_weights(spec.name).DEFAULT


# Weights


def pretrained_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """The weights that a library publishes for a network, by the library's names. Downloads them if necessary.

    timm adapts them to the channels and the size of the images. `UserError` if there are none, or without a network
    connection.
    """
    spec = require_arch(config.arch)
    if spec.library not in (TIMM, TORCHVISION):
        raise UserError(f"--pretrained requires a network of timm or torchvision, got {config.arch}.")
    _library_function(spec)
    try:
        with _download_timeout(), redirect_stdout(sys.stderr):  # torchvision prints what it downloads
            if spec.library == TORCHVISION:
                return dict(_torchvision_weights(spec).get_state_dict(progress=False, check_hash=True))
            options: dict[str, Any] = {"in_chans": config.in_channels}
            if config.image_shape is not None and fixed_size(_build_module(spec, config)) is not None:
                options["img_size"] = config.image_shape[1:]
            return import_vision(TIMM).create_model(spec.name, pretrained=True, **options).state_dict()
    except UserError:
        raise
    except Exception as error:  # no connection, no such weights, a damaged cache, …
        raise UserError(
            f"The published weights of {config.arch} cannot be loaded ({first_line(error).rstrip('.')}); check the "
            "internet connection, or use --weights FILE."
        ) from error


@contextmanager
def _download_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Read a file of weights, .safetensors or .pth. Of a pickled file only tensors are loaded, no code is run.

    Args:
        file: The file. Common wrappers around the tensors ("state_dict", a prefix "module.") are removed.

    Returns:
        The tensors by name; `UserError` if the file holds none.
    """
    content: Any = load_foreign_tensors(file)
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise DamagedError(f"{file} does not hold weights by name.")
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", name): tensor for name, tensor in tensors.items()}


def library_names(model: RoutedNetwork) -> dict[str, str]:
    """For each tensor of a network, its name in its library. Routers are left out."""
    names = (name for name in model.state_dict() if not name.startswith("routers."))
    return {name: name.removeprefix("module.") for name in names}


def published_classes(model: RoutedNetwork, tensors: Mapping[str, torch.Tensor]) -> int | None:
    """The number of classes of a network's weights by the library's names; None if they have no classifier."""
    weight = tensors.get(library_names(model).get(f"{model.classifier}.weight", ""))
    return None if weight is None else len(weight)


def load_library_weights(model: RoutedNetwork, tensors: Mapping[str, torch.Tensor], source: str) -> list[str]:
    """Load weights by the names of the network's library. Routers keep their initial values.

    Args:
        model: The network, changed in place.
        tensors: Its weights, in any precision. Those of a classifier for another number of classes are not loaded, nor
            are routers. Counters of batches may be missing.
        source: Where they come from, for errors.

    Returns:
        "classifier" if it is missing or does not fit, and so keeps its initial values.
    """
    own, names = model.state_dict(), library_names(model)
    given = {name: tensor for name, tensor in own.items() if name.startswith("routers.") or name.endswith(_COUNTER)}
    for name, theirs in names.items():
        if theirs in tensors:
            both = tensors[theirs].is_floating_point() and own[name].is_floating_point()
            given[name] = tensors[theirs].to(own[name].dtype) if both else tensors[theirs]
    known = {*names.values(), *_NOT_WEIGHTS}
    given |= {name: value for name, value in tensors.items() if name not in known and not name.startswith("routers.")}
    kept = load_parts(model, given, source)
    classifier = model.classifier
    without = bool(classifier) and not any(_part(name, classifier) == "classifier" for name in given)
    return [*kept, "classifier"] if without else kept


def load_parts(model: RoutedNetwork, tensors: Mapping[str, torch.Tensor], source: str) -> list[str]:
    """Initialise a network with tensors by its own names.

    Routers and classifier are loaded if they fit completely. Everything else must fit.

    Args:
        model: The network, changed in place.
        tensors: The weights.
        source: Where they come from, for errors.

    Returns:
        Which of "routers" and "classifier" both have but do not fit, and so keep their initial values.
    """
    own, classifier = model.state_dict(), model.classifier
    reinitialised = []
    loaded: dict[str, torch.Tensor] = {}
    for part in ("", "routers", "classifier"):
        ours, theirs = (
            {name: tensor for name, tensor in of.items() if _part(name, classifier) == part} for of in (own, tensors)
        )
        misfits = describe_misfits(theirs, ours)
        if not misfits:
            loaded |= theirs
        elif part:
            reinitialised += [part] if ours and theirs else []
        else:
            raise UserError(f"{source} does not fit this network: {misfits}.")
    model.load_state_dict(own | loaded)
    return reinitialised


def _part(name: str, classifier: str) -> str:
    """The part of the network that a tensor belongs to; "" is the part that must fit."""
    if name.startswith("routers."):
        return "routers"
    return "classifier" if classifier and name.startswith(f"{classifier}.") else ""
