"""Routing for a network that already exists: its own parts and weights, and routers added.

`resnet` uses the names that torchvision and timm give the parts of a ResNet. `chain` takes any network whose residual
blocks follow one another; the caller says which they are.
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
    """A routed network made of `module`'s own parts; weights are shared.

    A ResNet as torchvision or timm build it needs no other argument. For any other network, `blocks` says which of its
    modules are residual blocks: their class, or their names, in which `*` matches anything ("features.*"). Blocks that
    keep the shape of their input are routed; the others always run. `image_shape` is (channels, height, width) of the
    images, by default 224×224. `router` is "fc", "cnn" or "rnn".
    """
    require_kind("module", module, nn.Module, "a torch module")
    if isinstance(module, RoutedNetwork):
        raise UserError(f"make_dynamic takes a network without routing, and this {type(module).__name__} is routed.")
    require_choice("router", router, ROUTERS)
    if blocks is not None:
        return AdoptedChain(module, blocks, router, image_shape)
    if image_shape is not None:
        raise UserError("make_dynamic takes an image_shape together with blocks; a ResNet that it knows needs neither.")
    return AdoptedResNet(module, router)
