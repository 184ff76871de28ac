"""Optional parts of a training: a moving average of the weights, and a teacher to distil from.

Both run inside a captured step, so nothing here waits for the device.
"""

import copy

import torch
from torch.nn import functional as F

from codinet.checks import require_number, require_same_place, require_tensor
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.losses import LARGEST_WEIGHT
from codinet.model import RoutedNetwork, require_network
from codinet.relaxation import SMALLEST_TAU
from codinet.run_reader import DataInfo


class Average:
    """A moving average of weights and BatchNorm statistics, kept in a second network.

    average ← d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t updates, so that the initial
    weights soon have no influence. `torch.optim.swa_utils.AveragedModel` computes d on the host, which a captured step
    cannot do.

    Args:
        model: The network that is trained.
        decay: The limit of d.
    """

    def __init__(self, model: RoutedNetwork, decay: float) -> None:
        require_network(model)
        require_number("decay", decay, 0, 1, below=True)
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._live, self._mean = _float_tensors(model), _float_tensors(self.model)
        self.updates = torch.zeros((), device=self._mean[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        weight = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        # _foreach_lerp_ with a weight on the device would launch a kernel per tensor.
        change = torch._foreach_sub(self._live, self._mean)
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._mean, change)
        self.updates.add_(1)

    @torch.no_grad()
    def adopt(self) -> None:
        """Copy the averaged weights into the trained network."""
        torch._foreach_copy_(self._live, self._mean)

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint needs."""
        return {"updates": self.updates, **{f"model.{name}": each for name, each in self.model.state_dict().items()}}


def _float_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics, each once, without BatchNorm's integer count of batches."""
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}  # one name if it is shared
    tensors = model.state_dict()
    return [tensors[name] for name in names.values() if tensors[name].is_floating_point()]


class Teacher:
    """A trained network whose outputs the student learns to match.

    It may have another architecture, routed or static. Classes and image size must be the student's.

    Args:
        model: The teacher's network.
        known: The data that it was trained on.
        dataset: The data that it will get.
        device: Where the training runs.
    """

    def __init__(self, model: RoutedNetwork, known: DataInfo, dataset: Dataset, device: torch.device) -> None:
        if known.classes != dataset.classes or known.image_shape != dataset.image_shape:
            theirs, ours = (f"{len(of.classes)} classes of images of shape {of.image_shape}" for of in (known, dataset))
            names = " with other names" if theirs == ours else ""
            raise UserError(
                f"The teacher must be trained on the classes and the image size of {dataset.name}: it was trained on "
                f"{theirs}{names}, and {dataset.name} has {ours}."
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
        """Return the images with the normalisation that the teacher was trained with."""
        if self.rescale is None:
            return images_BCHW
        return images_BCHW * self.rescale[0] + self.rescale[1]


def distillation(logits_BK: torch.Tensor, teacher_BK: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Hinton et al. 2015: T² · KL(teacher ‖ student) of logits softened by T, averaged over the batch.

    The factor T² keeps the size of the gradients independent of the temperature.

    Args:
        logits_BK: The student's logits.
        teacher_BK: The teacher's logits.
        temperature: T.

    Returns:
        A scalar.
    """
    require_tensor("logits", logits_BK, ("B", "K"))
    require_tensor("The teacher's logits", teacher_BK, logits_BK.shape)
    require_same_place("logits", logits_BK, "The teacher's logits", teacher_BK)
    require_number("temperature", temperature, SMALLEST_TAU, LARGEST_WEIGHT)  # its square is a factor
    student_BK, target_BK = (F.log_softmax(logits / temperature, dim=1) for logits in (logits_BK, teacher_BK))
    return temperature**2 * F.kl_div(student_BK, target_BK, reduction="batchmean", log_target=True)
