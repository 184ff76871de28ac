"""A trained network as the teacher of another: its logits for the same inputs, and the loss that compares them.

The teacher may have another architecture, routed or not; classes and image size must be the same. Knows nothing of
files; `sources` reads them.
"""

import torch
from torch.nn import functional as F

from codinet.checks import require_number, require_same_place, require_tensor
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.relaxation import SMALLEST_TAU
from codinet.runs import DataBrief


class Teacher:
    """A network that is not trained."""

    def __init__(self, model: RoutedNetwork, known: DataBrief, dataset: Dataset, device: torch.device) -> None:
        """`known` describes the data that the network was trained on; `dataset` is the data it will get."""
        if known.classes != dataset.classes or known.image_shape != dataset.image_shape:
            theirs, ours = (f"{len(of.classes)} classes of images of shape {of.image_shape}" for of in (known, dataset))
            same = " by other names" if theirs == ours else ""
            raise UserError(
                f"The teacher knows {theirs}{same}, and {dataset.name} has {ours}; take a teacher of the same."
            )
        self.model = model.to(device).requires_grad_(False).eval()
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.rescale: tuple[torch.Tensor, torch.Tensor] | None = None
        if (known.mean, known.std) != (dataset.mean, dataset.std):
            # From images normalised by our mean and deviation to the same images normalised by the teacher's.
            mean_C, std_C, own_mean_C, own_std_C = (
                torch.tensor(values, device=device) for values in (known.mean, known.std, dataset.mean, dataset.std)
            )
            factor_C, offset_C = own_std_C / std_C, (own_mean_C - mean_C) / std_C
            self.rescale = factor_C[:, None, None], offset_C[:, None, None]

    def prepare(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The images with the normalisation that the teacher was trained with."""
        if self.rescale is None:
            return images_BCHW
        return images_BCHW * self.rescale[0] + self.rescale[1]


def distillation(logits_BK: torch.Tensor, taught_BK: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Hinton et al. 2015: T² · KL(teacher ‖ student) of logits softened by T, averaged over the batch.

    The factor T² keeps the size of the gradients independent of the temperature.
    """
    require_tensor("logits", logits_BK, ("B", "K"))
    require_tensor("The teacher's logits", taught_BK, logits_BK.shape)
    require_same_place("logits", logits_BK, "The teacher's logits", taught_BK)
    require_number("temperature", temperature, SMALLEST_TAU)
    ours_BK, theirs_BK = (F.log_softmax(logits / temperature, dim=1) for logits in (logits_BK, taught_BK))
    return temperature**2 * F.kl_div(ours_BK, theirs_BK, reduction="batchmean", log_target=True)
