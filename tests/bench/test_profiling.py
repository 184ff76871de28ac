"""Peak memory, and the time that convolutions take."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from codinet.bench import profiling
from codinet.bench.profiling import conv_share, is_conv_kernel, is_conv_operator, operation_times, peak_mb

CPU = torch.device("cpu")


def test_conv_time_of_a_convolution_and_its_gradient() -> None:
    layer = torch.nn.Conv2d(16, 16, 3)
    images = torch.randn(8, 16, 32, 32)
    times = operation_times(lambda: layer(images).sum().backward(), CPU)
    assert list(times.values()) == sorted(times.values(), reverse=True)
    share = conv_share(times, CPU)
    assert share is not None
    assert 0 < share < 1  # the exact value depends on the load of the machine


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.75), ("cuda", 0.25)])
def test_conv_time_of_known_events(device: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def event(key: str, kind: str, cpu: float, cuda: float) -> SimpleNamespace:
        device_type = SimpleNamespace(name=kind)
        return SimpleNamespace(key=key, device_type=device_type, self_cpu_time_total=cpu, self_device_time_total=cuda)

    events = [
        event("aten::cudnn_convolution", "CPU", 5, 10),  # includes the time of its kernel
        event("aten::convolution_backward", "CPU", 1, 0),
        event("aten::sum", "CPU", 2, 30),
        event("sm90_xmma_fprop_implicit_gemm", "CUDA", 0, 10),
        event("reduce_kernel", "CUDA", 0, 30),
    ]
    recorded = SimpleNamespace(key_averages=lambda: events)
    monkeypatch.setattr(profiling, "profile", lambda **_words: nullcontext(recorded))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    times = operation_times(lambda: None, torch.device(device))
    assert conv_share(times, torch.device(device)) == share
    if device == "cuda":
        assert times == {"reduce_kernel": 30, "sm90_xmma_fprop_implicit_gemm": 10}


def test_conv_time_without_convolutions() -> None:
    matrix = torch.randn(64, 64)
    assert conv_share(operation_times(lambda: matrix @ matrix, CPU), CPU) == 0
    assert conv_share(operation_times(lambda: None, CPU), CPU) is None


@pytest.mark.parametrize(
    "name",
    [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x32x64",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<...>",
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized>",
        "_conv3x3_weight_gradient",
        "triton_conv3x3_bn_forward",
    ],
)
def test_conv_kernels(name: str) -> None:
    assert is_conv_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "triton_red_fused_native_batch_norm_backward_relu_3",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
        "void cudnn::ops::nchwToNhwcKernel<float>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor>",
        "Memcpy DtoD (Device -> Device)",
    ],
)
def test_other_kernels(name: str) -> None:
    assert not is_conv_kernel(name)


def test_conv_operators() -> None:
    assert is_conv_operator("aten::mkldnn_convolution")
    assert is_conv_operator("aten::convolution_backward")
    assert not is_conv_operator("aten::native_batch_norm")


def test_peak_memory_of_a_call() -> None:
    grown = peak_mb(lambda: torch.ones(64, 2**18).sum(), CPU)
    assert grown is not None
    assert 60 < grown < 200


def test_peak_memory_on_other_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling, "_RESET", tmp_path / "missing" / "file")
    called = []
    assert peak_mb(lambda: called.append(1), CPU) is None
    assert called
