import pytest
import torch
from torch import nn

from codinet.analysis.forward import BATCH, look, silent
from codinet.records import RoutedOutput


class Toy(nn.Module):
    """Two blocks: the first runs where the image's mean is positive, the second always."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, images_BCHW: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        mean_B = images_BCHW.mean(dim=(1, 2, 3))
        scores_BN2 = torch.stack(
            [torch.stack([-mean_B, mean_B], 1), torch.tensor([[0.0, 9.0]]).expand(len(mean_B), 2)], 1
        )
        features_B2 = torch.stack([mean_B, mean_B**2], dim=1)
        path_BN = (scores_BN2[..., 1] >= scores_BN2[..., 0]).float() if force is None else force
        return RoutedOutput(self.fc(features_B2), scores_BN2, path_BN)


def some(number: int) -> torch.Tensor:
    return torch.randn(number, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_back_whole_and_in_order(threads: int) -> None:
    toy, x = Toy(), some(2 * BATCH + 7)
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = look(toy, lambda rows: x[rows], len(x), seen.append, tap=toy.fc)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert seen == [BATCH, BATCH, 7]
    assert found.path_TN.dtype == torch.uint8
    assert found.path_TN[:, 0].tolist() == [int(mean >= 0) for mean in x.mean(dim=(1, 2, 3)).tolist()]
    torch.testing.assert_close(found.logits_TK, toy(x).logits_BK)
    torch.testing.assert_close(found.run_probability_TN, toy(x).scores_BN2.softmax(-1)[..., 1])
    torch.testing.assert_close(found.feature_TD[:, 0], x.mean(dim=(1, 2, 3)))


def test_each_image_takes_the_path_that_is_imposed_on_it() -> None:
    toy, x = Toy(), some(BATCH + 7)
    force_TN = torch.randint(0, 2, (len(x), 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    found = look(toy, lambda rows: x[rows], len(x), silent("", None), force_TN=force_TN)
    assert torch.equal(found.path_TN, force_TN)


def test_nothing_is_kept_after_and_results_are_ordinary_tensors() -> None:
    toy, x = Toy(), some(2)
    found = look(toy, lambda rows: x[rows], 2, silent("", None), tap=toy.fc)
    assert not toy.fc._forward_pre_hooks
    assert not any(column.is_inference() for column in found)
    assert look(toy, lambda rows: x[rows], 2, silent("", None)).feature_TD.shape == (2, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_network_comes_out_and_threads_are_as_before(threads: int) -> None:
    def broken(_images: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        raise RuntimeError("out of luck")

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(RuntimeError, match="out of luck"):
            look(broken, lambda rows: some(300)[rows], 300, silent("", None))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
