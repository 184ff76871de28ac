"""All engines that fit a network, timed against its static form: what `codinet bench` does, for any network at hand."""

from typing import Any

import torch

from codinet.bench.contest import PRECISIONS, contestants, pick_engines
from codinet.bench.measure import Setting, measure
from codinet.cost import block_costs
from codinet.errors import UserError
from codinet.model import RoutedNetwork


def compare(
    model: RoutedNetwork,
    images_TCHW: torch.Tensor,
    *,
    batch: int = 1,
    engines: tuple[str, ...] = (),
    threshold: float = 0.5,
    compiled: bool = False,
    precision: str = "float32",
    rounds: int = 20,
) -> list[dict[str, Any]]:
    """A row for each engine, `speedup` and `realised` among its figures; images take the paths that they take.

    The images are normalised and on the network's device; `engines` are those wished, or else those made for the batch
    size. Torch runs on as many threads as it is set to.
    """
    if not 1 <= batch <= len(images_TCHW):
        raise UserError(f"{len(images_TCHW)} images do not give a batch of {batch}.")
    device, threads = next(model.parameters()).device, torch.get_num_threads()
    channels, height, width = images_TCHW.shape[1:]
    table = block_costs(model, (channels, height, width))
    contest = contestants(
        model,
        pick_engines(engines, batch, model, device),
        table.image_shape,
        threads=threads,
        threshold=threshold,
        compiled=compiled,
        dtype=PRECISIONS[precision],
    )
    images_TCHW = images_TCHW.to(PRECISIONS[precision])
    return measure(contest, images_TCHW, table, Setting(batch, threads, device, precision), rounds=rounds)
