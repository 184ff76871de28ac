"""The reference of the network kernel in plain PyTorch: one image and one block at a time. Tests compare against it."""

import torch
from torch.nn import functional as F

from codinet.kernels.network.network_weights import GroupWeights, NetworkWeights, RouterWeights


def run_network(
    weights: NetworkWeights, images_BCHW: torch.Tensor, limit: float, force_BN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs a network.

    Args:
        weights: The network.
        images_BCHW: The images.
        limit: The smallest U[run] − U[skip] that runs a block.
        force_BN: 0 skips a block, 1 runs it, 2 evaluates its router.

    Returns:
        The features of the last group (B×C×H×W), logits_BK, scores_BN2 and path_BN.
    """
    x_BCHW = F.conv2d(images_BCHW.float(), weights.stem_OI33, weights.stem_O, padding=1).relu()
    scores, paths = [], []
    counts = [len(group.blocks) for group in weights.groups]
    for group, force in zip(weights.groups, force_BN.split(counts, dim=1), strict=True):
        x_BCHW, scores_BN2, path_BN = _run_group(group, x_BCHW, limit, force)
        scores.append(scores_BN2)
        paths.append(path_BN)
    logits_BK = F.linear(x_BCHW.mean(dim=(2, 3)), weights.head_KC, weights.head_K)
    return x_BCHW, logits_BK, torch.cat(scores, dim=1), torch.cat(paths, dim=1)


def _run_group(
    weights: GroupWeights, x_BCHW: torch.Tensor, limit: float, force_BN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the group's output, and scores_BN2 and path_BN of its N blocks."""
    features, scores, paths = [], [], []
    for x_CHW, force_N in zip(x_BCHW.float(), force_BN.tolist(), strict=True):
        x_1CHW, image_scores, path = x_CHW[None], [], []
        for place, (block, forced) in enumerate(zip(weights.blocks, force_N, strict=True)):
            stride = weights.stride if place == 0 else 1
            scores_2 = torch.zeros(2) if block.router is None else _scores(block.router, x_1CHW)
            image_scores.append(scores_2)
            wants_to_run = block.router is None or bool(scores_2[1] - scores_2[0] >= limit)
            path.append(wants_to_run if forced == 2 else forced == 1)
            grown = len(block.bias1_O) - x_1CHW.shape[1]
            shortcut_1CHW = F.pad(x_1CHW[:, :, ::stride, ::stride], (0, 0, 0, 0, grown // 2, grown - grown // 2))
            if path[-1]:
                between = F.conv2d(x_1CHW, block.conv1_OI33, block.bias1_O, stride, padding=1).relu()
                x_1CHW = (F.conv2d(between, block.conv2_OI33, block.bias2_O, padding=1) + shortcut_1CHW).relu()
            else:
                x_1CHW = shortcut_1CHW
        features.append(x_1CHW)
        scores.append(torch.stack(image_scores))
        paths.append(torch.tensor(path, dtype=torch.float32))
    return torch.cat(features), torch.stack(scores), torch.stack(paths)


def _scores(router: RouterWeights, x_1CHW: torch.Tensor) -> torch.Tensor:
    pooled_1C = x_1CHW.mean(dim=(2, 3))
    hidden_1C = F.linear(pooled_1C, router.hidden_CC, router.hidden_C).relu()
    return F.linear(hidden_1C, router.out_2C, router.out_2)[0]
