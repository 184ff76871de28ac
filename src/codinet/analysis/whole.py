"""Every analysis of one network on one test set, put together. Knows nothing of files."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from codinet.analysis import usage
from codinet.analysis.augment import KINDS, Draws, augment, draw
from codinet.analysis.consistency import blocks_changed, by_kind, divergence, kl_figures, same_path
from codinet.analysis.correlation import correlate, similarities
from codinet.analysis.embedding import TSNE_POINTS, choose, pca, tsne
from codinet.analysis.forward import Look, Network, Watch, look
from codinet.analysis.shown import shown
from codinet.analysis.swap import others, swapped_accuracy
from codinet.data.resident import Resident
from codinet.records import PathTable

GROUPS, VIEWS = 150, 10  # the paper's: ten augmentations of each of 150 images
REVISION = 2  # of what is measured; the first did not swap paths


@dataclass(frozen=True)
class Subject:
    """A network, its test set, and how its own evaluation routed it."""

    network: Network
    classifier: nn.Module  # the last layer: what it is given are the features
    images: Resident
    paths: PathTable
    classes: tuple[str, ...]
    pad: int
    routed: bool


@dataclass(frozen=True)
class Features:
    """Where features come from other than the subject itself: a table of all test images, or another network."""

    name: str
    table_TD: torch.Tensor | None = None
    network: Network | None = None
    classifier: nn.Module | None = None


def analyse(
    subject: Subject, features: Features | None, *, images: int, with_tsne: bool, seed: int, watch: Watch
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(figures ready for JSON, named tensors); see docs/report.md for what each of them holds."""
    index_S = choose(len(subject.images), images, seed=seed)
    draws = draw(len(index_S), pad=subject.pad, seed=seed)
    original = _look(subject, index_S, None, watch("original images", len(index_S)))
    augmented = _look(subject, index_S, draws, watch("augmented images", len(index_S)))
    kl_S = divergence(original.logits_TK, augmented.logits_TK)
    label_S = subject.images.labels_N.cpu()[index_S]
    figures: dict[str, Any] = {
        "images": len(index_S),
        "consistency": _consistency(original, augmented, draws, label_S, routed=subject.routed),
        "kl": kl_figures(kl_S, draws.kind_B, KINDS),
        "swapped": _swapped(subject, original, index_S, label_S, seed, watch),
        "usage": _usage(subject.paths),
    }
    tensors = {
        "index": index_S,
        "kind": draws.kind_B,
        "kl": kl_S.float(),
        **shown(subject.paths, subject.images.images_NCHW),
    }
    tensors["run_rates"] = usage.class_block_rates(subject.paths, len(subject.classes)).float()
    if subject.routed:
        tensors["same_path"] = same_path(original.path_TN, augmented.path_TN).to(torch.uint8)
        name, feature_SD = _features(subject, features, original.feature_TD, index_S, watch)
        figures["correlation"], pairs = _correlation(original, feature_SD, name, seed, watch)
        figures["embedding"], maps = _maps(subject, with_tsne, seed, watch)
        tensors |= pairs | maps
    return figures, tensors


def _look(
    subject: Subject,
    index_S: torch.Tensor,
    draws: Draws | None,
    advance: Any,
    force_SN: torch.Tensor | None = None,
) -> Look:
    device = subject.images.labels_N.device

    def batch(rows: slice) -> torch.Tensor:
        images_BCHW, _ = subject.images.take(index_S[rows].to(device))
        return images_BCHW if draws is None else augment(images_BCHW, draws.at(rows, device), pad=subject.pad)

    return look(subject.network, batch, len(index_S), advance, tap=subject.classifier, force_TN=force_SN)


def _consistency(
    original: Look, augmented: Look, draws: Draws, label_S: torch.Tensor, *, routed: bool
) -> dict[str, Any]:
    guess_S, other_S = original.logits_TK.argmax(dim=1), augmented.logits_TK.argmax(dim=1)
    found: dict[str, Any] = {
        "pairs": len(label_S),
        "same_prediction": (guess_S == other_S).double().mean().item(),
        "accuracy_original": 100 * (guess_S == label_S).double().mean().item(),
        "accuracy_augmented": 100 * (other_S == label_S).double().mean().item(),
    }
    if routed:
        same_S = same_path(original.path_TN, augmented.path_TN)
        found["same_path"] = same_S.double().mean().item()
        found["same_path_kinds"] = by_kind(same_S, draws.kind_B, KINDS)
        found["blocks_changed"] = blocks_changed(original.path_TN, augmented.path_TN).double().mean().item()
    return found


