"""The training loop that speeds are compared with: torchvision's network and plain PyTorch, nothing of codinet.

It is what a careful user would write: channels last, autocast, a fused SGD with momentum, cuDNN's search for fast
convolutions, torch.compile around the network, images as bytes on the device that are normalised and mirrored at
random.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from codinet.adopt import import_vision

NETWORKS = ("resnet50", "resnet101")  # that torchvision and codinet both have
_LEARNING_RATE = 1e-3  # small, because labels are random
_MEAN, _STD = 127.5, 73.9


class PlainLoop:
    """A training step of a network of torchvision on random bytes.

    Args:
        arch: One of `NETWORKS`.
        inputs: Images of a step.
        device: Where to train.
        amp: Whether to compute in bfloat16.
        image_size: Side length of the images.
        classes: Outputs of the network.
        compile: Compiles the network.
    """

    def __init__(
        self,
        arch: str,
        inputs: int,
        device: torch.device,
        *,
        amp: bool,
        image_size: int,
        classes: int,
        compile: Callable[[Any], Any] = torch.compile,
    ) -> None:
        self.device, self.amp, self.inputs = device, amp, inputs
        self.layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        model = import_vision("torchvision").models.get_model(arch, weights=None, num_classes=classes)
        self.model = model.to(device).to(memory_format=self.layout).train()
        self.network = compile(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=_LEARNING_RATE,
            momentum=0.9,
            weight_decay=1e-4,
            fused=device.type in ("cpu", "cuda"),
        )
        number = 2 * inputs
        images_NCHW = torch.randint(0, 256, (number, 3, image_size, image_size), dtype=torch.uint8)
        self.images_NCHW = images_NCHW.to(device).to(memory_format=self.layout)
        self.labels_N = torch.randint(0, classes, (number,)).to(device)
        self.index_B = torch.randperm(number)[:inputs].to(device)

    def __call__(self) -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            self._step()
        finally:
            torch.backends.cudnn.benchmark = before

    def _step(self) -> None:
        images_BCHW = (self.images_NCHW[self.index_B].float() - _MEAN) / _STD
        mirror_B = torch.rand(self.inputs, device=self.device) < 0.5
        images_BCHW = torch.where(mirror_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)
        images_BCHW = images_BCHW.contiguous(memory_format=self.layout)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            loss = F.cross_entropy(self.network(images_BCHW), self.labels_N[self.index_B])
        loss.backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        """Weights and momentum, which are kept between steps."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*self.model.state_dict().values(), *momentum]
