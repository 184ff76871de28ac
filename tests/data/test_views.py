from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data.views import blank_square, crop_flip, normalise, random_views
from codinet.errors import UserError


def offsets(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_normalise_worked_example() -> None:
    images = torch.tensor([[[[0, 10]], [[20, 40]]]], dtype=torch.uint8)
    result = normalise(images, torch.tensor([10.0, 20.0]), torch.tensor([5.0, 10.0]))
    assert result.dtype == torch.float32
    assert result.tolist() == [[[[-2.0, 0.0]], [[0.0, 2.0]]]]


def test_normalise_keeps_channels_last() -> None:
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    result = normalise(images, torch.zeros(3), torch.ones(3))
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_crop_flip_worked_example() -> None:
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    same: dict[str, Any] = {"dy_B": offsets(1), "dx_B": offsets(1), "pad": 1}
    assert crop_flip(image, flip_B=offsets(0).bool(), **same).tolist() == image.tolist()
    assert crop_flip(image, flip_B=offsets(1).bool(), **same).tolist() == [[[[2, 1], [4, 3]]]]
    corner = crop_flip(image, dy_B=offsets(0), dx_B=offsets(2), flip_B=offsets(0).bool(), pad=1)
    assert corner.tolist() == [[[[0, 0], [2, 0]]]]
    mirrored = crop_flip(image, dy_B=offsets(0), dx_B=offsets(2), flip_B=offsets(1).bool(), pad=1)
    assert mirrored.tolist() == [[[[0, 0], [0, 2]]]]


def reference(image: torch.Tensor, dy: int, dx: int, flip: bool, pad: int) -> torch.Tensor:
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 2 * pad, width + 2 * pad)
    canvas[:, pad : pad + height, pad : pad + width] = image
    cut = canvas[:, dy : dy + height, dx : dx + width]
    return cut.flip(2) if flip else cut


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(0, 99)
)
def test_crop_flip_is_pad_cut_mirror(batch: int, channels: int, height: int, width: int, pad: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, channels, height, width, generator=generator)
    dy, dx = torch.randint(0, 2 * pad + 1, (2, batch), generator=generator)
    flip = torch.rand(batch, generator=generator) < 0.5
    result = crop_flip(images, dy_B=dy, dx_B=dx, flip_B=flip, pad=pad)
    for index in range(batch):
        wanted = reference(images[index], int(dy[index]), int(dx[index]), bool(flip[index]), pad)
        assert torch.equal(result[index], wanted)


def test_views_of_an_image_are_adjacent() -> None:
    images = torch.arange(1.0, 4.0)[:, None, None, None].expand(3, 2, 5, 5)
    result = random_views(images, 4, pad=2, flip=True)
    assert result.shape == (12, 2, 5, 5)
    assert result.amax(dim=(1, 2, 3)).tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4


def test_without_padding_or_mirrors_a_view_is_the_image() -> None:
    images = torch.randn(3, 3, 4, 5)
    assert torch.equal(random_views(images, 2, pad=0, flip=False), images.repeat_interleave(2, dim=0))


def test_views_vary_and_follow_the_seed() -> None:
    images = torch.randn(4, 3, 8, 8)
    torch.manual_seed(1)
    first = random_views(images, 8, pad=2, flip=True)
    second = random_views(images, 8, pad=2, flip=True)
    torch.manual_seed(1)
    again = random_views(images, 8, pad=2, flip=True)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_every_offset_and_both_mirrors_occur() -> None:
    image = torch.arange(1.0, 7.0).reshape(1, 1, 2, 3)
    torch.manual_seed(0)
    views = {tuple(view.flatten().tolist()) for view in random_views(image, 600, pad=1, flip=True)}
    assert len(views) == 9 * 2


def test_blank_square_worked_example() -> None:
    images = torch.ones(2, 1, 3, 4)
    result = blank_square(images, top_B=offsets(1, -1), left_B=offsets(0, 3), side=2)
    assert result[0, 0].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert result[1, 0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert images.min() == 1


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.integers(0, 99))
def test_every_view_has_one_blank_rectangle_within_the_side(height: int, width: int, side: int, seed: int) -> None:
    torch.manual_seed(seed)
    views = random_views(torch.ones(3, 2, height, width), 2, pad=0, flip=True, blank=side)
    for view in views:
        assert torch.equal(view[0], view[1])
        rows, columns = (view[0] == 0).any(dim=1).nonzero(), (view[0] == 0).any(dim=0).nonzero()
        assert 1 <= len(rows) <= side
        assert 1 <= len(columns) <= side
        assert (view[0] == 0).sum() == len(rows) * len(columns)
        assert rows.max() - rows.min() == len(rows) - 1
        assert columns.max() - columns.min() == len(columns) - 1


