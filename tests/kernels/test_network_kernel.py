"""The network kernel against its reference, and the tunings that it runs under."""

import pytest
import torch

from codinet.kernels import available
from codinet.kernels.network.network_reference import run_network
from codinet.kernels.network.network_tuning import TUNINGS, Cut, Tuning, tunings_for, uniform
from codinet.kernels.network.network_weights import (
    BlockWeights,
    GroupWeights,
    NetworkWeights,
    RouterWeights,
    pack_pairs,
    pack_stem,
    pack_taps,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if not available(DEVICE):
    pytest.skip("needs Triton", allow_module_level=True)

from codinet.kernels.network.network_launch import LaunchBuffers, Launcher  # noqa: E402 - imports Triton

FORMS = [
    Cut("taps", 32, pipeline_depth=2),
    Cut("taps", 64, pipeline_depth=2, channels=16),
    Cut("rows", 32, pipeline_depth=2),
    Cut("pairs", 16, pipeline_depth=1),
]
SHAPES = [(4, 8), (5, 7), (3, 37)]  # the last is wider than a tile


def make_weights(
    *numbers: int, planes: int = 3, classes: int = 10, width: int = 16, routed: bool = True
) -> NetworkWeights:
    """Returns groups with these numbers of blocks, each group twice as wide as the one before."""
    generator = torch.Generator().manual_seed(sum(numbers) + width)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    groups, before = [], width
    for place, number in enumerate(numbers):
        channels, blocks = width * 2**place, []
        for _ in range(number):
            scale = (2 / (9 * before)) ** 0.5
            router = RouterWeights(random(before, before), random(before), random(2, before), random(2))
            blocks.append(
                BlockWeights(
                    random(channels, before, 3, 3) * scale,
                    random(channels) * 0.1,
                    random(channels, channels, 3, 3) * scale,
                    random(channels) * 0.1,
                    router if routed else None,
                )
            )
            before = channels
        groups.append(GroupWeights(blocks, 1 if place == 0 else 2))
    stem = random(width, planes, 3, 3) * (2 / (9 * planes)) ** 0.5
    return NetworkWeights(stem, random(width) * 0.1, groups, random(classes, before), random(classes))


def launch(
    weights: NetworkWeights,
    images_BCHW: torch.Tensor,
    limit: float,
    force_BN: torch.Tensor,
    tuning: Tuning,
    *,
    times: int = 1,
) -> tuple[torch.Tensor, ...]:
    launcher = Launcher(weights, tuning, images_BCHW.dtype, DEVICE)
    batch, blocks = force_BN.shape
    buffers = LaunchBuffers(
        torch.tensor([limit], device=DEVICE),
        force_BN.to(DEVICE, torch.int8),
        torch.full((batch, len(weights.head_K)), torch.nan, device=DEVICE),
        torch.full((batch, blocks, 2), torch.nan, device=DEVICE),
        torch.full((batch, blocks), torch.nan, device=DEVICE),
        torch.zeros(batch, 2, dtype=torch.int32, device=DEVICE),
    )
    for _ in range(times):
        y_BHWC = launcher(images_BCHW.to(DEVICE), buffers)
    assert not buffers.counters_B2.any()
    results = y_BHWC.permute(0, 3, 1, 2), buffers.logits_BK, buffers.scores_BN2, buffers.path_BN
    return tuple(result.cpu() for result in results)


def check(
    weights: NetworkWeights,
    shape: tuple[int, int],
    tuning: Tuning,
    *,
    force: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
    times: int = 1,
) -> torch.Tensor:
    """Compares the kernel with the reference; returns the paths."""
    planes = weights.stem_OI33.shape[1]
    images = torch.randn(2, planes, *shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    blocks = sum(len(group.blocks) for group in weights.groups)
    force = torch.full((2, blocks), 2) if force is None else force
    reference = run_network(weights, images, 0.0, force)
    ours = launch(weights, images, 0.0, force, tuning, times=times)
    assert torch.equal(ours[3], reference[3])
    for one, other in zip(ours[:3], reference[:3], strict=True):
        torch.testing.assert_close(one.float(), other, atol=tolerance * max(1.0, other.abs().max().item()), rtol=0)
    return reference[3]


@pytest.mark.parametrize("cut", FORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_and_size(cut: Cut, shape: tuple[int, int]) -> None:
    check(make_weights(2, 2), shape, uniform(cut, 2))


@pytest.mark.parametrize("cut", FORMS, ids=str)
def test_paths_can_be_forced_per_image(cut: Cut) -> None:
    force = torch.tensor([[0, 1, 2, 0, 2], [1, 0, 0, 1, 0]])
    path = check(make_weights(3, 2), (6, 6), uniform(cut, 2), force=force)
    assert torch.equal(path[force != 2], force[force != 2].float())


# Forced decisions of two groups of 6 and 7 blocks. Consecutive skips cross the end of a lookahead, of a group, of both.
# 2 evaluates the router.
SKIPPING = ["000000 0000000", "000001 1000001", "100000 1001000", "010000 0000010", "202002 2002002"]


@pytest.mark.parametrize("lookahead", [1, 4, 16])
def test_every_router_scores_the_features_before_its_block(lookahead: int) -> None:
    weights = make_weights(6, 7)
    force = torch.tensor([[int(digit) for digit in row.replace(" ", "")] for row in SKIPPING])
    images = torch.randn(len(force), 3, 4, 4, generator=torch.Generator().manual_seed(1))
    tuning = uniform(Cut("taps", 16, pipeline_depth=1, lookahead=lookahead), 2)
    _, _, scores_BN2, path_BN = run_network(weights, images, 0.0, force)
    _, _, ours_BN2, our_path_BN = launch(weights, images, 0.0, force, tuning)
    assert torch.equal(our_path_BN, path_BN)
    torch.testing.assert_close(ours_BN2, scores_BN2, atol=1e-5 * scores_BN2.abs().max().item(), rtol=0)
    assert not path_BN[-1].eq(1).all()  # the routers skip some blocks and run others
    assert path_BN[-1].any()


@pytest.mark.parametrize("cut", FORMS, ids=str)
def test_blocks_without_routers_run(cut: Cut) -> None:
    force = torch.tensor([[2, 2, 2, 2], [1, 0, 0, 1]])
    path = check(make_weights(2, 2, routed=False), (6, 6), uniform(cut, 2), force=force)
    assert path.tolist() == [[1, 1, 1, 1], [1, 0, 0, 1]]


def test_each_group_has_its_own_cut() -> None:
    cuts = (
        Cut("pairs", 16, pipeline_depth=1),
        Cut("rows", 16, pipeline_depth=2),
        Cut("taps", 16, pipeline_depth=2, channels=32),
    )
    check(make_weights(1, 2, 1), (7, 9), Tuning(cuts, split=1))


@pytest.mark.parametrize(("planes", "classes"), [(1, 3), (4, 100)])
def test_any_number_of_planes_and_classes(planes: int, classes: int) -> None:
    check(make_weights(1, planes=planes, classes=classes), (12, 13), uniform(FORMS[0], 1))


@pytest.mark.parametrize("cut", FORMS, ids=str)
def test_half_precision_is_close(cut: Cut) -> None:
    force = torch.tensor([[1, 1, 1], [0, 0, 1]])  # forced, because rounding may decide a near tie
    check(make_weights(1, 2), (8, 8), uniform(cut, 2), force=force, dtype=torch.float16, tolerance=4e-3)


@pytest.mark.parametrize(("cut", "split"), [*((cut, 2) for cut in FORMS), (FORMS[1], 4)], ids=str)
@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.usefixtures("concurrent_programs")
def test_several_programs_per_image(cut: Cut, split: int, routed: bool) -> None:
    """With routers the network is launched twice, because a launch must reset its counters for the next one."""
    check(make_weights(2, 1, routed=routed), (8, 10), uniform(cut, 2, split=split), times=2 if routed else 1)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="so many concurrent programs need a GPU")
@pytest.mark.parametrize("cut", FORMS, ids=str)
def test_many_programs_per_image(cut: Cut) -> None:
    check(make_weights(5, 9), (18, 22), uniform(cut, 2, split=8), times=2)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="Triton's interpreter multiplies bfloat16 incorrectly")
@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
@pytest.mark.parametrize("routed", [True, False])
def test_tunings_in_bfloat16(tuning: Tuning, routed: bool) -> None:
    force = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0]])
    weights = make_weights(2, 2, 2, routed=routed)
    check(weights, (32, 32), tuning, force=force, dtype=torch.bfloat16, tolerance=0.04, times=2)


