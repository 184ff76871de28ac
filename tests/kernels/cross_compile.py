"""Compiles kernels for an H200 on a machine without a GPU: `python cross_compile.py training | engine`.

The interpreter, in which the other tests run, takes what the compiler refuses. A driver that launches nothing stands
in for CUDA's; everything else is Triton's own way from Python to machine code. Must run without TRITON_INTERPRET.
"""

import sys
from typing import Any, ClassVar

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Nothing:
    """A driver, its launcher and its tools."""

    compiled: ClassVar[list[str]] = []

    class utils:  # noqa: N801 - the name Triton asks for
        @staticmethod
        def load_binary(name: str, *_: Any) -> tuple[int, ...]:
            Nothing.compiled.append(name)
            return 0, 0, 0, 0, 1024

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}

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


def engine() -> None:
    """The whole network as it is launched for one image and for many."""
    from codinet import kernels
    from codinet.engines import graph
    from codinet.kernels.stage_launch import Launcher, Traffic
    from codinet.kernels.stage_tuning import TUNINGS
    from codinet.model import create_model

    kernels.available = lambda device: True
    model, blocks = create_model("resnet20"), 9
    dtype, held = torch.bfloat16, graph.GraphEngine(model)
    for tuning in (TUNINGS[0], TUNINGS[-1]):
        traffic = Traffic(
            torch.zeros(1),
            torch.zeros(1, blocks, dtype=torch.int8),
            torch.zeros(1, 10),
            torch.zeros(1, blocks, 2),
            torch.zeros(1, blocks),
            torch.zeros(1, 2, dtype=torch.int32),
        )
        launcher = Launcher(held.weights, tuning, dtype, torch.device("cpu"))
        launcher(torch.zeros(1, 3, 32, 32, dtype=dtype), traffic)


if __name__ == "__main__":
    driver.set_active(Nothing())
    {"training": training, "engine": engine}[sys.argv[1]]()
    print(*Nothing.compiled)
