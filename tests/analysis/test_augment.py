import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.analysis.augment import (
    CROP,
    HORIZONTAL,
    KINDS,
    ROTATION,
    VERTICAL,
    Augmentations,
    augment,
    random_augmentations,
    rotate,
)


def images(number: int = 8, height: int = 6, width: int = 6) -> torch.Tensor:
    return torch.randn(number, 3, height, width, generator=torch.Generator().manual_seed(1))


def all_of(kind: int, number: int, *, dy: int = 1, dx: int = 1, degrees: float = 0.0) -> Augmentations:
    return Augmentations(
        torch.full((number,), kind, dtype=torch.uint8),
        torch.full((number,), dy),
        torch.full((number,), dx),
        torch.full((number,), degrees),
    )


def test_kinds_are_equally_frequent_and_parameters_within_bounds() -> None:
    augmentations = random_augmentations(1000, pad=4, seed=3)
    assert torch.bincount(augmentations.kind_B).tolist() == [250] * len(KINDS)
    assert augmentations.dy_B.min() == augmentations.dx_B.min() == 0
    assert augmentations.dy_B.max() == augmentations.dx_B.max() == 8
    assert augmentations.degrees_B.abs().max() <= 15
    assert augmentations.degrees_B.min() < -14
    assert augmentations.degrees_B.max() > 14


def test_augmentations_depend_only_on_the_seed() -> None:
    first, again, other = (random_augmentations(20, pad=2, seed=seed) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.kind_B, other.kind_B)


def test_batches_give_the_same_as_the_whole_set() -> None:
    x = images(12)
    augmentations = random_augmentations(12, pad=1, seed=0)
    whole = augment(x, augmentations, pad=1)
    parts = [augment(x[i : i + 5], augmentations.at(slice(i, i + 5), x.device), pad=1) for i in range(0, 12, 5)]
    assert torch.equal(whole, torch.cat(parts))


def test_flips() -> None:
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
def test_full_turns_are_the_identity(height: int, width: int) -> None:
    x = images(2, height, width)
    for degrees in (0.0, 360.0, -720.0):
        torch.testing.assert_close(augment(x, all_of(ROTATION, 2, degrees=degrees), pad=1), x, atol=1e-4, rtol=0)


def test_quarter_turns_are_counter_clockwise() -> None:
    x = images(2)
    for quarters in (1, 2, 3):
        turned = rotate(x, torch.full((2,), 90.0 * quarters))
        torch.testing.assert_close(turned, torch.rot90(x, quarters, (2, 3)), atol=1e-4, rtol=0)


def test_half_a_turn_of_a_wide_image_is_two_flips() -> None:
    x = images(2, 5, 9)
    torch.testing.assert_close(rotate(x, torch.tensor([180.0, 180.0])), x.flip(2).flip(3), atol=1e-4, rtol=0)


def test_each_image_has_its_own_angle() -> None:
    x = images(1).expand(2, -1, -1, -1)
    turned = rotate(x, torch.tensor([0.0, 90.0]))
    torch.testing.assert_close(turned[0], x[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(turned[1], torch.rot90(x[1], 1, (1, 2)), atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None)
@given(angle=st.floats(-180, 180))
def test_rotation_and_its_inverse_restore_the_middle(angle: float) -> None:
    ramp = torch.linspace(0, 1, 17)
    x = (ramp[:, None] + 2 * ramp[None, :])[None, None]  # linear, so that interpolation is exact
    back = rotate(rotate(x, torch.tensor([angle])), torch.tensor([-angle]))
    torch.testing.assert_close(back[..., 6:11, 6:11], x[..., 6:11, 6:11], atol=1e-4, rtol=0)