def test_a_stem_is_packed_as_one_matrix() -> None:
    weight_OI33 = torch.arange(1, 16 * 3 * 9 + 1.0).reshape(16, 3, 3, 3)
    packed = pack_stem(weight_OI33)
    assert packed.shape == (32, 16)
    assert packed[(3 * 1 + 2) * 3 + 1, 7] == weight_OI33[7, 1, 1, 2]
    assert not packed[27:].any()
    assert pack_stem(weight_OI33[:, :1]).shape == (16, 16)


def test_packed_forms_hold_the_same_convolution() -> None:
    weight_OI33 = torch.arange(16 * 16 * 9.0).reshape(16, 16, 3, 3)
    taps, pairs = pack_taps(weight_OI33), pack_pairs(weight_OI33)
    assert taps[5, 3, 7] == weight_OI33[7, 3, 1, 2]
    banded = pairs.reshape(3, 4, 16, 2, 16)
    assert torch.equal(banded[:, :3, :, 0].reshape(9, 16, 16), taps)  # the left pixel of a pair
    assert torch.equal(banded[:, 1:, :, 1].reshape(9, 16, 16), taps)
    assert not banded[:, 3, :, 0].any()
    assert not banded[:, 0, :, 1].any()


def test_images_are_split_only_if_all_programs_fit() -> None:
    batches = (1, 16, 17, 33, 64, 132, 133, 1024)
    splits = [tunings_for(batch, 132)[0].split for batch in batches]
    assert splits == sorted(splits, reverse=True)
    assert all(split * batch <= 132 or split == 1 for split, batch in zip(splits, batches, strict=True))
    assert (splits[0], splits[2], splits[-1]) == (8, 4, 1)
    exact = tunings_for(1, 132, exact=True)[0]
    assert [cut.channels for cut in exact.cuts] == [16, 32, 32]
    assert exact.split == 4