def test_crops_are_channels_last_in_memory() -> None:
    images = torch.randn(2, 3, 4, 4)
    for blank in (0, 2):
        views = random_views(images, 2, pad=1, flip=True, blank=blank)
        assert views.is_contiguous(memory_format=torch.channels_last)


IMAGES = torch.zeros(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("images", "change", "words"),
    [
        (IMAGES, {"views": 0}, "views must be a whole number from 1 to 10000, got 0"),
        (IMAGES, {"views": 1.5}, r"views must be a whole number from 1 to 10000, got 1\.5"),
        (IMAGES, {"views": True}, "views must be a whole number from 1 to 10000, got True"),
        (IMAGES, {"views": 10**9}, "views must be a whole number from 1 to 10000, got 1000000000"),
        (IMAGES, {"pad": -1}, "pad must be a whole number from 0 to 20, got -1"),
        (IMAGES, {"pad": 21}, "pad must be a whole number from 0 to 20, got 21"),
        (IMAGES, {"blank": -2}, "blank must be a whole number from 0 to 65535, got -2"),
        (IMAGES, {"flip": "no"}, "flip must be True or False, got 'no'"),
        (IMAGES.byte(), {}, r"images must be normalised floats of shape \(B, C, H, W\), got torch.uint8"),
        (IMAGES[0], {}, r"got torch.float32 of shape \(3, 4, 5\)"),
        (IMAGES[:, :, :0], {}, r"of shape \(2, 3, 0, 5\)"),
        ([1, 2], {}, r"images must be a tensor, got \[1, 2\]"),
    ],
)
def test_wrong_arguments_of_random_views(images: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        random_views(images, **{"views": 2, "pad": 1, "flip": True, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dy_B": offsets(0, 3)}, r"offsets must be from 0 to 2 \(twice the pad\), got 0 to 3"),
        ({"dx_B": offsets(-1, 0)}, "got -1 to 2"),
        ({"dx_B": offsets(0)}, r"dx_B must have shape \(2,\), one value for each of the images, got \(1,\)"),
        ({"dy_B": offsets(0, 0).float()}, r"got torch.float32, torch.int64, torch.bool"),
        ({"flip_B": offsets(0, 0)}, r"flip_B torch.bool, got torch.int64, torch.int64, torch.int64"),
        ({"flip_B": None}, "flip_B must be a tensor, got None"),
        ({"pad": -1}, "pad must be a whole number"),
    ],
)
def test_wrong_arguments_of_crop_flip(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"dy_B": offsets(0, 2), "dx_B": offsets(1, 1), "flip_B": offsets(0, 1).bool(), "pad": 1}
    crop_flip(IMAGES, **good)
    with pytest.raises(UserError, match=words):
        crop_flip(IMAGES, **good | change)


@pytest.mark.parametrize(
    ("images", "mean", "std", "words"),
    [
        (IMAGES, torch.zeros(1), torch.ones(3), r"the mean must have shape \(3,\), one value for each of the channels"),
        (IMAGES[:, :1], torch.zeros(3), torch.ones(3), r"the mean must have shape \(1,\)"),
        (IMAGES, torch.zeros(3), torch.ones(3, 1), r"the std must have shape \(3,\)"),
        (IMAGES, torch.zeros(3, device="meta"), torch.ones(3), "the mean is on meta and the images on cpu"),
        (IMAGES, (0, 0, 0), torch.ones(3), "the mean must be a tensor"),
        (IMAGES.long(), torch.zeros(3), torch.ones(3), "images must be bytes or floats"),
    ],
)
def test_wrong_arguments_of_normalise(images: Any, mean: Any, std: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        normalise(images, mean, std)


def test_random_views_compile_without_graph_breaks() -> None:
    torch.manual_seed(0)
    wanted = random_views(IMAGES + 1, 2, pad=1, flip=True, blank=1)
    compiled = torch.compile(random_views, backend="eager", fullgraph=True)
    torch.manual_seed(0)
    assert torch.equal(compiled(IMAGES + 1, 2, pad=1, flip=True, blank=1), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_can_be_captured_in_a_cuda_graph() -> None:
    images = torch.randn(4, 3, 8, 8, device="cuda")
    random_views(images, 2, pad=1, flip=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = random_views(images, 2, pad=1, flip=True)
    graph.replay()
    first = views.clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, views)
