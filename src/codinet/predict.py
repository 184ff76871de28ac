"""A trained run applied to single images: files or uploaded bytes."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from codinet.cost import block_costs
from codinet.data import read_image
from codinet.data.images import is_image_file
from codinet.data.views import normalise
from codinet.evaluate import exact_inference
from codinet.files import unreadable
from codinet.relaxation import hard, run_probability
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Prediction:
    """What a network says of one image."""

    label: str
    confidence: float
    blocks_run: int
    cost_share: float  # of the static network's MACs
    path: tuple[int, ...]
    run_probability: tuple[float, ...]  # each router's confidence that its block should run

    def summary(self) -> dict[str, Any]:
        """Ready for JSON."""
        return dataclasses.asdict(self)


class Predictor:
    """A run's network with what is needed to feed it images and name its answers."""

    def __init__(self, folder: RunFolder, device: torch.device) -> None:
        self.data, self.device = folder.data, device
        self.model = folder.load_model(device)
        self.table = block_costs(self.model, self.data.image_shape)

    def predict(self, source: Path | bytes, *, threshold: float = 0.5) -> Prediction:
        """Route and classify one image; `UserError` if it is none."""
        channels, height, width = self.data.image_shape
        image_CHW = read_image(source, channels=channels, size=(height, width))
        mean_C, std_C = torch.tensor(self.data.mean), torch.tensor(self.data.std)
        images_1CHW = normalise(image_CHW[None], mean_C, std_C).to(self.device)
        with exact_inference():
            output = self.model(images_1CHW, decide=lambda scores_B2: hard(scores_B2, threshold=threshold))
        confidence, best = output.logits_BK.softmax(dim=1)[0].max(dim=0)
        return Prediction(
            label=self.data.classes[int(best)],
            confidence=float(confidence),
            blocks_run=int(output.path_BN.sum()),
            cost_share=float(self.table.share(output.path_BN)[0]),
            path=tuple(int(ran) for ran in output.path_BN[0]),
            run_probability=tuple(run_probability(output.scores_BN2)[0].tolist()),
        )


def image_files(paths: Iterable[Path]) -> list[Path]:
    """The paths, with every folder replaced by its images, sorted by name; subfolders are not searched.

    A folder without images stays in the list, and is refused when it is read.
    """
    found: list[Path] = []
    for path in paths:
        try:
            found += (sorted(filter(is_image_file, path.iterdir())) or [path]) if path.is_dir() else [path]
        except OSError as error:
            raise unreadable(path, error) from error
    return found
