"""Deterministic evaluation: accuracy, cost and the distribution of paths.

Takes a network or any engine: a callable from images to `RoutedOutput`. Reads nothing but its arguments.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from codinet.checks import require_callable, shown
from codinet.cost import CostTable, block_costs, in_float64
from codinet.data import Dataset, Split
from codinet.data.batches import SplitPlacer
from codinet.errors import UserError
from codinet.model import RoutedNetwork, in_evaluation
from codinet.notebook import class_picture, figure_rows, html_table
from codinet.records import PathTable, RoutedOutput
from codinet.relaxation import hard, run_probability


@dataclass(frozen=True)
class Evaluation:
    """The results of a network on a set of images."""

    accuracy: float  # percent
    loss: float  # mean cross entropy
    macs: float  # mean multiply-adds per image, routers included
    paper_gmaccs: float  # the same in the unit of the paper's tables
    cost_share: float  # macs divided by those of the static network
    mean_blocks: float  # mean number of blocks run per image
    distinct_paths: int
    path_entropy: float  # bits, of the distribution over distinct paths
    always_on: int  # blocks that every image runs
    always_off: int  # blocks that no image runs
    n: int
    paths: PathTable
    top5_accuracy: float | None = (
        None  # percent of images whose class is among the five likeliest; None for few classes
    )

    def summary(self) -> dict[str, Any]:
        """The figures without the table, ready for JSON."""
        found = {name: getattr(self, name) for name in FIGURES}
        return found | ({} if self.top5_accuracy is None else {TOP5: self.top5_accuracy})

    def _repr_html_(self) -> str:
        """Figures and a picture of the paths, for notebooks."""
        return html_table("Evaluation", figure_rows(self.summary())) + paths_html(self.paths)

    @property
    def collapsed(self) -> bool:
        """Whether no block depends on the input."""
        return self.distinct_paths == 1


TOP5 = "top5_accuracy"
# All figures and their types in JSON, which may write a whole float as an int. Networks with few classes and older runs
# lack the top-5 accuracy.
FIGURES: dict[str, tuple[type, ...]] = {
    entry.name: (int,) if entry.type is int else (int, float)
    for entry in dataclasses.fields(Evaluation)
    if entry.name not in ("paths", TOP5)
}
# Those that tables of several runs compare, in this order.
COMPARED_FIGURES = ("accuracy", "cost_share", "macs", "paper_gmaccs", "mean_blocks", "distinct_paths", "path_entropy")

PRECISION = "fp32_precision"  # the setting of torch; its older settings for TF32 cannot be mixed with it
_TOP = 5  # predictions of the top-5 accuracy
_LARGEST = 2**53  # of any figure; multiply-adds are the largest


def paths_html(paths: PathTable, classes: Sequence[str] | None = None) -> str:
    """A picture for notebooks of how often each block runs, for all images and by class.

    Args:
        paths: The path of each image.
        classes: The names of the classes; None shows their numbers.

    Returns:
        HTML.
    """
    rates = [paths.path_TN.double().mean(dim=0).tolist()]
    labels = paths.label_T.unique().tolist()
    rates += [paths.path_TN[paths.label_T == label].double().mean(dim=0).tolist() for label in labels]
    return class_picture(rates, labels, classes)


def impossible_figure(figures: Any, blocks: int, names: Iterable[str] = tuple(FIGURES)) -> str | None:
    """The first of `names` that is missing, or that no evaluation of a network of so many blocks can have.

    None where all are possible: then they are finite numbers of the right type and range.
    """
    if not isinstance(figures, dict):
        return "accuracy"
    top5 = figures.get(TOP5)
    if top5 is not None and (type(top5) not in (int, float) or not 0 <= top5 <= 100):
        return TOP5
    most = {"accuracy": 100, "mean_blocks": blocks, "always_on": blocks, "always_off": blocks, "path_entropy": blocks}
    positive = ("macs", "paper_gmaccs", "cost_share", "distinct_paths", "n")
    for name in names:
        value: Any = figures.get(name)
        if type(value) not in FIGURES[name] or not math.isfinite(value) or value < 0:
            return name
        if value > most.get(name, _LARGEST) or (name in positive and value == 0):
            return name
    return None


@contextmanager
def exact_inference() -> Iterator[None]:
    """No gradients, and full float32: with TF32, a GPU could decide close cases differently.

    The caller's choice of deterministic kernels is kept; which kernels are fastest is not tried out. On exit all
    settings of torch are as before.
    """
    backends: Any = torch.backends
    cudnn = backends.cudnn
    settings: list[tuple[Any, str, Any]] = [(cudnn, "enabled", True), (cudnn, "benchmark", False)]
    # An operation without a value of its own inherits that of cuDNN, and cuDNN that of torch. A value that is inherited
    # is not set, because no setting would restore the inheritance.
    settings += [(backends, PRECISION, "none")]
    settings += [(part, PRECISION, "ieee") for part in (cudnn, backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    with torch.inference_mode(), ExitStack() as restored:
        for part, name, value in settings:
            before = getattr(part, name)
            if before != value:
                restored.callback(setattr, part, name, before)
                setattr(part, name, value)
        yield


def evaluate(
    model: Callable[[torch.Tensor], RoutedOutput],
    loader: Iterable[tuple[torch.Tensor, torch.Tensor]],
    table: CostTable,
) -> Evaluation:
    """Run `model` over batches of (normalised images, labels) with hard decisions.

    `UserError` where there are no batches, items are not pairs, or labels do not fit the network.
    """
    require_callable("model", model)
    if not isinstance(loader, Iterable):
        raise UserError(f"The loader must give batches of (images, labels), got {shown(loader)}.")
    with in_evaluation(model), exact_inference():
        parts = [_batch(model(images), labels, table) for images, labels in map(_pair, loader)]
    if not parts:
        raise UserError("There are no images to evaluate on; the loader must give at least one batch.")
    paths = PathTable(*(torch.cat(column).cpu() for column in zip(*(part[0] for part in parts), strict=True)))
    losses_T, in_top_T = (torch.cat(column) for column in list(zip(*parts, strict=True))[1:])
    top5 = int(in_top_T.sum()) if len(in_top_T) else None
    return summarise(paths, table, loss=in_float64(losses_T).mean().item(), top5=top5)


def evaluate_test_set(
    model: RoutedNetwork, dataset: Dataset, device: torch.device, *, batch: int = 250, threshold: float = 0.5
) -> Evaluation:
    """Evaluate a network, which must be on the device, on the test images of a data set."""
    return threshold_evaluator(model, dataset, dataset.test, device, batch=batch)(threshold)


def threshold_evaluator(
    model: RoutedNetwork, dataset: Dataset, split: Split, device: torch.device, *, batch: int
) -> Callable[[float], Evaluation]:
    """A function from a threshold to the evaluation on a split. Images are loaded and costs counted only once.

    Args:
        model: The network, which must be on the device.
        dataset: The data set, for normalisation and image shape.
        split: The images to evaluate on.
        device: The device to compute on.
        batch: Images per batch.
    """
    placed = SplitPlacer(dataset, device).place_for_evaluation(split)
    table = block_costs(model, dataset.image_shape)

    def evaluate_at(threshold: float) -> Evaluation:
        with in_evaluation(model):  # `evaluate` sees a function
            evaluation = evaluate(
                partial(model, decide=partial(hard, threshold=threshold)), placed.batches(batch), table
            )
        if not math.isfinite(evaluation.loss):
            raise UserError(
                f"The network computes NaN or infinity on images of {dataset.name}; restore its weights or train again."
            )
        return evaluation

    return evaluate_at


def _pair(item: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pair = isinstance(item, tuple | list) and len(item) == 2
    if not pair or not all(isinstance(part, torch.Tensor) for part in item):
        raise UserError(f"The loader must give pairs of tensors (images, labels), got {_shown_item(item)}.")
    images, labels = item
    return images, labels


def _shown_item(item: Any) -> str:
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}: {', '.join(map(shown, item[:3]))}"
    return shown(item)


def _batch(
    output: RoutedOutput, labels_B: torch.Tensor, table: CostTable
) -> tuple[PathTable, torch.Tensor, torch.Tensor]:
    """The rows of the path table, the losses, and whether the class is among the five likeliest (empty for few)."""
    _require_labels(labels_B, *output.logits_BK.shape)
    confidence_B, prediction_B = output.logits_BK.softmax(dim=1).max(dim=1)
    rows = PathTable(
        path_TN=output.path_BN.to(torch.uint8),
        run_probability_TN=run_probability(output.scores_BN2).float(),
        label_T=labels_B,
        prediction_T=prediction_B,
        confidence_T=confidence_B,
        macs_T=table.path_macs(output.path_BN),
    )
    in_top_B = torch.zeros(0, dtype=torch.bool, device=labels_B.device)
    if output.logits_BK.shape[1] > _TOP:
        likeliest_B5 = output.logits_BK.topk(_TOP, dim=1).indices
        # Among equal logits, `topk` may leave out the one that `max` chooses.
        in_top_B = (likeliest_B5 == labels_B[:, None]).any(dim=1) | (prediction_B == labels_B)
    return rows, F.cross_entropy(output.logits_BK, labels_B, reduction="none"), in_top_B


def _require_labels(labels_B: torch.Tensor, images: int, classes: int) -> None:
    if labels_B.shape != (images,) or labels_B.dtype != torch.int64:
        raise UserError(
            f"Labels must be one int64 for each of the {images} images of a batch; got {labels_B.dtype} of shape "
            f"{tuple(labels_B.shape)}."
        )
    # On a GPU this is not checked, because the host would have to wait.
    if labels_B.is_cpu and images and not 0 <= int(labels_B.min()) <= int(labels_B.max()) < classes:
        raise UserError(
            f"Labels must be from 0 to {classes - 1}, the classes of the network; got labels from "
            f"{int(labels_B.min())} to {int(labels_B.max())}."
        )


def summarise(paths: PathTable, table: CostTable, *, loss: float, top5: int | None = None) -> Evaluation:
    """The evaluation that a table of paths gives.

    Args:
        paths: The path of each image.
        table: The cost of the blocks.
        loss: The mean loss.
        top5: The number of images whose class is among the five likeliest; None if there are five classes or fewer.
    """
    rate_N = paths.path_TN.double().mean(dim=0)
    _, count_P = torch.unique(paths.path_TN, dim=0, return_counts=True)
    share_P = count_P.double() / len(paths.path_TN)
    macs = paths.macs_T.mean().item()
    return Evaluation(
        accuracy=100 * (paths.prediction_T == paths.label_T).double().mean().item(),
        loss=loss,
        macs=macs,
        paper_gmaccs=table.paper_gmaccs(macs),
        cost_share=macs / table.static_macs,
        mean_blocks=rate_N.sum().item(),
        distinct_paths=len(count_P),
        path_entropy=abs(-(share_P * share_P.log2()).sum().item()),
        always_on=int((rate_N == 1).sum()),
        always_off=int((rate_N == 0).sum()),
        n=len(paths.path_TN),
        paths=paths,
        top5_accuracy=None if top5 is None else 100 * top5 / len(paths.path_TN),
    )
