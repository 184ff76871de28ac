import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.methods.random import HashRouters
from codinet.relaxation import hard


def paths(routers: HashRouters, images_BCHW: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return hard(routers.scores(images_BCHW))


def test_the_noise_by_hand() -> None:
    """Pixels of 0.3, 1.4 and −2: rounded quarters are 1, 6 and −8, in all −1.

    For a = 3 and b = 8, x = 5 and y = 55. For a = 1 and b = 0, x = 2047, which is −1, and y = −1 · −1 = 1.
    """
    routers = HashRouters(2, 1)
    routers.factor_N.copy_(torch.tensor([3.0, 1.0]))
    routers.offset_N.copy_(torch.tensor([8.0, 0.0]))
    scores_N2 = routers.scores(torch.tensor([0.3, 1.4, -2.0]).view(1, 1, 1, 3))[0].detach()
    assert scores_N2[:, 0].tolist() == [0, 0]
    assert scores_N2[:, 1].tolist() == [1 + 4 * (55 / 2048 - 0.5), 1 + 4 * (1 / 2048 - 0.5)]


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_blocks_run_at_the_rate_and_independently(rate: float) -> None:
    routers = HashRouters(12, 3)
    routers.set_rate(rate)
    images_BCHW = torch.randn(3000, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    path_BN = paths(routers, images_BCHW)
    assert path_BN.mean(dim=0).tolist() == pytest.approx([rate] * 12, abs=0.05)
    if 0 < rate < 1:
        together_NN = path_BN.T @ path_BN / len(path_BN)
        apart = together_NN[~torch.eye(12, dtype=torch.bool)]
        assert apart.mean().item() == pytest.approx(rate**2, abs=0.02)
        assert len(path_BN.unique(dim=0)) > 500


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_the_same_image_takes_the_same_path_in_any_batch_and_format(seed: int) -> None:
    images_BCHW = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    routers = HashRouters(9, 3)
    routers.set_rate(0.5)
    path_BN = paths(routers, images_BCHW)
    assert torch.equal(paths(routers, images_BCHW[2:3]), path_BN[2:3])
    assert torch.equal(paths(routers, images_BCHW.to(memory_format=torch.channels_last)), path_BN)
    assert torch.equal(paths(routers, images_BCHW.flip(3)), path_BN)  # the sum does not change
    assert torch.equal(paths(HashRouters(9, 3), images_BCHW), paths(HashRouters(9, 3), images_BCHW))
