"""A stage in one launch gives what its blocks give one by one."""

import dataclasses

import pytest
import torch

from codinet.kernels import available
from codinet.kernels.stage_tuning import TUNINGS, Tuning, tuning_for
from codinet.kernels.stage_twin import run_stage
from codinet.kernels.stage_weights import BlockWeights, RouterWeights, StageWeights, pack_pairs, pack_taps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if not available(DEVICE):
    pytest.skip("needs Triton", allow_module_level=True)

from codinet.kernels.stage_launch import Stage, Traffic  # noqa: E402 - it imports Triton

FORMS = [
    Tuning("taps", 32, stages=2, warps=4),
    Tuning("taps", 64, stages=2, warps=4, channels=16),
    Tuning("rows", 32, stages=2, warps=4),
    Tuning("pairs", 16, stages=1, warps=4),
]
SHAPES = [(4, 8), (5, 7), (3, 37)]  # the last is wider than a tile


def make_weights(channels: int, *, blocks: int = 3, stride: int = 1, routed: bool = True) -> StageWeights:
    generator = torch.Generator().manual_seed(channels + blocks + stride)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    made = []
    for place in range(blocks):
        before = channels // 2 if place == 0 and stride > 1 else channels
        scale = (2 / (9 * before)) ** 0.5
        router = RouterWeights(draw(before, before), draw(before), draw(2, before), draw(2))
        made.append(
            BlockWeights(
                draw(channels, before, 3, 3) * scale,
                draw(channels) * 0.1,
                draw(channels, channels, 3, 3) * scale,
                draw(channels) * 0.1,
                router if routed else None,
            )
        )
    return StageWeights(made, stride)


def launch(
    weights: StageWeights, x_BCHW: torch.Tensor, limit: float, force_BN: torch.Tensor, tuning: Tuning
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    stage = Stage(weights, 0, tuning, x_BCHW.dtype, DEVICE)
    shape = force_BN.shape
    traffic = Traffic(
        torch.tensor([limit], device=DEVICE),
        force_BN.to(DEVICE, torch.int8),
        torch.full((*shape, 2), torch.nan, device=DEVICE),
        torch.full(shape, torch.nan, device=DEVICE),
    )
    enter_BHWC = x_BCHW.to(DEVICE).permute(0, 2, 3, 1).contiguous()
    means_BC = x_BCHW.to(DEVICE).float().mean(dim=(2, 3))
    ticket_B = torch.zeros(len(x_BCHW), dtype=torch.int32, device=DEVICE)
    y_BHWC, pooled_BC = stage(enter_BHWC, means_BC, traffic, ticket_B, pools=True)
    return y_BHWC.permute(0, 3, 1, 2).cpu(), pooled_BC.cpu(), traffic.scores_BN2.cpu(), traffic.path_BN.cpu()


def check(
    weights: StageWeights,
    shape: tuple[int, int],
    tuning: Tuning,
    *,
    force: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> torch.Tensor:
    x_BCHW = torch.rand(2, weights.channels_in, *shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    force = torch.full((2, len(weights.blocks)), 2) if force is None else force
    reference, scores, path = run_stage(weights, x_BCHW, 0.0, force)
    ours = launch(weights, x_BCHW, 0.0, force, tuning)
    assert torch.equal(ours[3], path)
    wanted = (reference, reference.mean(dim=(2, 3)), scores)
    for one, other in zip(ours[:3], wanted, strict=True):
        torch.testing.assert_close(one.float(), other, atol=tolerance * max(1.0, other.abs().max().item()), rtol=0)
    return path


@pytest.mark.parametrize("tuning", FORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_every_form_and_size(tuning: Tuning, shape: tuple[int, int], stride: int) -> None:
    check(make_weights(32, blocks=2, stride=stride), shape, tuning)


@pytest.mark.parametrize("tuning", FORMS, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_paths_can_be_forced_image_by_image(tuning: Tuning, stride: int) -> None:
    force = torch.tensor([[0, 1, 2], [1, 0, 0]])
    path = check(make_weights(16 * stride, stride=stride), (6, 6), tuning, force=force)
    assert torch.equal(path[force != 2], force[force != 2].float())


@pytest.mark.parametrize("tuning", FORMS, ids=str)
def test_without_routers_blocks_run(tuning: Tuning) -> None:
    weights = make_weights(16, routed=False)
    assert check(weights, (6, 6), tuning).eq(1).all()
    assert check(weights, (6, 6), tuning, force=torch.tensor([[1, 0, 1]] * 2))[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("tuning", FORMS, ids=str)
def test_half_precision_is_near(tuning: Tuning) -> None:
    force = torch.tensor([[1, 1, 1], [0, 0, 1]])  # near a tie rounding may decide
    check(make_weights(32, stride=2), (8, 8), tuning, force=force, dtype=torch.float16, tolerance=4e-3)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="programs that wait for each other need a GPU to run them at once")
@pytest.mark.parametrize("tuning", FORMS, ids=str)
@pytest.mark.parametrize("split", [2, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_several_programs_to_an_image(tuning: Tuning, split: int, stride: int) -> None:
    check(make_weights(32, blocks=9, stride=stride), (18, 22), dataclasses.replace(tuning, split=split))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter multiplies bfloat16 as if it were integers")
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_the_table_in_bfloat16(channels: int) -> None:
    stride = 1 if channels == 16 else 2
    force = torch.tensor([[1, 1, 1], [0, 0, 1]])
    size = 1024 // channels // (3 - stride)
    for tuning in TUNINGS[channels]:
        check(
            make_weights(channels, stride=stride),
            (size, size),
            tuning,
            force=force,
            dtype=torch.bfloat16,
            tolerance=0.03,
        )


def test_the_forms_of_a_convolution_are_one_convolution() -> None:
    weight_OI33 = torch.arange(16 * 16 * 9.0).reshape(16, 16, 3, 3)
    taps, pairs = pack_taps(weight_OI33), pack_pairs(weight_OI33)
    assert taps[5, 3, 7] == weight_OI33[7, 3, 1, 2]
    banded = pairs.reshape(3, 4, 16, 2, 16)
    assert torch.equal(banded[:, :3, :, 0].reshape(9, 16, 16), taps)  # the first of two neighbours
    assert torch.equal(banded[:, 1:, :, 1].reshape(9, 16, 16), taps)
    assert not banded[:, 3, :, 0].any()
    assert not banded[:, 0, :, 1].any()


def test_images_are_split_only_where_all_programs_fit() -> None:
    for channels in TUNINGS:
        batches = (1, 16, 64, 132, 133, 1024)
        splits = [tuning_for(channels, batch, 132).split for batch in batches]
        assert splits == sorted(splits, reverse=True)
        assert all(split * batch <= 132 or split == 1 for split, batch in zip(splits, batches, strict=True))
        assert splits[-1] == 1
    assert tuning_for(128, 1, 132).split == 1  # a width that nobody tuned
    assert tuning_for(64, 1, 132, exact=True) == Tuning("taps", 64, 1, 8, channels=32, split=4)
