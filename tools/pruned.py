"""A static run pruned with Torch-Pruning: what routing is compared with, and what routing can be added to.

    python -m tools.pruned runs/r56-static --budget 0.39 --out pruned
    codinet train cifar10 --config pruned/network.json --weights pruned/model.safetensors --no-routed --preset best \\
        --epochs 150 --out runs/r56-pruned
    codinet train cifar10 --config pruned/network.json --start runs/r56-pruned --teacher runs/r56-pruned \\
        --preset best --budget 0.7

The run must be a network of basic blocks. Channels between the two convolutions of a block are removed, those with the
smallest weights in the whole network first (Torch-Pruning's group magnitude, global), until the rest costs the budget.
Channels of the shortcuts stay: they have no parameters, so skipped blocks stay free. OUT gets the network's settings,
network.json, and its weights, model.safetensors, which need training. Requires pip install torch-pruning.
"""

import copy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from torch import nn

from codinet import files
from codinet.backbones import BasicBlock
from codinet.cli import guarded, parse
from codinet.commands.printing import print_json
from codinet.cost import block_costs
from codinet.errors import UserError
from codinet.model import CoDiNet
from codinet.runs import open_run

SETTINGS, WEIGHTS = "network.json", "model.safetensors"
_HALVINGS = 12  # of the interval of pruning ratios; the cost is a step function of them


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[str]
    """A static run of a network of basic blocks."""
    budget: float
    """Cost of the pruned network as a share of the run's."""
    out: Path
    """Folder to write."""
    json: bool = False
    """Print one JSON document."""


def prune(model: CoDiNet, image_shape: tuple[int, int, int], budget: float) -> CoDiNet:
    """Remove channels until a static network costs the budget.

    Args:
        model: The network; it is not changed.
        image_shape: Channels, height and width of its images.
        budget: The largest cost, as a share of the network's.

    Returns:
        The pruned network with the remaining weights; its config states the widths.
    """
    if model.routers is not None or any(type(block) is not BasicBlock for block in model.blocks):
        raise UserError("Only static networks of basic blocks can be pruned; name such a run.")
    if not 0 < budget < 1:
        raise UserError(f"--budget must be between 0 and 1, got {budget}.")
    static, low, high = block_costs(model, image_shape).static_macs, 0.0, 1.0
    found: CoDiNet | None = None
    for _ in range(_HALVINGS):
        ratio = (low + high) / 2
        candidate = _pruned(model, image_shape, ratio)
        if block_costs(candidate, image_shape).static_macs <= budget * static:
            found, high = candidate, ratio
        else:
            low = ratio
    if found is None:
        raise UserError(f"No pruning reaches {budget} of the cost; the shortcuts' channels remain.")
    pruned = CoDiNet(replace(found.config, widths=widths(found)))
    pruned.load_state_dict(found.state_dict())
    return pruned.eval()


def widths(model: CoDiNet) -> tuple[int, ...]:
    """The channels between the convolutions of each block."""
    return tuple(int(block.get_parameter("conv1.weight").shape[0]) for block in model.blocks)


@torch.enable_grad()  # Torch-Pruning traces gradients
def _pruned(model: CoDiNet, image_shape: tuple[int, int, int], ratio: float) -> CoDiNet:
    """A copy without this share of the channels of all blocks."""
    import torch_pruning

    model = copy.deepcopy(model).eval()
    inner = {id(block.conv1) for block in model.blocks if isinstance(block, BasicBlock)}
    pruner = torch_pruning.pruner.BasePruner(
        model,
        torch.zeros(1, *image_shape),
        importance=torch_pruning.importance.GroupMagnitudeImportance(),
        global_pruning=True,
        pruning_ratio=ratio,
        max_pruning_ratio=1 - 1 / max(widths(model)),  # a channel of each block stays
        ignored_layers=[part for part in model.modules() if _has_channels(part) and id(part) not in inner],
        output_transform=lambda output: output.logits_BK,
    )
    pruner.step()
    return model


def _has_channels(part: nn.Module) -> bool:
    return isinstance(part, nn.Conv2d | nn.Linear)


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    words = sys.argv[1:] if argv is None else argv

    def call() -> int:
        args = parse(Args, words, prog="python -m tools.pruned")
        if args is not None:
            _run(args)
        return 0

    return guarded(call)


def _run(args: Args) -> None:
    run = open_run(args.run)
    model, image_shape = run.load_model(), run.data.image_shape
    if not isinstance(model, CoDiNet):
        raise UserError(f"Only codinet's own networks can be pruned, got {run.config.network.arch}.")
    pruned = prune(model, image_shape, args.budget)
    macs = block_costs(pruned, image_shape).static_macs
    share, widths_N = macs / block_costs(model, image_shape).static_macs, list(pruned.config.widths)
    args.out.mkdir(parents=True, exist_ok=True)
    files.write_json(args.out / SETTINGS, {"arch": model.config.arch, "widths": widths_N})
    files.write(args.out / WEIGHTS, files.pack_tensors(pruned.state_dict()))
    if args.json:
        print_json({"out": str(args.out), "macs": macs, "cost_share": share, "widths_N": widths_N})
    else:
        print(f"Wrote {args.out}: {macs / 1e6:.1f} M MACs, {share:.3f} of {args.run}.")


if __name__ == "__main__":
    sys.exit(main())
