"""The logits of a network that is not trained, such as a teacher: in one launch where the graph engine can take it."""

from collections.abc import Callable

import torch

from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.errors import UserError
from codinet.model import RoutedNetwork

Ask = Callable[[torch.Tensor], torch.Tensor]  # images to logits
NEAR = 0.1  # share of the logits by which rounding to 16 bits may change them; wrong kernels change all of it


def one_launch(model: RoutedNetwork, images_BCHW: torch.Tensor) -> Ask | None:
    """The network for batches like this one, in 16 bits; None if the engine cannot take it or is wrong here."""
    device, routed = images_BCHW.device, model.routers is not None
    if why_not(model, device, routers=routed) is not None:
        return None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16  # the interpreter cannot do bfloat16
    engine = (GraphEngine if routed else StaticGraphEngine)(model, dtype=dtype, device=device)
    try:
        ask = engine.within(images_BCHW)
    except UserError:  # no kernel fits this device
        return None
    with torch.no_grad():
        wished_BK = model(images_BCHW).logits_BK
        near = (ask(images_BCHW) - wished_BK).norm() <= NEAR * wished_BK.norm()
    return ask if near else None
