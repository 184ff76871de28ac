"""Networks without values: copies on the meta device, and building without drawing initial weights."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

Module = TypeVar("Module", bound=nn.Module)
# Methods that initialisers call on a parameter to change its values.
_SETTERS = frozenset({"trunc_normal_", "erfinv_", "mul_", "div_", "add_", "sub_", "clamp_", "fill_", "zero_"})


def meta_copy(module: Module) -> Module:
    """A copy on the meta device, in evaluation mode. Weights are not copied first, so it costs no memory."""
    tensors = (tensor for tensor in (*module.parameters(), *module.buffers()) if not is_lazy(tensor))
    memo: dict[int, Any] = {id(tensor): _meta_tensor(tensor) for tensor in tensors}
    return copy.deepcopy(module, memo).to("meta").eval()


def _meta_tensor(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if not isinstance(tensor, nn.Parameter):
        return empty
    return nn.Parameter(empty, requires_grad=tensor.requires_grad)


class _SkipInitialisers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if isinstance(first, nn.Parameter):
            name = getattr(func, "__name__", None)
            if name in _SETTERS or getattr(func, "__module__", None) == "torch.nn.init":
                return first
            if name in ("normal_", "uniform_"):  # an initialiser may draw until all values lie in a range
                return _fill(first, *args[1:3], middle=name == "uniform_")
        return func(*args, **kwargs)


@torch.no_grad()
def _fill(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, *, middle: bool) -> torch.Tensor:
    """The mean of the distribution in the place of draws from it."""
    return tensor.fill_((low + high) / 2 if middle else low)


@contextmanager
def without_initial_weights() -> Iterator[None]:
    """Do not draw the initial weights of networks that are built here, which is faster.

    The caller must overwrite every parameter. Buffers get their values as usual.
    """
    with _SkipInitialisers():
        yield
