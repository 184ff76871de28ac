"""A static run pruned with Torch-Pruning: what routing is compared with, and what routing can be added to.

    python -m tools.pruned runs/r56-static --budget 0.39 --out pruned
    export CODINET_PRUNED=pruned CODINET_ALLOW_CODE=tools.pruned:network
    NETWORK='--arch tools.pruned:network --blocks layer*.*'
    codinet train cifar10 $NETWORK --weights pruned/model.safetensors --no-routed --preset best --epochs 150 --out RUN
    codinet train cifar10 $NETWORK --start RUN --teacher RUN --preset best --budget 0.7

The run must be a network of basic blocks. Channels between the two convolutions of a block are removed, those with the
smallest weights in the whole network first (Torch-Pruning's group magnitude, global), until the rest costs the budget.
Channels of the shortcuts stay: they have no parameters, so skipped blocks stay free. OUT gets the numbers of channels,
widths.json, and the weights, model.safetensors, which need training. Requires pip install torch-pruning.
"""

import copy
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import nn

from codinet import files
from codinet.adopt import make_dynamic
from codinet.backbones import ARCHITECTURES, BasicBlock, ResNet
from codinet.cli import guarded, parse
from codinet.commands.printing import print_json
from codinet.cost import block_costs
from codinet.errors import UserError
from codinet.model import CoDiNet
from codinet.runs import open_run

WIDTHS, WEIGHTS = "widths.json", "model.safetensors"
FOLDER_VARIABLE = "CODINET_PRUNED"
BLOCKS = "layer*.*"
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


class PrunedResNet(ResNet):
    """A network of basic blocks with any number of channels between the two convolutions of each block.

    Args:
        arch: The network that was pruned.
        widths_N: The channels that each block has left.
        num_classes: Outputs of the head.
        in_channels: Channels of the images.
    """

    def __init__(self, arch: str, widths_N: list[int], *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__(ARCHITECTURES[arch], num_classes=num_classes, in_channels=in_channels, stride_on="3x3")
        for block, width in zip(self.blocks, widths_N, strict=True):
            assert isinstance(block, BasicBlock)
            first, second = block.conv1, block.conv2
            block.conv1 = nn.Conv2d(first.in_channels, width, 3, block.stride, padding=1, bias=False)
            block.bn1 = nn.BatchNorm2d(width)
            block.conv2 = nn.Conv2d(width, second.out_channels, 3, padding=1, bias=False)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = self.stem(images_BCHW)
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        return self.head(x_BCHW)


def widths(model: ResNet) -> list[int]:
    """The channels between the convolutions of each block."""
    return [int(block.get_parameter("conv1.weight").shape[0]) for block in model.blocks]


def network(num_classes: int, in_channels: int = 3) -> nn.Module:
    """The pruned network of the folder that the environment names, for `--arch tools.pruned:network`."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise UserError(f"Set {FOLDER_VARIABLE} to the folder that python -m tools.pruned wrote.")
    stored = json.loads((Path(folder) / WIDTHS).read_text())
    return PrunedResNet(stored["arch"], stored["widths_N"], num_classes=num_classes, in_channels=in_channels)


def prune(model: CoDiNet, image_shape: tuple[int, int, int], budget: float) -> PrunedResNet:
    """Remove channels until a static network costs the budget.

    Args:
        model: The network; it is not changed.
        image_shape: Channels, height and width of its images.
        budget: The largest cost, as a share of the network's.

    Returns:
        The pruned network with the remaining weights.
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
    config = found.config
    pruned = PrunedResNet(config.arch, widths(found), num_classes=config.num_classes, in_channels=config.in_channels)
    pruned.load_state_dict(found.state_dict())
    return pruned.eval()


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
    widths_N, table = widths(pruned), block_costs(make_dynamic(pruned, blocks=BLOCKS, router=None), image_shape)
    share = table.static_macs / block_costs(model, image_shape).static_macs
    args.out.mkdir(parents=True, exist_ok=True)
    files.write(args.out / WIDTHS, json.dumps({"arch": model.config.arch, "widths_N": widths_N}).encode())
    files.write(args.out / WEIGHTS, files.pack_tensors(pruned.state_dict()))
    if args.json:
        print_json({"out": str(args.out), "macs": table.static_macs, "cost_share": share, "widths_N": widths_N})
    else:
        print(f"Wrote {args.out}: {table.static_macs / 1e6:.1f} M MACs, {share:.3f} of {args.run}.")


if __name__ == "__main__":
    sys.exit(main())
