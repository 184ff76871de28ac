"""The path table that comes with a routed network: how each test image went, a byte for each decision.

Its rows are in the order that `same_images` gives any copy of the data set. It lies in the file of the weights, under
names of its own.
"""

import torch

from codinet.cost import CostTable
from codinet.records import PathTable

PREFIX = "test."
_HALF = 128  # a probability of one half


def packed(paths: PathTable) -> dict[str, torch.Tensor]:
    """Run probabilities in 256ths; from the half on are those of the blocks that ran."""
    byte_TN = (paths.run_probability_TN * 256).long().clamp(max=255)
    byte_TN = torch.where(paths.path_TN == 1, byte_TN.clamp(min=_HALF), byte_TN.clamp(max=_HALF - 1))
    columns = {
        "run_probability": byte_TN.to(torch.uint8),
        "label": paths.label_T.to(torch.int16),
        "prediction": paths.prediction_T.to(torch.int16),
        "confidence": paths.confidence_T.half(),
    }
    return {PREFIX + name: column for name, column in columns.items()}


def unpacked(tensors: dict[str, torch.Tensor], table: CostTable) -> PathTable | None:
    """The table among a file's tensors; None where there is none, as for static networks."""
    if not any(name.startswith(PREFIX) for name in tensors):
        return None
    byte_TN = tensors[PREFIX + "run_probability"]
    path_TN = (byte_TN >= _HALF).to(torch.uint8)
    return PathTable(
        path_TN=path_TN,
        run_probability_TN=(byte_TN.float() + 0.5) / 256,
        label_T=tensors[PREFIX + "label"].long(),
        prediction_T=tensors[PREFIX + "prediction"].long(),
        confidence_T=tensors[PREFIX + "confidence"].float(),
        macs_T=table.path_macs(path_TN),
    )
