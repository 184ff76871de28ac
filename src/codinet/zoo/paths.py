"""The path table of a routed network: how each test image was routed, in one byte per decision.

Its rows are in the order that `same_images` gives any copy of the data set. It is stored in the file of the weights,
under names with a prefix.
"""

import torch

from codinet.cost import CostTable
from codinet.records import PathTable

PREFIX = "test."
_HALF = 128  # a probability of one half


def packed(paths: PathTable) -> dict[str, torch.Tensor]:
    """Run probabilities in 256ths; those of the blocks that ran are one half or more."""
    byte_TN = (paths.run_probability_TN * 256).long().clamp(max=255)
    byte_TN = torch.where(paths.path_TN == 1, byte_TN.clamp(min=_HALF), byte_TN.clamp(max=_HALF - 1))
    columns = {
        "run_probability": byte_TN.to(torch.uint8),
        "label": paths.label_T.to(torch.int16),
        "prediction": paths.prediction_T.to(torch.int16),
        "confidence": paths.confidence_T.half(),
    }
    return {PREFIX + name: column for name, column in columns.items()}


def unpacked(tensors: dict[str, torch.Tensor], table: CostTable) -> dict[str, torch.Tensor] | None:
    """The columns of the path table among a file's tensors; None where there are none, as for static networks.

    Columns that are missing or of another type are left out.
    """
    if not any(name.startswith(PREFIX) for name in tensors):
        return None
    found: dict[str, torch.Tensor] = {}
    byte_TN = tensors.get(PREFIX + "run_probability")
    if byte_TN is not None and byte_TN.dtype == torch.uint8 and byte_TN.shape[1:] == (len(table.run_N),):
        found["path_TN"] = (byte_TN >= _HALF).to(torch.uint8)
        found["run_probability_TN"] = (byte_TN.float() + 0.5) / 256
        found["macs_T"] = table.path_macs(found["path_TN"])
    for name, stored, loaded in (
        ("label_T", torch.int16, torch.int64),
        ("prediction_T", torch.int16, torch.int64),
        ("confidence_T", torch.float16, torch.float32),
    ):
        column = tensors.get(PREFIX + name.removesuffix("_T"))
        if column is not None and column.dtype == stored:
            found[name] = column.to(loaded)
    return found
