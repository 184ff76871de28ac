import pytest
import torch

from codinet.data import channel_stats as module
from codinet.data.channel_stats import channel_stats


def test_agrees_with_torch() -> None:
    images = torch.randint(0, 256, (7, 3, 5, 4), dtype=torch.uint8)
    mean, std = channel_stats(images)
    values = images.double()
    assert mean == pytest.approx(values.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(values.std(dim=(0, 2, 3), correction=0).tolist())


def test_one_colour_does_not_divide_by_zero() -> None:
    mean, std = channel_stats(torch.full((2, 1, 3, 3), 9, dtype=torch.uint8))
    assert mean == (9.0,)
    assert std == (1.0,)


def test_very_many_images_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(8, dtype=torch.uint8)[:, None, None, None].expand(8, 1, 2, 2)
    monkeypatch.setattr(module, "_ENOUGH", 16)
    assert channel_stats(images)[0] == (3.0,)  # of 0, 2, 4, 6
