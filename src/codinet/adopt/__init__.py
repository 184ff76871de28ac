"""Adds routing to an existing network. The network's own modules and weights are used; only routers are new.

`resnet` recognises ResNets by the names that torchvision and timm give their parts. `chain` handles any network whose
residual blocks run one after another; the caller names the blocks.
"""

from torch import nn

from codinet.adopt.chain import AdoptedChain
from codinet.adopt.resnet import AdoptedResNet
from codinet.adopt.tracing import Blocks
from codinet.checks import require_choice, require_kind
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.routers import ROUTERS


def make_dynamic(
    module: nn.Module,
    *,
    blocks: Blocks | None = None,
    router: str = "fc",
    image_shape: tuple[int, int, int] | None = None,
) -> RoutedNetwork:
    """Add a router before every residual block of an existing network. Weights are shared with `module`.

    Args:
        module: The network. A ResNet built like torchvision's or timm's needs no other argument.
        blocks: Which modules are residual blocks: their class, or one or more names, in which `*` matches anything
            ("features.*"). Blocks that keep the shape of their input are routed; the others always run.
        router: "fc", "cnn" or "rnn".
        image_shape: Channels, height and width of the images, for use with `blocks`; by default 224×224.

    Returns:
        The routed network. A network that cannot be routed is a `UserError`.
    """
    require_kind("module", module, nn.Module, "a torch module")
    if isinstance(module, RoutedNetwork):
        raise UserError(f"module must not have routers already, got {type(module).__name__}.")
    require_choice("router", router, ROUTERS)
    if blocks is not None:
        return AdoptedChain(module, blocks, router, image_shape)
    if image_shape is not None:
        raise UserError("image_shape requires blocks; leave it out for a ResNet.")
    return AdoptedResNet(module, router)
