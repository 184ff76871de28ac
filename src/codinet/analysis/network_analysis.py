"""All measurements of one network on one test set. Reads and writes no files.

Suffixes as in `measures`, and: S compared images, E images in the t-SNE, G images with several augmented views.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from codinet.analysis import measures
from codinet.analysis.augment import KINDS, Augmentations, augment, random_augmentations
from codinet.analysis.embedding import TSNE_POINTS, choose, pca, tsne
from codinet.analysis.features import Network, Outputs, Progress, collect_outputs
from codinet.data.batches import Resident
from codinet.records import PathTable

REVISION = 2  # of what is measured; revision 1 had no swapped paths
GROUPS, VIEWS = 150, 10  # as in the paper: ten augmentations of each of 150 images
EXAMPLES = 16  # images shown as the easiest, and as the hardest
TOP_PATHS, IMAGES_PER_PATH = 6, 8
THUMBNAIL = 64  # longest side, in pixels


@dataclass(frozen=True)
class Subject:
    """A network, its test set, and the paths of its evaluation."""

    network: Network
    classifier: nn.Module  # the last layer; its inputs are the features
    images: Resident
    paths: PathTable
    classes: tuple[str, ...]
    pad: int
    routed: bool


@dataclass(frozen=True)
class FeatureSource:
    """Features that do not come from the subject itself: a table for all test images, or another network."""

    name: str
    table_TD: torch.Tensor | None = None
    network: Network | None = None
    classifier: nn.Module | None = None


def analyse_network(
    subject: Subject, features: FeatureSource | None, *, images: int, with_tsne: bool, seed: int, progress: Progress
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Measure everything that analysis.json and analysis.safetensors hold (see docs/report.md).

    Args:
        subject: What to analyse.
        features: Features to correlate paths with. Default: the subject's own.
        images: Compare at most this many images with an augmentation.
        with_tsne: Also compute t-SNE maps.
        seed: Seed of augmentations, samples and t-SNE.
        progress: Called at the start of each step.

    Returns:
        Figures ready for JSON, and named tensors.
    """
    index_S = choose(len(subject.images), images, seed=seed)
    augmentations = random_augmentations(len(index_S), pad=subject.pad, seed=seed)
    original = _outputs(subject, index_S, progress("original images", len(index_S)))
    augmented = _outputs(subject, index_S, progress("augmented images", len(index_S)), augmentations)
    kl_S = measures.kl_divergence(original.logits_TK, augmented.logits_TK)
    label_S = subject.images.labels_N.cpu()[index_S]
    figures: dict[str, Any] = {
        "images": len(index_S),
        "consistency": _consistency(original, augmented, augmentations, label_S, routed=subject.routed),
        "kl": measures.kl_summary(kl_S, augmentations.kind_B, KINDS),
        "usage": _usage(subject.paths),
    }
    # A forced path runs its blocks at all positions, which changes the network of routers that decide by position.
    if not _decides_by_position(subject.network):
        figures["swapped"] = _swapped(subject, original, index_S, label_S, seed, progress)
    tensors = {
        "index": index_S,
        "kind": augmentations.kind_B,
        "kl": kl_S.float(),
        **example_images(subject.paths, subject.images.images_NCHW),
        "run_rates": measures.class_block_rates(subject.paths, len(subject.classes)).float(),
    }
    if subject.routed:
        tensors["same_path"] = measures.same_path(original.path_TN, augmented.path_TN).to(torch.uint8)
        name, feature_SD = _features(subject, features, original.feature_TD, index_S, progress)
        figures["correlation"], pairs = _correlation(original, feature_SD, name, seed, progress)
        figures["embedding"], maps = _maps(subject, with_tsne, seed, progress)
        tensors |= pairs | maps
    return figures, tensors