def _swapped(
    subject: Subject, original: Look, index_S: torch.Tensor, label_S: torch.Tensor, seed: int, watch: Watch
) -> dict[str, float]:
    def accuracy(title: str, group_S: torch.Tensor) -> float:
        def predict(place_I: torch.Tensor, path_IN: torch.Tensor) -> torch.Tensor:
            found = _look(subject, index_S[place_I], None, watch(title, len(place_I)), path_IN)
            return found.logits_TK.argmax(dim=1)

        guess_S, other_S = original.logits_TK.argmax(dim=1), others(group_S, seed=seed)
        return swapped_accuracy(original.path_TN, guess_S, label_S, other_S, predict)

    return {
        "accuracy_any": accuracy("paths of other images", torch.zeros_like(label_S)),
        "accuracy_class": accuracy("paths of others of the class", label_S),
    }


def _features(
    subject: Subject, features: Features | None, own_SD: torch.Tensor, index_S: torch.Tensor, watch: Watch
) -> tuple[str, torch.Tensor]:
    if features is None:
        return "the routed network's own last layer", own_SD
    if features.table_TD is not None:
        return features.name, features.table_TD[index_S]
    assert features.network is not None
    assert features.classifier is not None
    other = Subject(
        features.network, features.classifier, subject.images, subject.paths, subject.classes, subject.pad, False
    )
    return features.name, _look(other, index_S, None, watch("features", len(index_S))).feature_TD


def _correlation(
    original: Look, feature_SD: torch.Tensor, name: str, seed: int, watch: Watch
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    advance = watch("similarities", 2)
    relaxed = correlate(original.run_probability_TN, feature_SD, seed=seed)
    advance(1)
    hard = correlate(original.path_TN, feature_SD, seed=seed)
    advance(1)
    path_P, feature_P = similarities(original.run_probability_TN, feature_SD, seed=seed)
    figures = {
        "pcc_relaxed": relaxed.pcc,
        "pcc_hard": hard.pcc,
        "features": name,
        "pairs": relaxed.pairs,
        "which_pairs": "every pair" if relaxed.every_pair else "a seeded sample of pairs",
    }
    return figures, {"pair_path": path_P, "pair_feature": feature_P}


def _maps(subject: Subject, with_tsne: bool, seed: int, watch: Watch) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """PCA of every test image and t-SNE of some, then the same of augmentation groups."""
    relaxed_TN = subject.paths.run_probability_TN
    group_G = choose(len(subject.images), GROUPS, seed=seed + 1)
    repeated_G = group_G.repeat_interleave(VIEWS)
    draws = draw(len(repeated_G), pad=subject.pad, seed=seed + 1)
    views = _look(subject, repeated_G, draws, watch("augmentation groups", len(repeated_G)))
    pca_T2, share_2 = pca(relaxed_TN)
    group_pca_G2, _ = pca(views.run_probability_TN)
    tensors = {"pca": pca_T2, "group_index": group_G, "group_pca": group_pca_G2}
    tensors["expected_blocks"] = usage.expected_blocks(relaxed_TN).float()
    figures: dict[str, Any] = {"pca_shares": share_2.tolist(), "groups": len(group_G), "views": VIEWS}
    chosen_E = choose(len(relaxed_TN), TSNE_POINTS, seed=seed)
    for name, x_EN in (("tsne", relaxed_TN[chosen_E]), ("group_tsne", views.run_probability_TN)):
        if not with_tsne:
            continue
        advance = watch(f"t-SNE of {len(x_EN):,} paths", None)
        map_E2 = tsne(x_EN, seed=seed)
        advance(1)
        if map_E2 is not None:
            tensors[name] = map_E2
    tensors["tsne_index"] = chosen_E
    figures["tsne_points"] = len(chosen_E) if "tsne" in tensors else 0
    return figures, tensors


def _usage(paths: PathTable) -> dict[str, Any]:
    counts = usage.path_counts(paths.path_TN)
    top = [
        {"path": "".join(map(str, path)), "images": count}
        for path, count in zip(counts.path_PN[:10].tolist(), counts.count_P[:10].tolist(), strict=True)
    ]
    return {
        "distinct_paths": len(counts.count_P),
        "path_entropy": usage.entropy_bits(counts.count_P),
        "most_common_paths": top,
        "by_blocks_run": usage.by_blocks_run(paths),
    }
