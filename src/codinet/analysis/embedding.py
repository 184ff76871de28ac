"""Two-dimensional maps of relaxed paths: PCA and t-SNE.

PCA preserves distances as well as two axes can; t-SNE preserves neighbours only.
"""

import numpy as np
import torch
from torch.nn import functional as F

from codinet.errors import UserError

TSNE_POINTS = 3_000  # about 5 s on two cores; 10,000 take half a minute


def pca(x_TN: torch.Tensor, components: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Principal component analysis.

    Returns:
        Coordinates (float32, T × components), and the fraction of the variance along each axis (float64).
    """
    centred_TN = x_TN.double() - x_TN.double().mean(dim=0)
    variance_N, direction_NN = torch.linalg.eigh(centred_TN.T @ centred_TN)
    direction_NC = direction_NN.flip(1)[:, :components]
    # The sign of a direction is arbitrary: make the largest weight positive, so that runs agree.
    largest_1C = direction_NC.gather(0, direction_NC.abs().argmax(dim=0, keepdim=True))
    direction_NC = direction_NC * torch.where(largest_1C < 0, -1.0, 1.0)
    variance_C = variance_N.flip(0)[:components].clamp(min=0)
    missing = components - direction_NC.shape[1]  # a network with one block has one direction
    coordinates_TC = F.pad(centred_TN @ direction_NC, (0, missing))
    fraction_C = F.pad(variance_C, (0, missing)) / variance_N.sum().clamp(min=1e-300)
    return coordinates_TC.float(), fraction_C


def tsne(x_EN: torch.Tensor, *, seed: int, perplexity: float = 30.0) -> torch.Tensor | None:
    """t-SNE coordinates (float32, E × 2), or None for fewer than five rows or three distinct ones.

    Raises:
        UserError: scikit-learn is not installed.
    """
    if len(x_EN) < 5 or len(torch.unique(x_EN, dim=0)) < 3:
        return None
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # a dependency of scikit-learn
    except ImportError as missing:
        raise UserError(
            "t-SNE needs scikit-learn; install it with pip install scikit-learn, or pass --no-tsne."
        ) from missing
    # Starting from the principal components, at the small scale t-SNE expects, makes the map reproducible.
    start_E2, _ = pca(x_EN)
    start_E2 = start_E2 / start_E2[:, 0].std().clamp(min=1e-12) * 1e-4
    layout = TSNE(perplexity=min(perplexity, (len(x_EN) - 1) / 3), init=start_E2.numpy(), random_state=seed)
    with threadpool_limits(torch.get_num_threads()):
        map_E2 = layout.fit_transform(x_EN.float().numpy())
    return torch.from_numpy(np.asarray(map_E2, dtype=np.float32))


def choose(number: int, limit: int, *, seed: int) -> torch.Tensor:
    """Sorted indices of `limit` random items out of `number`, or of all items if there are no more."""
    if number <= limit:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(seed))[:limit].sort().values
