"""The figures of the routing space and of images, with their words; see `pictures`."""

from collections.abc import Sequence

import torch

from codinet.report import figures_consistency, figures_images, figures_space
from codinet.report.inputs import Run, row_names
from codinet.report.page import Picture
from codinet.report.style import shorten

RELAXED = "Relaxed paths: each router's probability that its block runs, one number a block."


def spaces(runs: Sequence[Run], suffix: str) -> list[Picture]:
    """The routing space by class, by expected blocks, by augmentation group, and the paper's grid of classes.

    The runs are of one data set; `suffix` tells its figures from those of another.
    """
    clouds = [run.cloud(name) for run, name in zip(runs, row_names(runs), strict=True)]
    classes = runs[0].classes
    names = ", ".join(cloud.name for cloud in clouds)
    points = len(clouds[0].label_E)
    pictures = [
        Picture(
            f"space-class{suffix}",
            figures_space.by_class(clouds, classes),
            f"Maps of {points:,} relaxed paths coloured by class, PCA and, where made, t-SNE, a row a run: {names}.",
            f"{RELAXED} PCA keeps distances as well as two axes can; t-SNE keeps neighbours. Rows share their scale.",
        ),
        Picture(
            f"space-blocks{suffix}",
            figures_space.by_blocks(clouds),
            f"The same maps coloured by the expected number of run blocks, a row a run: {names}.",
            "The same maps by the expected number of run blocks: blue few, orange many.",
        ),
    ]
    embedding = runs[0].analysis.figures["embedding"]
    pictures.append(
        Picture(
            f"space-groups{suffix}",
            figures_space.augmentation_groups(
                [cloud.name for cloud in clouds], [run.groups() for run in runs], embedding["views"]
            ),
            f"Maps of the relaxed paths of {embedding['views']} augmentations of each of {embedding['groups']} images, "
            f"an image's augmentations in one colour, a row a run: {names}.",
            f"{embedding['views']} augmentations of each of {embedding['groups']} images; dots of one image share a "
            "colour (ten colours take turns). Consistent routing keeps an image's dots together.",
        )
    )
    pictures.append(
        Picture(
            f"space-grid{suffix}",
            figures_space.classes_in_rows(clouds, classes),
            f"Small maps: a row a run ({names}), a column a class, that class in colour over all other images in grey.",
            "One class at a time, as in the paper's figures of L_con, L_div and m_d: a row a run, the first classes.",
        )
    )
    return pictures


def similarity(runs: Sequence[Run]) -> Picture:
    pairs, notes = {}, {}
    for run in runs:
        found, tensors = run.analysis.figures["correlation"], run.analysis.tensors
        pairs[run.name] = tensors["pair_path"], tensors["pair_feature"]
        pcc = found["pcc_relaxed"]
        notes[run.name] = "PCC undefined: paths never vary" if pcc is None else f"PCC {pcc:.3f} (relaxed paths)"
    first = runs[0].analysis.figures["correlation"]
    said = "; ".join(f"{name}: {note}" for name, note in notes.items())
    return Picture(
        "similarity",
        figures_consistency.similarity(pairs, notes),
        f"Scatter of feature similarity against path similarity of pairs of images. {said}.",
        f"Cosine similarity of relaxed paths against that of features, {len(pairs[runs[0].name][0]):,} random pairs. "
        f"PCC: Pearson correlation over {first['which_pairs']} ({first['pairs']:,}). Features of {runs[0].name}: "
        f"{first['features']}.",
    )


def _strip(run: Run, title: str, index_I: torch.Tensor, path: Sequence[int] | None = None) -> figures_images.Strip:
    tensors, paths = run.analysis.tensors, run.paths
    index_I = index_I[index_I >= 0]
    places = torch.searchsorted(tensors["shown_index"], index_I)
    captions = []
    for index in index_I.tolist():
        label, guess = int(paths.label_T[index]), int(paths.prediction_T[index])
        name = shorten(run.classes[label], 14)
        if label != guess:
            name = f"{shorten(run.classes[label], 8)} ✗ {shorten(run.classes[guess], 8)}"
        captions.append(name if path else f"{name}\n{int(paths.path_TN[index].sum())} blocks")
    return figures_images.Strip(title, tensors["shown_images"][places], captions, path)


def effort(run: Run) -> Picture:
    tensors = run.analysis.tensors
    blocks_T = run.paths.path_TN.long().sum(dim=1)
    few, many = int(blocks_T.min()), int(blocks_T.max())
    return Picture(
        f"effort-{run.slug}",
        figures_images.strips(
            [_strip(run, "Fewest blocks", tensors["easiest"]), _strip(run, "Most blocks", tensors["hardest"])]
        ),
        f"Test images of {run.name} with the fewest blocks run (from {few}) and with the most (up to {many}).",
        f"{run.name}: the images it finds easiest and hardest. Among images with as many blocks, the surest count "
        "as easiest and the least sure as hardest; ✗ marks a wrong answer.",
    )


def sharing(run: Run) -> Picture:
    rows, total = [], len(run.paths.label_T)
    for place, index_I in enumerate(run.analysis.tensors["shared"]):
        path_N = run.paths.path_TN[int(index_I[0])]
        count = int((run.paths.path_TN == path_N).all(dim=1).sum())
        title = f"path {place + 1}: {count:,} of {total:,} images, {int(path_N.sum())} blocks"
        rows.append(_strip(run, title, index_I, path_N.tolist()))
    return Picture(
        f"sharing-{run.slug}",
        figures_images.strips(rows),
        f"Images of {run.name} that share a path, for its {len(rows)} most common paths. "
        + "; ".join(row.title for row in rows)
        + ".",
        f"{run.name}: images that share a path, a row for each of the most common ones. Squares are blocks, filled "
        "where they run.",
    )
