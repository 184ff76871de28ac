"""What `stage` computes, in plain torch: every image through every block by itself, no kernel, no batch.

The kernel is tested against this. Knows neither Triton nor networks.
"""

import torch
from torch.nn import functional as F

from codinet.kernels.stage_weights import NetworkWeights, RouterWeights, StageWeights


def run_network(
    weights: NetworkWeights, images_BCHW: torch.Tensor, limit: float, force_BN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The features that leave the last stage, logits_BK, scores_BN2 and path_BN."""
    x_BCHW = F.conv2d(images_BCHW.float(), weights.stem_OI33, weights.stem_O, padding=1).relu()
    scores, paths = [], []
    numbers = [len(stage.blocks) for stage in weights.stages]
    for stage, force in zip(weights.stages, force_BN.split(numbers, dim=1), strict=True):
        x_BCHW, scores_BN2, path_BN = run_stage(stage, x_BCHW, limit, force)
        scores.append(scores_BN2)
        paths.append(path_BN)
    logits_BK = F.linear(x_BCHW.mean(dim=(2, 3)), weights.head_KC, weights.head_K)
    return x_BCHW, logits_BK, torch.cat(scores, dim=1), torch.cat(paths, dim=1)


def run_stage(
    weights: StageWeights, x_BCHW: torch.Tensor, limit: float, force_BN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The features that leave, and scores_BN2 and path_BN of the stage's own N blocks."""
    features, scores, paths = [], [], []
    for x_CHW, force_N in zip(x_BCHW.float(), force_BN.tolist(), strict=True):
        x_1CHW, told, path = x_CHW[None], [], []
        for place, (block, forced) in enumerate(zip(weights.blocks, force_N, strict=True)):
            stride = weights.stride if place == 0 else 1
            scores_2 = torch.zeros(2) if block.router is None else _scores(block.router, x_1CHW)
            told.append(scores_2)
            asked = block.router is None or bool(scores_2[1] - scores_2[0] >= limit)
            path.append(asked if forced == 2 else forced == 1)
            grown = len(block.bias1_O) - x_1CHW.shape[1]
            shortcut_1CHW = F.pad(x_1CHW[:, :, ::stride, ::stride], (0, 0, 0, 0, grown // 2, grown - grown // 2))
            if path[-1]:
                between = F.conv2d(x_1CHW, block.conv1_OI33, block.bias1_O, stride, padding=1).relu()
                x_1CHW = (F.conv2d(between, block.conv2_OI33, block.bias2_O, padding=1) + shortcut_1CHW).relu()
            else:
                x_1CHW = shortcut_1CHW
        features.append(x_1CHW)
        scores.append(torch.stack(told))
        paths.append(torch.tensor(path, dtype=torch.float32))
    return torch.cat(features), torch.stack(scores), torch.stack(paths)


def _scores(router: RouterWeights, x_1CHW: torch.Tensor) -> torch.Tensor:
    pooled_1C = x_1CHW.mean(dim=(2, 3))
    hidden_1C = F.linear(pooled_1C, router.hidden_CC, router.hidden_C).relu()
    return F.linear(hidden_1C, router.out_2C, router.out_2)[0]
