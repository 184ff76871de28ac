import importlib
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from codinet.bench.conv_share import conv_share, is_conv_kernel, is_conv_operator

CPU = torch.device("cpu")


def test_of_a_convolution_and_its_gradient_a_part() -> None:
    layer = torch.nn.Conv2d(16, 16, 3)
    images = torch.randn(8, 16, 32, 32)
    share = conv_share(lambda: layer(images).sum().backward(), CPU)
    assert share is not None
    assert 0 < share < 1  # how much of it, a busy machine decides


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.75), ("cuda", 0.25)])
def test_of_known_times_exactly(device: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def event(key: str, kind: str, cpu: float, cuda: float) -> SimpleNamespace:
        device_type = SimpleNamespace(name=kind)
        return SimpleNamespace(key=key, device_type=device_type, self_cpu_time_total=cpu, self_device_time_total=cuda)

    events = [
        event("aten::cudnn_convolution", "CPU", 5, 10),  # credited with the time of its kernel
        event("aten::convolution_backward", "CPU", 1, 0),
        event("aten::sum", "CPU", 2, 30),
        event("sm90_xmma_fprop_implicit_gemm", "CUDA", 0, 10),
        event("reduce_kernel", "CUDA", 0, 30),
    ]
    recorded = SimpleNamespace(key_averages=lambda: events)
    module = importlib.import_module("codinet.bench.conv_share")
    monkeypatch.setattr(module, "profile", lambda **_words: nullcontext(recorded))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    assert conv_share(lambda: None, torch.device(device)) == share


def test_of_none_nothing() -> None:
    matrix = torch.randn(64, 64)
    assert conv_share(lambda: matrix @ matrix, CPU) == 0
    assert conv_share(lambda: None, CPU) is None


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
def test_kernels_of_convolutions(name: str) -> None:
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
def test_kernels_of_other_things(name: str) -> None:
    assert not is_conv_kernel(name)


def test_operators() -> None:
    assert is_conv_operator("aten::mkldnn_convolution")
    assert is_conv_operator("aten::convolution_backward")
    assert not is_conv_operator("aten::native_batch_norm")