def _outputs(
    subject: Subject,
    index_S: torch.Tensor,
    advance: Callable[[int], None],
    augmentations: Augmentations | None = None,
    force_SN: torch.Tensor | None = None,
) -> Outputs:
    device = subject.images.labels_N.device

    def batch(rows: slice) -> torch.Tensor:
        images_BCHW, _ = subject.images.take(index_S[rows].to(device))
        if augmentations is None:
            return images_BCHW
        return augment(images_BCHW, augmentations.at(rows, device), pad=subject.pad)

    return collect_outputs(
        subject.network, batch, len(index_S), advance, feature_layer=subject.classifier, force_TN=force_SN
    )


def _decides_by_position(network: object) -> bool:
    parts = network.modules() if isinstance(network, torch.nn.Module) else ()
    return any(getattr(part, "per_position", False) for part in parts)


def _consistency(
    original: Outputs, augmented: Outputs, augmentations: Augmentations, label_S: torch.Tensor, *, routed: bool
) -> dict[str, Any]:
    prediction_S, other_S = original.logits_TK.argmax(dim=1), augmented.logits_TK.argmax(dim=1)
    figures: dict[str, Any] = {
        "pairs": len(label_S),
        "same_prediction": (prediction_S == other_S).double().mean().item(),
        "accuracy_original": 100 * (prediction_S == label_S).double().mean().item(),
        "accuracy_augmented": 100 * (other_S == label_S).double().mean().item(),
    }
    if routed:
        same_S = measures.same_path(original.path_TN, augmented.path_TN)
        figures["same_path"] = same_S.double().mean().item()
        figures["same_path_kinds"] = measures.mean_by_kind(same_S, augmentations.kind_B, KINDS)
        changed_S = measures.blocks_changed(original.path_TN, augmented.path_TN)
        figures["blocks_changed"] = changed_S.double().mean().item()
    return figures


def _swapped(
    subject: Subject, original: Outputs, index_S: torch.Tensor, label_S: torch.Tensor, seed: int, progress: Progress
) -> dict[str, float]:
    prediction_S = original.logits_TK.argmax(dim=1)

    def accuracy(title: str, group_S: torch.Tensor) -> float:
        def predict(image_I: torch.Tensor, path_IN: torch.Tensor) -> torch.Tensor:
            advance = progress(title, len(image_I))
            return _outputs(subject, index_S[image_I], advance, force_SN=path_IN).logits_TK.argmax(dim=1)

        partner_S = measures.swap_partners(group_S, seed=seed)
        return measures.swapped_accuracy(original.path_TN, prediction_S, label_S, partner_S, predict)

    return {
        "accuracy_any": accuracy("paths of other images", torch.zeros_like(label_S)),
        "accuracy_class": accuracy("paths of other images of the class", label_S),
    }


def _features(
    subject: Subject, source: FeatureSource | None, own_SD: torch.Tensor, index_S: torch.Tensor, progress: Progress
) -> tuple[str, torch.Tensor]:
    if source is None:
        return "the routed network's own last layer", own_SD
    if source.table_TD is not None:
        return source.name, source.table_TD[index_S]
    assert source.network is not None
    assert source.classifier is not None
    other = replace(subject, network=source.network, classifier=source.classifier)
    return source.name, _outputs(other, index_S, progress("features", len(index_S))).feature_TD


