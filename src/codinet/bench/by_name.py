"""Untrained networks by name, for benchmarks: with the image size and the number of classes they were published for."""

from typing import NamedTuple

from codinet.backbones import ARCHITECTURES
from codinet.checks import LARGEST_SIDE, require_whole
from codinet.create import create_model
from codinet.model import RoutedNetwork
from codinet.networks import input_info
from codinet.specs import OWN, require_arch

_OTHER_SIZE = 224  # of a network of the user's own


class Untrained(NamedTuple):
    """A network with initial weights, and what it is made for."""

    model: RoutedNetwork
    image_shape: tuple[int, int, int]
    classes: int


def create_untrained(arch: str, *, routed: bool = True, router: str = "fc", image_size: int | None = None) -> Untrained:
    """Create a network by name for colour images.

    Args:
        arch: The name of the network, as in `--arch`.
        routed: Whether it has routers.
        router: Their kind.
        image_size: Side length of its images; by default the size that it was published for.

    Returns:
        The network in training mode, the shape of its images and its number of classes.
    """
    shape, classes = published_input(arch, image_size)
    own = require_arch(arch).library == OWN
    model = create_model(arch, num_classes=classes, routed=routed, router=router, image_shape=None if own else shape)
    return Untrained(model, shape, classes)


def published_input(arch: str, image_size: int | None = None) -> tuple[tuple[int, int, int], int]:
    """Return the shape of the images that a network was published for, or of another size, and the number of classes.

    Args:
        arch: The name of the network, as in `--arch`.
        image_size: Side length of its images; by default the size that it was published for.
    """
    if image_size is not None:
        require_whole("--image-size", image_size, 8, LARGEST_SIDE)
    if require_arch(arch).library == OWN:
        published = ARCHITECTURES[arch].image_size
        size, classes = image_size or published, 10 if published == 32 else 1000
        return (3, size, size), classes
    stated = input_info(arch)
    size = image_size or (stated.size if stated is not None else _OTHER_SIZE)
    return (3, size, size), 1000
