"""Learning from a teacher: its logits for the views of a step, and the loss that compares them with the student's.

By default the teacher runs in every step. With fixed views (`--teacher-views`), `answers` runs it once on all of them
before the training, and a step looks its logits up. Nothing inside a step waits for the device.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from codinet.checks import require_number, require_same_place, require_tensor
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident, Stream
from codinet.data.dataset import Dataset
from codinet.data.free_memory import free_bytes
from codinet.errors import UserError
from codinet.losses import LARGEST_WEIGHT
from codinet.model import RoutedNetwork
from codinet.relaxation import SMALLEST_TAU
from codinet.run_reader import DataInfo
from codinet.train.distributed import World

_TABLE_FRACTION = 0.5  # of the free memory that the answers may use


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


@torch.no_grad()
def answers(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    train: Resident | Stream,
    augmentation: Augmentation,
    world: World,
    *,
    rows: int,
) -> torch.Tensor:
    """Return the teacher's log probabilities for every fixed view of every training image.

    The processes divide the images among them, and each gets the result for all.

    Args:
        logits_of: The teacher's logits for normalised views; gets the same number of views at every call.
        train: The training images.
        augmentation: How views are made; `fixed` is the number of views of an image.
        world: The processes that train.
        rows: Views that a process computes at a time, rounded to whole images.

    Returns:
        N×V×K in half precision. The order of the views is that of `Augmentation.numbers`.
    """
    views, number = augmentation.fixed, len(train)
    each = replace(augmentation, views=views)
    size = max(1, rows // views)
    window = train.window(size, each)
    device, at_once = window.labels_N.device, size * world.size
    # The last batch is filled up with the first images.
    batches = (torch.arange(-(-number // at_once) * at_once) % number).view(-1, world.size, size)
    images = batches.to(device)
    table_NVK = torch.empty(0)
    for i, index_L in enumerate(train.deliver(batches[:, world.rank])):
        images_LCHW, _ = window.take(index_L)
        views_BCHW = each.make_views(images_LCHW, images[i, world.rank], 0, ready=window.views is not None)
        rows_BK = F.log_softmax(world.gather_rows(logits_of(views_BCHW)).float(), dim=1)
        if i == 0:
            shape = number, views, rows_BK.shape[1]
            table_NVK = world.on_every_rank(partial(_empty_table, shape, device))
        image_L = images[i].flatten()
        view_LV = each.numbers(0, image_L)
        least = torch.finfo(table_NVK.dtype).min
        table_NVK[image_L[:, None], view_LV] = rows_BK.clamp(min=least).to(table_NVK.dtype).unflatten(0, view_LV.shape)
    return table_NVK


def _empty_table(shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    needed, free = 2 * shape[0] * shape[1] * shape[2], free_bytes(device)
    if free is not None and needed > _TABLE_FRACTION * free:
        raise UserError(
            f"The teacher's answers to {shape[1]} views of {shape[0]:,} images would take {needed / 2**30:.1f} GiB and "
            f"{device} has {free / 2**30:.1f} GiB free; use a smaller --teacher-views, or 0."
        )
    return torch.empty(shape, dtype=torch.float16, device=device)
