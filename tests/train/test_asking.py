"""A teacher in one launch; on the CPU its kernels are interpreted, so images are small."""

import pytest
import torch

pytest.importorskip("triton")

from codinet.engines.graph import GraphEngine
from codinet.model import create_model
from codinet.train.asking import one_launch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


@pytest.mark.parametrize("routed", [False, True])
def test_answers_are_the_network_s_and_written_over(routed: bool, images: torch.Tensor) -> None:
    model = create_model("resnet20", routed=routed).to(DEVICE).eval()
    ask = one_launch(model, images)
    assert ask is not None
    other = images.flip(0)
    first = ask(images).clone()
    for given, got in ((images, first), (other, ask(other.contiguous(memory_format=torch.channels_last)))):
        wished = model(given).logits_BK
        assert (got - wished).norm() < 0.03 * wished.norm()
    assert ask(images) is ask(other)


def test_a_routed_teacher_keeps_its_own_threshold(images: torch.Tensor) -> None:
    model = create_model("resnet20").to(DEVICE).eval()
    assert model.routers is not None
    model.routers.shift(-20.0)  # all closed, where they begin open
    ask = one_launch(model, images)
    assert ask is not None
    wished = model(images)
    assert wished.path_BN.sum() == 0
    assert (ask(images) - wished.logits_BK).norm() < 0.03 * wished.logits_BK.norm()


@pytest.mark.parametrize(("arch", "router"), [("resnet50", "fc"), ("resnet20", "rnn")])
def test_there_is_none_for_what_the_engine_cannot_hold(arch: str, router: str, images: torch.Tensor) -> None:
    assert one_launch(create_model(arch, router=router).to(DEVICE).eval(), images) is None


def test_there_is_none_where_kernels_are_wrong(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphEngine, "within", lambda *_: lambda images: torch.ones(len(images), 10, device=DEVICE))
    assert one_launch(create_model("resnet20").to(DEVICE).eval(), images) is None
