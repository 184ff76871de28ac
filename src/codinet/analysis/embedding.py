"""Relaxed paths drawn in the plane: principal components, exactly, and t-SNE, approximately.

Axes of a PCA keep distances as well as two axes can; those of a t-SNE keep neighbours and nothing else.
"""

import numpy as np
import torch

from codinet.errors import UserError

TSNE_POINTS = 3_000  # about 5 s on two cores; 10,000 take half a minute


def pca(x_TN: torch.Tensor, components: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates (T × components) along the directions of most spread, and each one's share of the spread."""
    centred_TN = x_TN.double() - x_TN.double().mean(dim=0)
    spread_N, direction_NN = torch.linalg.eigh(centred_TN.T @ centred_TN)
    direction_NC = direction_NN.flip(1)[:, :components]
    # A direction and its opposite are equally right; the largest weight is made positive so that runs agree.
    largest_1C = direction_NC.gather(0, direction_NC.abs().argmax(dim=0, keepdim=True))
    direction_NC = direction_NC * torch.where(largest_1C < 0, -1.0, 1.0)
    spread_C = spread_N.flip(0)[:components].clamp(min=0)
    missing = components - direction_NC.shape[1]  # a network of one block has one direction
    coordinates_TC = torch.nn.functional.pad(centred_TN @ direction_NC, (0, missing))
    share_C = torch.nn.functional.pad(spread_C, (0, missing)) / spread_N.sum().clamp(min=1e-300)
    return coordinates_TC.float(), share_C


def tsne(x_EN: torch.Tensor, *, seed: int, perplexity: float = 30.0) -> torch.Tensor | None:
    """Coordinates (E × 2), or None where there are too few distinct rows to lay out."""
    if len(x_EN) < 5 or len(torch.unique(x_EN, dim=0)) < 3:
        return None
    try:
        from sklearn.manifold import TSNE
    except ImportError as missing:
        raise UserError(
            "t-SNE needs scikit-learn; install it with pip install 'codinet[plot]', or pass --no-tsne."
        ) from missing
    layout = TSNE(perplexity=min(perplexity, (len(x_EN) - 1) / 3), init=_start(x_EN), random_state=seed)
    return torch.from_numpy(np.asarray(layout.fit_transform(x_EN.float().numpy()), dtype=np.float32))


def _start(x_EN: torch.Tensor) -> np.ndarray:
    """The principal components at the small scale t-SNE starts from: the same picture for the same data."""
    start_E2, _ = pca(x_EN)
    return (start_E2 / start_E2[:, 0].std().clamp(min=1e-12) * 1e-4).numpy()


def choose(number: int, most: int, *, seed: int) -> torch.Tensor:
    """Places of `most` of `number` things, in order; all of them where there are no more."""
    if number <= most:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(seed))[:most].sort().values
