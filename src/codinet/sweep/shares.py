"""Costs as the paper prints them, brought to shares of the static network's cost: what budgets are."""

from functools import cache

import torch

from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.cost import CostTable, block_costs
from codinet.model import create_model


def share_of_static(gmaccs: float, arch: str, *, stride_on: StrideOn = "3x3") -> float:
    """The share that a printed cost is of its network's static cost, to the two digits that print allows.

    "GMACCs" are read in the unit of the network's family: two per multiply-add for the 32×32 nets, one for
    the ImageNet nets.
    """
    table = static_table(arch, stride_on)
    return round(gmaccs / table.paper_gmaccs(table.static_macs), 2)


@cache
def static_table(arch: str, stride_on: StrideOn = "3x3") -> CostTable:
    """The cost table of a network as the paper counts it: at its published image size and classes."""
    size = ARCHITECTURES[arch].image_size
    with torch.device("meta"):  # shapes are enough
        model = create_model(arch, num_classes=10 if size == 32 else 1000, routed=False, stride_on=stride_on)
    return block_costs(model, (3, size, size))
