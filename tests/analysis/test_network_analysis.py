from collections.abc import Callable

import torch
from torch import nn

from codinet.analysis.network_analysis import (
    EXAMPLES,
    IMAGES_PER_PATH,
    THUMBNAIL,
    Subject,
    analyse_network,
    example_images,
    thumbnails,
)
from codinet.data.batches import Resident
from codinet.records import PathTable, RoutedOutput


class ByPath(nn.Module):
    """One block, which runs on bright images. The predicted class is whether it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Identity()

    def forward(self, images_BCHW: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        mean_B = images_BCHW.mean(dim=(1, 2, 3))
        ran_B = (mean_B > 0).float() if force is None else force[:, 0]
        logits_BK = self.fc(torch.stack([1 - ran_B, ran_B], dim=1))
        return RoutedOutput(logits_BK, torch.stack([-mean_B, mean_B], dim=1)[:, None], ran_B[:, None])


def swapped(label_T: torch.Tensor) -> tuple[dict[str, float], list[tuple[str, int | None]]]:
    """The figures of swapped paths, and the steps of progress, for images that are bright if their label is 1."""
    network, steps = ByPath(), []

    def progress(title: str, total: int | None) -> Callable[[int], None]:
        steps.append((title, total))
        return lambda _steps: None

    images_TCHW = (255 * label_T.to(torch.uint8))[:, None, None, None].expand(-1, 1, 4, 4)
    images = Resident(images_TCHW, label_T, torch.tensor([0.5]), torch.tensor([0.5]))
    paths = PathTable(
        label_T[:, None].to(torch.uint8), label_T[:, None].float(), label_T, label_T, *[label_T.float()] * 2
    )
    subject = Subject(network, network.fc, images, paths, ("dark", "bright"), pad=1, routed=False)
    figures, _ = analyse_network(subject, None, images=9, with_tsne=False, seed=0, progress=progress)
    return figures["swapped"], steps[2:]


def test_swapped_paths_are_forced_on_the_network() -> None:
    """Each of two images takes the path, and so the class, of the other. Each is alone in its class."""
    figures, steps = swapped(torch.tensor([0, 1]))
    assert figures == {"accuracy_any": 0, "accuracy_class": 100}
    assert steps == [("paths of other images", 2)]


def test_only_images_whose_path_changes_are_run() -> None:
    """One dark image among bright ones changes its own path and that of the image after it in the cycle."""
    figures, steps = swapped(torch.tensor([1, 1, 0, 1]))
    assert figures == {"accuracy_any": 50, "accuracy_class": 100}
    assert steps == [("paths of other images", 2)]


def test_example_images_are_the_easiest_the_hardest_and_those_of_common_paths() -> None:
    number = 60
    path_TN = (torch.rand(number, 6, generator=torch.Generator().manual_seed(0)) > 0.5).to(torch.uint8)
    image_T = torch.arange(number, dtype=torch.uint8)
    label_T = torch.zeros(number, dtype=torch.int64)
    paths = PathTable(path_TN, path_TN.float(), label_T, label_T, torch.rand(number), path_TN.double().sum(1))
    found = example_images(paths, image_T[:, None, None, None].expand(-1, 1, 4, 4).contiguous())
    blocks_T = path_TN.long().sum(1)
    assert len(found["easiest"]) == len(found["hardest"]) == EXAMPLES
    assert blocks_T[found["easiest"]].tolist() == blocks_T.sort().values[:EXAMPLES].tolist()
    assert blocks_T[found["hardest"]].tolist() == blocks_T.sort(descending=True).values[:EXAMPLES].tolist()
    for row_I in found["shared"]:
        members = row_I[row_I >= 0]
        assert 0 < len(members) <= IMAGES_PER_PATH
        assert len(torch.unique(path_TN[members], dim=0)) == 1
    assert found["shown_images"][:, 0, 0, 0].tolist() == found["shown_index"].tolist()


def test_only_large_images_are_scaled_down() -> None:
    large = torch.full((2, 3, 224, 112), 77, dtype=torch.uint8)
    assert thumbnails(large).shape == (2, 3, THUMBNAIL, THUMBNAIL // 2)
    assert (thumbnails(large) == 77).all()
    assert thumbnails(large[..., :32, :32]).shape == (2, 3, 32, 32)