def _correlation(
    original: Outputs, feature_SD: torch.Tensor, name: str, seed: int, progress: Progress
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    advance = progress("similarities", 2)
    relaxed = measures.correlate(original.run_probability_TN, feature_SD, seed=seed)
    advance(1)
    hard = measures.correlate(original.path_TN, feature_SD, seed=seed)
    advance(1)
    path_P, feature_P = measures.pair_similarities(original.run_probability_TN, feature_SD, seed=seed)
    figures = {
        "pcc_relaxed": relaxed.pcc,
        "pcc_hard": hard.pcc,
        "features": name,
        "pairs": relaxed.pairs,
        "which_pairs": "every pair" if relaxed.every_pair else "a seeded sample of pairs",
    }
    return figures, {"pair_path": path_P, "pair_feature": feature_P}


def _maps(
    subject: Subject, with_tsne: bool, seed: int, progress: Progress
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """PCA of all test images, t-SNE of some, and both for augmented views of a few images."""
    relaxed_TN = subject.paths.run_probability_TN
    group_G = choose(len(subject.images), GROUPS, seed=seed + 1)
    view_V = group_G.repeat_interleave(VIEWS)
    augmentations = random_augmentations(len(view_V), pad=subject.pad, seed=seed + 1)
    views = _outputs(subject, view_V, progress("augmentation groups", len(view_V)), augmentations)
    pca_T2, fraction_2 = pca(relaxed_TN)
    group_pca_V2, _ = pca(views.run_probability_TN)
    chosen_E = choose(len(relaxed_TN), TSNE_POINTS, seed=seed)
    tensors = {
        "pca": pca_T2,
        "group_index": group_G,
        "group_pca": group_pca_V2,
        "expected_blocks": measures.expected_blocks(relaxed_TN).float(),
        "tsne_index": chosen_E,
    }
    if with_tsne:
        for name, x_EN in (("tsne", relaxed_TN[chosen_E]), ("group_tsne", views.run_probability_TN)):
            advance = progress(f"t-SNE of {len(x_EN):,} paths", None)
            map_E2 = tsne(x_EN, seed=seed)
            advance(1)
            if map_E2 is not None:
                tensors[name] = map_E2
    figures = {
        "pca_shares": fraction_2.tolist(),
        "groups": len(group_G),
        "views": VIEWS,
        "tsne_points": len(chosen_E) if "tsne" in tensors else 0,
    }
    return figures, tensors


def _usage(paths: PathTable) -> dict[str, Any]:
    counts = measures.path_counts(paths.path_TN)
    top = [
        {"path": "".join(map(str, path)), "images": count}
        for path, count in zip(counts.path_PN[:10].tolist(), counts.count_P[:10].tolist(), strict=True)
    ]
    return {
        "distinct_paths": len(counts.count_P),
        "path_entropy": measures.entropy_bits(counts.count_P),
        "most_common_paths": top,
        "by_blocks_run": measures.accuracy_by_blocks(paths),
    }


def example_images(paths: PathTable, images_TCHW: torch.Tensor) -> dict[str, torch.Tensor]:
    """The images that a report shows, stored with the analysis so that the report does not need the data set.

    Returns:
        `easiest`, `hardest` and `shared` (images of the most common paths) hold indices of test images, -1 for none;
        `shown_index` holds the same indices without duplicates, and `shown_images` these images at a small size.
    """
    order_T = measures.easiest_first(paths)
    counts = measures.path_counts(paths.path_TN)
    groups = measures.images_of_top_paths(counts, paths=TOP_PATHS, images=IMAGES_PER_PATH)
    shared_PI = torch.full((len(groups), IMAGES_PER_PATH), -1)
    for row_I, group in zip(shared_PI, groups, strict=True):
        row_I[: len(group)] = group
    strips = {"easiest": order_T[:EXAMPLES], "hardest": order_T.flip(0)[:EXAMPLES], "shared": shared_PI}
    index_I = torch.unique(torch.cat([strip.flatten() for strip in strips.values()]))
    index_I = index_I[index_I >= 0]
    images_ICHW = images_TCHW[index_I.to(images_TCHW.device)].cpu()
    return {**strips, "shown_index": index_I, "shown_images": thumbnails(images_ICHW)}


def thumbnails(images_ICHW: torch.Tensor) -> torch.Tensor:
    """The images (uint8), scaled down if a side is longer than THUMBNAIL pixels."""
    longest = max(images_ICHW.shape[2:])
    if longest <= THUMBNAIL:
        return images_ICHW
    size = [max(1, side * THUMBNAIL // longest) for side in images_ICHW.shape[2:]]
    return F.interpolate(images_ICHW.float(), size=size, mode="area").round().to(torch.uint8)
