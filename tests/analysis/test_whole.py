from collections.abc import Callable

import torch
from torch import nn

from codinet.analysis.whole import Subject, analyse
from codinet.data.resident import Resident
from codinet.records import PathTable, RoutedOutput


class ByPath(nn.Module):
    """One block, which runs on bright images; the class is whether it ran, whatever the image."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Identity()

    def forward(self, images_BCHW: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        mean_B = images_BCHW.mean(dim=(1, 2, 3))
        ran_B = (mean_B > 0).float() if force is None else force[:, 0]
        logits_BK = self.fc(torch.stack([1 - ran_B, ran_B], dim=1))
        return RoutedOutput(logits_BK, torch.stack([-mean_B, mean_B], dim=1)[:, None], ran_B[:, None])


def swapped(label_T: torch.Tensor) -> tuple[dict[str, float], list[tuple[str, int | None]]]:
    """Of images that are bright where their label is 1; with the steps that were announced."""
    network, steps = ByPath(), []

    def watch(title: str, total: int | None) -> Callable[[int], None]:
        steps.append((title, total))
        return lambda _steps: None

    images_TCHW = (255 * label_T.to(torch.uint8))[:, None, None, None].expand(-1, 1, 4, 4)
    images = Resident(images_TCHW, label_T, torch.tensor([0.5]), torch.tensor([0.5]))
    paths = PathTable(
        label_T[:, None].to(torch.uint8), label_T[:, None].float(), label_T, label_T, *[label_T.float()] * 2
    )
    subject = Subject(network, network.fc, images, paths, ("dark", "bright"), pad=1, routed=False)
    figures, _ = analyse(subject, None, images=9, with_tsne=False, seed=0, watch=watch)
    return figures["swapped"], steps[2:]


def test_swapped_paths_are_imposed_on_the_network() -> None:
    """Each of two images takes the other's path, and its class with it; in its own class it is alone."""
    figures, steps = swapped(torch.tensor([0, 1]))
    assert figures == {"accuracy_any": 0, "accuracy_class": 100}
    assert steps == [("paths of other images", 2)]


def test_only_images_whose_path_changes_are_run() -> None:
    """Round a circle, one dark image among bright ones changes its own path and that of one other."""
    figures, steps = swapped(torch.tensor([1, 1, 0, 1]))
    assert figures == {"accuracy_any": 50, "accuracy_class": 100}
    assert steps == [("paths of other images", 2)]
