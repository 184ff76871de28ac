"""Taking some images of a batch and putting them back, at the speed of a copy.

torch copies whole rows fast only where the batch is contiguous, which channels_last features are not by name;
seen as B×H×W×C they are. On the CPU numpy does both: torch's index_copy_ and index_put_ take three to four times as
long for the same bytes, and a copy this short is not worth waking threads for.
"""

import torch

_NUMPYS = (torch.float32, torch.float64, torch.float16)


def _is_numpys(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in _NUMPYS


def _as_rows(x_BCHW: torch.Tensor) -> torch.Tensor:
    """A view whose rows are each one run of memory, where the tensor has such."""
    return x_BCHW.permute(0, 2, 3, 1) if x_BCHW.is_contiguous(memory_format=torch.channels_last) else x_BCHW


def take_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor) -> torch.Tensor:
    """The images at the given places, in the batch's memory format."""
    rows = _as_rows(x_BCHW)
    taken = torch.from_numpy(rows.numpy()[index_R.numpy()]) if _is_numpys(rows) else rows.index_select(0, index_R)
    return taken if rows is x_BCHW else taken.permute(0, 3, 1, 2)


def copy_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> torch.Tensor:
    """x with y at the given places, written in place."""
    rows = _as_rows(x_BCHW)
    new = y_RCHW if rows is x_BCHW else y_RCHW.permute(0, 2, 3, 1)
    if _is_numpys(rows):
        rows.numpy()[index_R.numpy()] = new.numpy()
    else:
        rows.index_copy_(0, index_R, new.to(rows.dtype))
    return x_BCHW
