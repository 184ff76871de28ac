"""Compiles kernels for an H200 on a machine without a GPU: `python cross_compile.py [block] [rows] [network] [fit]`.

The interpreter accepts code that the compiler rejects. A stub that launches nothing replaces the CUDA driver; Triton
compiles everything else as usual, down to machine code. Run it without TRITON_INTERPRET.
"""

import sys
from typing import Any, ClassVar

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class StubDriver:
    """A driver with its launcher and utilities. It records the kernels that are loaded."""

    compiled: ClassVar[list[str]] = []

    shared_memory: ClassVar[int] = 232448

    class utils:  # noqa: N801 - the name Triton uses
        @staticmethod
        def load_binary(name: str, *_: Any) -> tuple[int, ...]:
            StubDriver.compiled.append(name)
            return 0, 0, 0, 0, 1024

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            return {"max_shared_mem": StubDriver.shared_memory, "multiprocessor_count": 132, "warpSize": 32}

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


def _block(channels: int) -> Any:
    from codinet.kernels.block.fused_block import BlockTensors
    from codinet.kernels.block.routed_end import NormBuffers

    def vector() -> torch.Tensor:
        return torch.zeros(channels, requires_grad=True)

    convs = [torch.zeros(channels, channels, 3, 3, requires_grad=True) for _ in range(2)]
    buffers = NormBuffers(torch.zeros(channels), torch.ones(channels), torch.zeros((), dtype=torch.long), 0.1, 1e-5)
    return BlockTensors(convs[0], vector(), vector(), convs[1], vector(), vector(), buffers, buffers)


def compile_block() -> None:
    """Compiles a routed block of every width, an unrouted one, the end of a bottleneck, and the default router."""
    from codinet.kernels.block.fused_block import routed_block
    from codinet.kernels.block.routed_end import routed_end
    from codinet.kernels.block.router_kernels import fc_scores

    for channels in (16, 32, 64):
        size = 512 // channels
        for run_B in (torch.ones(8, requires_grad=True), *([None] if channels == 16 else [])):
            x_BCHW = torch.zeros(8, channels, size, size, dtype=torch.bfloat16, requires_grad=True)
            out_BCHW, pooled_BC = routed_block(x_BCHW, run_B, _block(channels))
            (out_BCHW.float().sum() + pooled_BC.sum()).backward()
        if channels == 64:
            y_BCHW = torch.zeros(8, 2 * channels, 7, 7, dtype=torch.bfloat16, requires_grad=True)
            wide = _block(2 * channels)
            out_BCHW, _ = routed_end(y_BCHW, y_BCHW, torch.ones(8), wide.gamma1, wide.beta1, wide.buffers1)
            out_BCHW.float().sum().backward()
        z_BC = torch.zeros(8, channels, requires_grad=True)
        fc_scores(
            z_BC, torch.zeros(channels, channels), z_BC[0], torch.zeros(2, channels), torch.zeros(2)
        ).sum().backward()


def compile_rows() -> None:
    """Compiles what a bottleneck of the `switch` engine launches, with and without a number of listed images."""
    from codinet.kernels.rows import Listed
    from codinet.kernels.rows.conv_rows import Weights, add_conv_rows_, conv_rows, zero_counters
    from codinet.kernels.rows.router_rows import Listing, score_parts
    from codinet.kernels.rows.stem_rows import max_pool

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    number, counters = zeros(1, dtype=torch.int32), zero_counters(zeros(1))
    listed = Listed(zeros(2, dtype=torch.int64), number)
    x_BCHW, pooled_BC = max_pool(zeros(2, 512, 14, 14))
    listing = Listing(
        *(zeros(2, 3, dtype=torch.int8), zeros(1, dtype=torch.float32), zeros(2, 3, 2, dtype=torch.float32)),
        *(zeros(2, 3, dtype=torch.float32), listed, counters),
    )
    router = (zeros(512, 512), zeros(512)), (zeros(2, 512), zeros(2))
    for rows, decides in ((listed, listing), (Listed(listed.index_R), None)):
        for batch in (1, 2):
            score_parts(pooled_BC, *router, batch, decides)
        arrived = None if decides is None else counters
        first, middle, last = (
            Weights.of(zeros(*shape), zeros(shape[0]), 1)
            for shape in ((128, 512, 1, 1), (128, 128, 3, 3), (512, 128, 1, 1))
        )
        h_RCHW = conv_rows(x_BCHW, first, listed=rows, gather=True, arrived=arrived)
        h_RCHW = conv_rows(h_RCHW, middle, listed=rows, arrived=arrived)
        add_conv_rows_(x_BCHW, rows, h_RCHW, last, pooled_BC=pooled_BC, arrived=arrived)


def _launcher(tuning: Any, dtype: torch.dtype) -> tuple[Any, torch.Tensor, Any]:
    """Returns a network under a tuning, an image, and the buffers of a launch."""
    from codinet import kernels
    from codinet.create import create_model
    from codinet.engines import graph
    from codinet.kernels.network.network_launch import LaunchBuffers, Launcher

    kernels.available = lambda device: True
    blocks = 9
    buffers = LaunchBuffers(
        torch.zeros(1),
        torch.zeros(1, blocks, dtype=torch.int8),
        torch.zeros(1, 10),
        torch.zeros(1, blocks, 2),
        torch.zeros(1, blocks),
        torch.zeros(1, 2, dtype=torch.int32),
    )
    weights = graph.GraphEngine(create_model("resnet20")).weights
    return Launcher(weights, tuning, dtype, torch.device("cpu")), torch.zeros(1, 3, 32, 32, dtype=dtype), buffers


def compile_network() -> None:
    """Compiles the network kernel for one image."""
    from codinet.kernels.network.network_tuning import TUNINGS

    launcher, images, buffers = _launcher(TUNINGS[0], torch.bfloat16)
    launcher(images, buffers)


def check_fit() -> None:
    """Compiles the network kernel for large batches and for small devices, and compares it with their shared memory."""
    from codinet.kernels import TooLargeError
    from codinet.kernels.block.fused_block import routed_block
    from codinet.kernels.network.network_tuning import TUNINGS, tunings_for

    def outcome(memory: int, run: Any, *args: Any) -> str:
        StubDriver.shared_memory = memory
        try:
            run(*args)
        except TooLargeError as error:
            return str(error)
        return "fits"

    h200, small, too_little = 232448, 48 * 1024, 1024
    fastest, smallest = tunings_for(1000, 132)
    assert fastest == TUNINGS[-1]
    launcher, images, buffers = _launcher(fastest, torch.bfloat16)
    assert outcome(h200, launcher.require_fit, images, buffers) == "fits"
    for run in (launcher.require_fit, launcher):  # before the launch, and by the launch itself
        message = outcome(too_little, run, images, buffers)
        assert message.startswith("network_kernel needs "), message
        assert message.endswith(" bytes of shared memory per program, and the device has 1,024"), message
    launcher, images, buffers = _launcher(smallest, torch.bfloat16)
    assert outcome(small, launcher.require_fit, images, buffers) == "fits"
    x_BCHW = torch.zeros(8, 16, 32, 32, dtype=torch.bfloat16)
    message = outcome(too_little, routed_block, x_BCHW, None, _block(16))
    assert " bytes of shared memory per program, and the device has 1,024" in message, message


if __name__ == "__main__":
    driver.set_active(StubDriver())
    for word in sys.argv[1:]:
        {"block": compile_block, "rows": compile_rows, "network": compile_network, "fit": check_fit}[word]()
        print(word, *StubDriver.compiled)  # in a line of its own for each
        StubDriver.compiled.clear()
