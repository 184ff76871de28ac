"""`save` and `load`: any network as a folder, and from a folder, a run, the zoo or the Hugging Face hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from codinet.checks import describe_misfits, shown
from codinet.config import ModelConfig
from codinet.errors import UserError
from codinet.hub import WEIGHTS, find, floating_dtype, is_run_folder, read_folder
from codinet.model import RoutedNetwork, in_evaluation, require_network
from codinet.networks import build_blank
from codinet.run_reader import trained_network
from codinet.runs import open_run
from codinet.specs import PYTHON, allow_code, require_arch
from codinet.zoo.shelf import ZOO

_ASK = 'pass arch="timm:NAME", "torchvision:NAME" or "package.module:function" to codinet.save'
_DROP_PATH = {"DropPath": "drop_prob", "StochasticDepth": "p"}  # classes of timm and torchvision, and their rates


def save(
    model: RoutedNetwork, path: str | Path, *, results: Mapping[str, Any] | None = None, arch: str | None = None
) -> None:
    """Write a network as a folder: config.json, model.safetensors and a model card, README.md.

    A network that `make_dynamic` was given is described by the name of the function that builds it. Whether that
    function builds the same network is checked; afterwards the network has a `config`.

    Args:
        model: The network. A compiled one, or one wrapped for several processes, is unwrapped.
        path: The folder. It is made if it does not exist; a card that exists is kept.
        results: What the card shows beside the config: data, accuracy, cost_share, … (`codinet.hub.RESULTS`).
        arch: What builds the network: timm:NAME, torchvision:NAME or package.module:function. Only needed for a network
            that `make_dynamic` was given; networks of timm state their name.
    """
    model = _unwrapped(model)
    require_network(model)
    if model.config is None:
        model.config = find_config(model, arch)
    elif arch not in (None, model.config.arch):
        raise UserError(f"arch must be left out or {model.config.arch}, which built this network, got {shown(arch)}.")
    model.save_pretrained(path, results=results)


def _unwrapped(model: Any) -> Any:
    while True:
        inner = getattr(model, "_orig_mod", None)  # of torch.compile
        if isinstance(inner, nn.Module):
            model = inner
        elif isinstance(model, DistributedDataParallel):
            model = model.module
        else:
            return model


def load(source: str | Path, *, device: torch.device | str | None = None, **options: Any) -> RoutedNetwork:
    """Load a network.

    Args:
        source: A folder that `save` wrote, a run folder, `zoo:NAME`, or a repository on the Hugging Face hub.
        device: Where to put the network; by default the CPU.
        options: For the hub, those of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

    Returns:
        The network in evaluation mode, in the precision it was saved in. A network of your own function requires
        `allow_code`.
    """
    if isinstance(source, str) and source.startswith(ZOO):
        return open_run(source).load_model().to(device)
    folder = find(source, options)
    if is_run_folder(folder):
        return open_run(folder).load_model().to(device)
    config, tensors, versions = read_folder(folder)
    file = str(folder / WEIGHTS)
    return trained_network(config, tensors, file, versions, dtype=floating_dtype(tensors)).to(device).eval()


def find_config(model: RoutedNetwork, arch: str | None = None) -> ModelConfig:
    """What builds a network that `make_dynamic` was given.

    Args:
        model: The network.
        arch: The name of what builds it; by default what the network states. Networks of timm do.

    Returns:
        The config. `UserError` unless it builds the same network: the same blocks, tensors and logits.
    """
    arch = model.library_arch if arch is None else arch
    if arch is None:
        raise UserError(f"This network does not state what builds it; {_ASK}.")
    if require_arch(arch).library == PYTHON:
        allow_code(arch)  # the caller names it
    classifier: Any = model.get_submodule(model.classifier) if model.classifier else None
    if not isinstance(classifier, nn.Linear | nn.Conv2d):
        raise UserError("A network without a linear classifier cannot be saved.")
    config = ModelConfig(
        arch,
        blocks=model.block_names,
        routed=model.router_name is not None,
        router=model.router_name or "fc",  # type: ignore[arg-type]  # one of the choices
        drop_path=_drop_path(model),
        num_classes=len(classifier.weight),
        in_channels=model.in_channels or 3,
        image_shape=model.image_shape,
    )
    _require_same(model, config)
    return config


def _drop_path(model: nn.Module) -> float:
    """The highest rate of stochastic depth, which is that of the last block."""
    rates = [getattr(part, _DROP_PATH.get(type(part).__name__, ""), 0.0) or 0.0 for part in model.modules()]
    return float(max(rates))


@torch.no_grad()
def _require_same(model: RoutedNetwork, config: ModelConfig) -> None:
    """Require that the config builds this network; both are compared on an image of noise."""
    tensors = model.state_dict()
    twin = build_blank(config).to(floating_dtype(tensors))
    misfits = describe_misfits(tensors, twin.state_dict())
    if misfits:
        raise UserError(f"{config.arch} builds another network than this one: {misfits}; {_ASK}.")
    weight = next(model.parameters())
    twin.load_state_dict(tensors)
    twin.to(weight.device).eval()
    shape = config.image_shape or (config.in_channels, 224, 224)
    noise = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)).to(weight.device, weight.dtype)
    runs = torch.ones(len(model.blocks))
    with in_evaluation(model):
        pairs = [(model(noise, force=force), twin(noise, force=force)) for force in (runs, None)]
    for ours, theirs in pairs:
        scale = ours.logits_BK.abs().max().item()
        same = torch.allclose(ours.logits_BK, theirs.logits_BK, rtol=1e-3, atol=1e-3 * scale, equal_nan=True)
        if not same or not torch.equal(ours.path_BN, theirs.path_BN):
            raise UserError(
                f"{config.arch} builds a network with the same tensors but other logits than this one; {_ASK}."
            )
