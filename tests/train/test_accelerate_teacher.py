"""A teacher in one launch; on the CPU its kernels are interpreted, so images are small."""

import pytest
import torch

pytest.importorskip("triton")

from codinet.create import create_model
from codinet.engines.graph import GraphEngine
from codinet.train.accelerate import one_launch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


@pytest.mark.parametrize("routed", [False, True])
def test_logits_are_the_networks_and_overwritten_by_the_next_call(routed: bool, images: torch.Tensor) -> None:
    model = create_model("resnet14", routed=routed).to(DEVICE).eval()
    logits_of = one_launch(model, images)
    assert logits_of is not None
    other = images.flip(0).contiguous(memory_format=torch.channels_last)
    buffer = logits_of(images)
    first = buffer.clone()
    assert logits_of(other) is buffer
    for given, got in ((images, first), (other, buffer)):
        expected = model(given).logits_BK
        assert (got - expected).norm() < 0.03 * expected.norm()


def test_a_routed_teacher_keeps_its_own_threshold(images: torch.Tensor) -> None:
    model = create_model("resnet14").to(DEVICE).eval()
    assert model.routers is not None
    model.routers.shift(-20.0)  # all closed, where they begin open
    logits_of = one_launch(model, images)
    assert logits_of is not None
    expected = model(images)
    assert expected.path_BN.sum() == 0
    assert (logits_of(images) - expected.logits_BK).norm() < 0.03 * expected.logits_BK.norm()


@pytest.mark.parametrize(("arch", "router"), [("resnet50", "fc"), ("resnet20", "rnn")])
def test_there_is_none_for_what_the_engine_cannot_hold(arch: str, router: str, images: torch.Tensor) -> None:
    assert one_launch(create_model(arch, router=router).to(DEVICE).eval(), images) is None


def test_there_is_none_where_kernels_are_wrong(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphEngine, "launch_for", lambda *_: lambda images: torch.ones(len(images), 10, device=DEVICE))
    assert one_launch(create_model("resnet14").to(DEVICE).eval(), images) is None
