"""The residual blocks of well-known networks: which names to pass as `blocks`.

timm and torchvision are not imported. A network is recognised by the name of its class and by the names of its parts,
because the two libraries share class names.
"""

import re
from collections import Counter
from fnmatch import fnmatchcase

from torch import nn

# Class name -> the patterns of its blocks, one for each library that has such a class.
FAMILIES: dict[str, tuple[str, ...]] = {
    "ConvNeXt": ("stages.*.blocks.*", "features.[1357].*"),  # timm, torchvision
    "SwinTransformer": ("layers.*.blocks.*", "features.[1357].*"),
    "SwinTransformerV2": ("layers.*.blocks.*",),
    "VisionTransformer": ("blocks.*", "encoder.layers.*"),
    "EfficientNet": ("blocks.*.*", "features.*.*"),
    "MobileNetV2": ("features.*",),
    "MobileNetV3": ("blocks.*.*", "features.*"),
    "RegNet": ("s[1-9].b*", "trunk_output.*.*"),
    "ResNetV2": ("stages.*.blocks.*",),
    "NormFreeNet": ("stages.*.*",),
    "MetaFormer": ("stages.*.blocks.*",),
    "MlpMixer": ("blocks.*",),
    "Beit": ("blocks.*",),
}


def family_pattern(module: nn.Module) -> str | None:
    """The value of `blocks` for a network of a known family.

    Args:
        module: The network.

    Returns:
        The pattern; None if the family is unknown, or the network's parts have other names.
    """
    patterns = (pattern for kind in type(module).__mro__ for pattern in FAMILIES.get(kind.__name__, ()))
    names = [name for name, _ in module.named_modules()]
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)


def fixed_size(module: nn.Module) -> tuple[int, int] | None:
    """The only height and width that a vision transformer of timm or torchvision accepts; None for other networks."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None) or getattr(module, "image_size", None)
    if isinstance(size, tuple | list) and len(size) == 2 and all(type(side) is int for side in size):
        return size[0], size[1]
    return (size, size) if type(size) is int else None


def likely_pattern(module: nn.Module) -> tuple[str, str, int] | None:
    """What may be the residual blocks of an unknown network: the composite modules that are repeated most often.

    Args:
        module: The network.

    Returns:
        A pattern, and the class and number of the modules that it is made for; None if no module is repeated.
    """
    parents = {name for name, part in module.named_modules() if isinstance(part, nn.Sequential | nn.ModuleList)}
    candidates: list[tuple[str, str]] = []  # pattern, class
    for name, part in module.named_modules():
        if name.rpartition(".")[0] in parents and not isinstance(part, nn.Sequential) and _is_composite(part):
            candidates.append((re.sub(r"\d+", "*", name), type(part).__name__))
    counts = Counter(candidates)
    if not counts:
        return None
    (pattern, kind), number = counts.most_common(1)[0]
    return (pattern, kind, number) if number > 1 else None


def _is_composite(part: nn.Module) -> bool:
    layers = (layer for child in part.children() for layer in child.modules())
    return any(isinstance(layer, nn.Conv2d | nn.Linear) for layer in layers)
