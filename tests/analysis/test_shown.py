import torch

from codinet.analysis.shown import LONGEST, SHARED_IMAGES, SHOWN, shown, small
from codinet.records import PathTable


def test_strips_point_at_images_that_are_there() -> None:
    number = 60
    path_TN = (torch.rand(number, 6, generator=torch.Generator().manual_seed(0)) > 0.5).to(torch.uint8)
    image_T = torch.arange(number, dtype=torch.uint8)
    label_T = torch.zeros(number, dtype=torch.int64)
    paths = PathTable(path_TN, path_TN.float(), label_T, label_T, torch.rand(number), path_TN.double().sum(1))
    found = shown(paths, image_T[:, None, None, None].expand(-1, 1, 4, 4).contiguous())
    blocks_T = path_TN.long().sum(1)
    assert len(found["easiest"]) == len(found["hardest"]) == SHOWN
    assert blocks_T[found["easiest"]].tolist() == blocks_T.sort().values[:SHOWN].tolist()
    assert blocks_T[found["hardest"]].tolist() == blocks_T.sort(descending=True).values[:SHOWN].tolist()
    for row_I in found["shared"]:
        members = row_I[row_I >= 0]
        assert 0 < len(members) <= SHARED_IMAGES
        assert len(torch.unique(path_TN[members], dim=0)) == 1
    assert found["shown_images"][:, 0, 0, 0].tolist() == found["shown_index"].tolist()


def test_large_images_are_made_small_and_small_ones_left() -> None:
    large = torch.full((2, 3, 224, 112), 77, dtype=torch.uint8)
    assert small(large).shape == (2, 3, LONGEST, LONGEST // 2)
    assert (small(large) == 77).all()
    assert small(large[..., :32, :32]).shape == (2, 3, 32, 32)
