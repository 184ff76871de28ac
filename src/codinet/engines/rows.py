"""Taking some images of a batch, putting them back and moving them about, at the speed of a copy.

torch copies whole rows fast only where the batch is contiguous, which channels_last features are not by name;
seen as B×(H·W·C) they are. On the CPU numpy moves them and puts them back: torch's index_copy_ and
index_put_ take three times as long for the same bytes.
"""

import numpy as np
import torch

_NUMPYS = (torch.float32, torch.float64, torch.float16)


def _is_numpys(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in _NUMPYS


def _as_rows(x_BCHW: torch.Tensor) -> torch.Tensor:
    """A view whose rows are each one run of memory, where the tensor has such."""
    if x_BCHW.is_contiguous(memory_format=torch.channels_last):
        return x_BCHW.permute(0, 2, 3, 1).view(len(x_BCHW), -1)
    return x_BCHW


def take_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor) -> torch.Tensor:
    """The images at the given places, in the batch's memory format."""
    rows = _as_rows(x_BCHW)
    taken = rows.index_select(0, index_R)
    if rows is x_BCHW:
        return taken
    _, channels, height, width = x_BCHW.shape
    return taken.view(-1, height, width, channels).permute(0, 3, 1, 2)


def copy_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> torch.Tensor:
    """x with y at the given places, written in place."""
    rows = _as_rows(x_BCHW)
    # A block of an adopted network may leave its features in another format than its shortcut.
    new = y_RCHW if rows is x_BCHW else y_RCHW.permute(0, 2, 3, 1).reshape(len(y_RCHW), -1)
    if _is_numpys(rows):
        rows.numpy()[index_R.numpy()] = new.numpy()
    else:
        rows.index_copy_(0, index_R, new.to(rows.dtype))
    return x_BCHW


def move_rows(x_BCHW: torch.Tensor, source_M: np.ndarray, target_M: np.ndarray) -> None:
    """What is at `source` goes to `target`, all at once."""
    rows = _as_rows(x_BCHW)
    if _is_numpys(rows):
        array = rows.numpy()
        array[target_M] = array[source_M]
    else:
        source, target = (torch.from_numpy(places).to(rows.device) for places in (source_M, target_M))
        rows.index_copy_(0, target, rows.index_select(0, source))
