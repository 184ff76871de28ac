import pytest
import torch
from torch import nn

from codinet import UserError, make_dynamic
from codinet.bench import compare, with_run_rate


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x)


@pytest.mark.parametrize(("batch", "engine"), [(1, "branch"), (4, "gather")])
def test_a_network_of_somebody_elses_is_timed_against_its_static_form(batch: int, engine: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 1), *(Residual() for _ in range(4)), nn.Flatten(), nn.Linear(8 * 64, 5))
    images = torch.randn(8, 3, 8, 8)
    model = with_run_rate(make_dynamic(module, blocks=Residual, image_shape=(3, 8, 8)), images, 0.5)
    rows = {row["engine"]: row for row in compare(model, images, batch=batch, rounds=2)}
    assert set(rows) == {"static", "masked", engine}
    assert rows["static"]["speedup"] == 1
    # Half of four 3×3 convolutions of 8 channels are left out; their routers, stem and head are not.
    whole, block, router = 64 * 8 * 3 + 8 * 64 * 5, 64 * 8 * 8 * 9, 8 * 8 + 8 * 2
    wished = (whole + 4 * block) / (whole + 2 * block + 4 * router)
    assert rows[engine]["mac_speedup"] == pytest.approx(wished)


@pytest.mark.parametrize("batch", [0, 3])
def test_a_batch_that_the_images_do_not_give(batch: int) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 1), Residual(), nn.Flatten(), nn.Linear(8 * 64, 5))
    model = make_dynamic(module, blocks=Residual, image_shape=(3, 8, 8))
    with pytest.raises(UserError, match=f"2 images do not give a batch of {batch}"):
        compare(model, torch.randn(2, 3, 8, 8), batch=batch)
