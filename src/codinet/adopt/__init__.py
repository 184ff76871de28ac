"""Routing for a network that already exists: its own parts and weights, and routers added.

`resnet` goes by the names that torchvision and timm give the parts of a ResNet. `chain` takes any network whose
residual blocks follow one another, and is told which they are.
"""

from torch import nn

from codinet.adopt.chain import AdoptedChain
from codinet.adopt.resnet import AdoptedResNet
from codinet.adopt.tracing import Blocks
from codinet.errors import UserError, unknown
from codinet.model import RoutedNetwork
from codinet.routers import ROUTERS


def make_dynamic(
    module: nn.Module,
    *,
    blocks: Blocks | None = None,
    router: str = "fc",
    image_shape: tuple[int, int, int] | None = None,
) -> RoutedNetwork:
    """A routed network over `module`'s own parts, which it shares.

    A ResNet as torchvision or timm build it needs no more. For any other network, `blocks` says which of its modules
    are residual blocks: their class, or their names, in which `*` stands for anything ("features.*"). Those that keep
    the shape of their input are routed; the others run always. Images are of `image_shape`, or else 224×224.
    """
    if router not in ROUTERS:
        raise unknown("router", router, ROUTERS)
    if blocks is not None:
        return AdoptedChain(module, blocks, router, image_shape)
    if image_shape is not None:
        raise UserError("make_dynamic takes an image_shape together with blocks; a ResNet that it knows needs none.")
    return AdoptedResNet(module, router)
