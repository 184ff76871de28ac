"""Asking a network that does not learn: a teacher's answers, in one launch where the GPU engine can hold it."""

from collections.abc import Callable

import torch

from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.model import RoutedNetwork

Ask = Callable[[torch.Tensor], torch.Tensor]  # images to logits
NEAR = 0.1  # share of the answers that rounding to 16 bits may move; kernels that are wrong move all of it


def one_launch(model: RoutedNetwork, images_BCHW: torch.Tensor) -> Ask | None:
    """The network for batches like this one, in 16 bits; None where the engine cannot hold it or is wrong here."""
    device = images_BCHW.device
    if why_not(model, device) is not None:
        return None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16  # what the interpreter knows
    engine = (StaticGraphEngine if model.routers is None else GraphEngine)(model, dtype=dtype, device=device)
    ask = engine.within(len(images_BCHW))
    with torch.no_grad():
        wished_BK = model(images_BCHW).logits_BK
        near = (ask(images_BCHW) - wished_BK).norm() <= NEAR * wished_BK.norm()
    return ask if near else None
