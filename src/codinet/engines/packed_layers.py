"""Faster layers. On the CPU: weights in oneDNN's layout, BatchNorms of adopted networks folded into convolutions.

Blocks of adopted networks keep their own forward, so what follows a layer cannot be fused with it as in `folding`. But
torch's layers convert their weights to oneDNN's layout in every call, or use a library that is slower on some CPUs. A
packed layer converts them once. On a GPU in half precision: patches of images as matrix products. A faster layer is the
same module with another class, so code that reads its weights still works.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import fx, nn

from codinet.adopt.chain import AdoptedChain, ChainBlock
from codinet.adopt.resnet import AdoptedBlock, AdoptedResNet
from codinet.engines.folding import fold_pair, has_fused
from codinet.model import RoutedNetwork

_IMAGE_CHANNELS = 4  # at most, of images
_FEW_ROWS, _FEW_WEIGHTS = 4, 2**18  # below both of which torch's own linear layer is faster


def pack(model: RoutedNetwork) -> None:
    """Fold and pack the layers of a network in evaluation mode, in place. Does nothing where torch cannot do it."""
    if has_fused() and all(p.device.type == "cpu" and p.dtype == torch.float32 for p in model.parameters()):
        for parent, conv, norm in list(_pairs(model)):
            _fold(parent, conv, norm)
        pack_layers(model)

    elif all(p.device.type == "cuda" and p.dtype != torch.float32 for p in model.parameters()):
        cut_patches(model)


def cut_patches(module: nn.Module) -> None:
    """Compute convolutions of images that cut them into patches as matrix products, in place."""
    for part in module.modules():
        if type(part) is not nn.Conv2d or part.in_channels > _IMAGE_CHANNELS or part.groups > 1:
            continue
        if part.stride == part.kernel_size and part.padding in ((0, 0), "valid") and part.dilation == (1, 1):
            part.__class__ = PatchConv


def pack_layers(module: nn.Module) -> None:
    """Pack the convolutions and linear layers of a module in float32 on the CPU, in place."""
    for part in module.modules():
        if type(part) is nn.Conv2d and isinstance(part.padding, tuple) and part.padding_mode == "zeros":
            part.__class__ = PackedConv
        elif type(part) is nn.Linear:
            part.__class__ = PackedLinear


def _is_recording() -> bool:
    """Whether torch compiles or exports the layer, which needs torch's own operations."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


class PackedConv(nn.Conv2d):
    """A convolution that keeps its weights in oneDNN's layout."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if _is_recording():
            return super().forward(input)
        geometry = list(self.padding), list(self.stride), list(self.dilation), self.groups
        if (packed := self.__dict__.get("packed")) is None:
            reorder = torch.ops.mkldnn._reorder_convolution_weight
            packed = self.__dict__["packed"] = reorder(self.weight, *geometry, list(input.shape))
        return torch.ops.mkldnn._convolution_pointwise.default(input, packed, self.bias, *geometry, "none", [], "")


class PatchConv(nn.Conv2d):
    """A convolution of patches that do not overlap. cuDNN is slow for the three channels of an image."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        height, width = self.kernel_size
        rows, columns = input.shape[2] // height, input.shape[3] // width
        inside_BHWC = input[:, :, : rows * height, : columns * width].permute(0, 2, 3, 1)
        patches = inside_BHWC.unflatten(2, (columns, width)).unflatten(1, (rows, height)).transpose(2, 3).flatten(3)
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        return nn.functional.linear(patches, weight, self.bias).permute(0, 3, 1, 2)


class PackedLinear(nn.Linear):
    """A linear layer that keeps its weights in oneDNN's layout."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.numel() // self.in_features
        small = rows < 2 or (rows < _FEW_ROWS and self.weight.numel() < _FEW_WEIGHTS)
        if small or _is_recording():
            return super().forward(input)
        if (packed := self.__dict__.get("packed")) is None:
            packed = self.__dict__["packed"] = torch.ops.mkldnn._reorder_linear_weight(self.weight, rows)
        return torch.ops.mkldnn._linear_pointwise(input, packed, self.bias, "none", [], "")


# Folding

_Pair = tuple[nn.Module, str, str]  # a module, and the names of a convolution and a BatchNorm in it


class _Tracer(fx.Tracer):
    """Traces down to convolutions and BatchNorms, which other libraries subclass."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def _pairs(model: RoutedNetwork) -> Iterator[_Pair]:
    """Convolutions whose output goes to a BatchNorm and nowhere else, in the stem of a ResNet and in blocks.

    Layers that several places share are left out, because each place would fold its own BatchNorm into them.
    """
    root = model.module if isinstance(model, AdoptedChain) else model
    places = Counter(part for _, part in root.named_modules(remove_duplicate=False))

    def fits(parent: nn.Module, conv_name: str, norm_name: str) -> bool:
        conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
        return places[conv] == places[norm] == 1 and _foldable(conv, norm)

    if isinstance(model, AdoptedResNet):
        for conv, norm in pairwise(model.stem_parts):
            if fits(model, conv, norm):
                yield model, conv, norm
    for block in model.blocks:
        if not isinstance(block, AdoptedBlock | ChainBlock):
            continue
        inner = block.block
        try:
            graph = _Tracer().trace(inner)
        except Exception:  # its forward depends on values or uses what cannot be traced
            continue
        calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
        for node in graph.nodes:
            source = node.args[0] if node.op == "call_module" and node.args else None
            if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) > 1:
                continue
            conv, norm = str(source.target), str(node.target)
            once = calls[conv] == calls[norm] == 1
            if once and fits(inner, conv, norm):
                yield inner, conv, norm


def _foldable(conv: nn.Module, norm: nn.Module) -> bool:
    return (
        type(conv) is nn.Conv2d
        and isinstance(conv.padding, tuple)
        and isinstance(norm, nn.BatchNorm2d)
        and norm.affine
        and norm.running_mean is not None
        and _after(norm) is not None
    )


def _after(norm: nn.BatchNorm2d) -> nn.Module | None:
    """What a BatchNorm does after normalising; None if that is unknown."""
    if type(norm) is nn.BatchNorm2d:
        return nn.Identity()
    if type(norm).__name__ == "BatchNormAct2d":  # timm's
        return nn.Sequential(norm.get_submodule("drop"), norm.get_submodule("act"))
    return None


def _fold(parent: nn.Module, conv_name: str, norm_name: str) -> None:
    conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    folded, after = fold_pair(conv, norm), _after(norm)
    conv.weight, conv.bias = nn.Parameter(folded.weight, False), nn.Parameter(folded.bias, False)
    owner, _, child = norm_name.rpartition(".")
    setattr(parent.get_submodule(owner), child, after)
