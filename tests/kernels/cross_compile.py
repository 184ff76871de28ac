"""Compiles kernels for an H200 on a machine without a GPU: `python cross_compile.py training | engine | fit`.

The interpreter, in which the other tests run, accepts code that the compiler refuses. A driver that launches nothing
replaces CUDA's; everything else is Triton's own way from Python to machine code. Must run without TRITON_INTERPRET.
"""

import sys
from typing import Any, ClassVar

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Nothing:
    """A driver, its launcher and its tools."""

    compiled: ClassVar[list[str]] = []

    shared_memory: ClassVar[int] = 232448

    class utils:  # noqa: N801 - the name Triton asks for
        @staticmethod
        def load_binary(name: str, *_: Any) -> tuple[int, ...]:
            Nothing.compiled.append(name)
            return 0, 0, 0, 0, 1024

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            return {"max_shared_mem": Nothing.shared_memory, "multiprocessor_count": 132, "warpSize": 32}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None


def training() -> None:
    """Forward and backward of every width, routed and not; the default router."""
    from codinet.backbones import BasicBlock
    from codinet.kernels.block import routed_block
    from codinet.kernels.router import fc_scores
    from codinet.train.fused import _tensors

    for channels in (16, 32, 64):
        size = 512 // channels
        block = BasicBlock(channels, channels, 1, "3x3")
        for run_B in (torch.ones(8, requires_grad=True), None):
            x_BCHW = torch.zeros(8, channels, size, size, dtype=torch.bfloat16, requires_grad=True)
            out_BCHW, pooled_BC = routed_block(x_BCHW, run_B, _tensors(block))
            (out_BCHW.float().sum() + pooled_BC.sum()).backward()
        z_BC = torch.zeros(8, channels, requires_grad=True)
        fc_scores(
            z_BC, torch.zeros(channels, channels), z_BC[0], torch.zeros(2, channels), torch.zeros(2)
        ).sum().backward()


def _launcher(tuning: Any, dtype: torch.dtype) -> tuple[Any, torch.Tensor, Any]:
    """A network under a tuning, an image, and the buffers of a launch."""
    from codinet import kernels
    from codinet.engines import graph
    from codinet.kernels.stage_launch import Launcher, Traffic
    from codinet.model import create_model

    kernels.available = lambda device: True
    blocks = 9
    traffic = Traffic(
        torch.zeros(1),
        torch.zeros(1, blocks, dtype=torch.int8),
        torch.zeros(1, 10),
        torch.zeros(1, blocks, 2),
        torch.zeros(1, blocks),
        torch.zeros(1, 2, dtype=torch.int32),
    )
    weights = graph.GraphEngine(create_model("resnet20")).weights
    return Launcher(weights, tuning, dtype, torch.device("cpu")), torch.zeros(1, 3, 32, 32, dtype=dtype), traffic


def engine() -> None:
    """The whole network as it is launched for one image and for many."""
    from codinet.kernels.stage_tuning import TUNINGS

    for tuning in (TUNINGS[0], TUNINGS[-1]):
        launcher, images, traffic = _launcher(tuning, torch.bfloat16)
        launcher(images, traffic)


def fit() -> None:
    """Kernels are compared with the shared memory of an H200, of a small device and of one that has too little."""
    from codinet.backbones import BasicBlock
    from codinet.kernels import TooLargeError
    from codinet.kernels.block import routed_block
    from codinet.kernels.stage_tuning import TUNINGS, tunings_for
    from codinet.train.fused import _tensors

    def outcome(memory: int, run: Any, *args: Any) -> str:
        Nothing.shared_memory = memory
        try:
            run(*args)
        except TooLargeError as error:
            return str(error)
        return "fits"

    h200, least, too_little = 232448, 48 * 1024, 1024
    usual, smallest = tunings_for((16, 32, 64), 1000, 132)
    assert usual == TUNINGS[-1]
    launcher, images, traffic = _launcher(usual, torch.bfloat16)
    assert outcome(h200, launcher.require_fit, images, traffic) == "fits"
    for run in (launcher.require_fit, launcher):  # asked beforehand, and by the launch itself
        said = outcome(too_little, run, images, traffic)
        assert said.startswith("network_kernel needs "), said
        assert said.endswith(" bytes of shared memory per program, and the device has 1,024"), said
    launcher, images, traffic = _launcher(smallest, torch.bfloat16)
    assert outcome(least, launcher.require_fit, images, traffic) == "fits"
    x_BCHW = torch.zeros(8, 16, 32, 32, dtype=torch.bfloat16)
    block = _tensors(BasicBlock(16, 16, 1, "3x3"))
    said = outcome(too_little, routed_block, x_BCHW, None, block)
    assert " bytes of shared memory per program, and the device has 1,024" in said, said
    assert not Nothing.compiled or "network_kernel" not in Nothing.compiled, Nothing.compiled  # nothing was loaded
    print("fit")


if __name__ == "__main__":
    driver.set_active(Nothing())
    {"training": training, "engine": engine, "fit": fit}[sys.argv[1]]()
    print(*Nothing.compiled)
