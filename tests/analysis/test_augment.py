import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.analysis.augment import CROP, HORIZONTAL, KINDS, ROTATION, VERTICAL, Draws, augment, draw, rotate


def images(number: int = 8, height: int = 6, width: int = 6) -> torch.Tensor:
    return torch.randn(number, 3, height, width, generator=torch.Generator().manual_seed(1))


def all_of(kind: int, number: int, *, dy: int = 1, dx: int = 1, degrees: float = 0.0) -> Draws:
    return Draws(
        torch.full((number,), kind, dtype=torch.uint8),
        torch.full((number,), dy),
        torch.full((number,), dx),
        torch.full((number,), degrees),
    )


def test_kinds_come_in_equal_numbers_and_within_bounds() -> None:
    draws = draw(1000, pad=4, seed=3)
    assert torch.bincount(draws.kind_B).tolist() == [250] * len(KINDS)
    assert draws.dy_B.min() == draws.dx_B.min() == 0
    assert draws.dy_B.max() == draws.dx_B.max() == 8
    assert draws.degrees_B.abs().max() <= 15
    assert draws.degrees_B.min() < -14
    assert draws.degrees_B.max() > 14


def test_draws_depend_on_the_seed_alone() -> None:
    assert all(torch.equal(a, b) for a, b in zip(draw(20, pad=2, seed=5), draw(20, pad=2, seed=5), strict=True))
    assert not torch.equal(draw(20, pad=2, seed=5).kind_B, draw(20, pad=2, seed=6).kind_B)


def test_batches_give_what_the_whole_set_gives() -> None:
    x = images(12)
    draws = draw(12, pad=1, seed=0)
    whole = augment(x, draws, pad=1)
    parts = [augment(x[i : i + 5], draws.at(slice(i, i + 5), x.device), pad=1) for i in range(0, 12, 5)]
    assert torch.equal(whole, torch.cat(parts))


def test_flips_are_torch_flips_and_leave_their_input() -> None:
    x = images()
    before = x.clone()
    assert torch.equal(augment(x, all_of(HORIZONTAL, 8), pad=1), x.flip(3))
    assert torch.equal(augment(x, all_of(VERTICAL, 8), pad=1), x.flip(2))
    assert torch.equal(x, before)


def test_a_crop_shifts_and_fills_with_zeros() -> None:
    x = images()
    assert torch.equal(augment(x, all_of(CROP, 8, dy=1, dx=1), pad=1), x)
    moved = augment(x, all_of(CROP, 8, dy=0, dx=1), pad=1)
    assert torch.equal(moved[:, :, 1:], x[:, :, :-1])
    assert (moved[:, :, 0] == 0).all()


@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 9)])
def test_a_full_turn_and_no_turn_are_the_image(height: int, width: int) -> None:
    x = images(2, height, width)
    for degrees in (0.0, 360.0, -720.0):
        torch.testing.assert_close(augment(x, all_of(ROTATION, 2, degrees=degrees), pad=1), x, atol=1e-4, rtol=0)


def test_quarter_turns_are_counter_clockwise() -> None:
    x = images(2)
    for quarters in (1, 2, 3):
        turned = rotate(x, torch.full((2,), 90.0 * quarters))
        torch.testing.assert_close(turned, torch.rot90(x, quarters, (2, 3)), atol=1e-4, rtol=0)


def test_half_a_turn_of_a_wide_image_is_both_flips() -> None:
    x = images(2, 5, 9)
    torch.testing.assert_close(rotate(x, torch.tensor([180.0, 180.0])), x.flip(2).flip(3), atol=1e-4, rtol=0)


def test_each_image_turns_by_its_own_angle() -> None:
    x = images(1).expand(2, -1, -1, -1)
    turned = rotate(x, torch.tensor([0.0, 90.0]))
    torch.testing.assert_close(turned[0], x[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(turned[1], torch.rot90(x[1], 1, (1, 2)), atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None)
@given(angle=st.floats(-180, 180))
def test_turning_there_and_back_keeps_the_middle(angle: float) -> None:
    ramp = torch.linspace(0, 1, 17)
    x = (ramp[:, None] + 2 * ramp[None, :])[None, None]  # linear, so that interpolation is exact
    back = rotate(rotate(x, torch.tensor([angle])), torch.tensor([-angle]))
    torch.testing.assert_close(back[..., 6:11, 6:11], x[..., 6:11, 6:11], atol=1e-4, rtol=0)
