"""Each figure of a report with its text: alt text that says what it shows, caption that says how to read it."""

from collections.abc import Sequence

from codinet.analysis.usage import class_block_rates
from codinet.report import figures, figures_consistency, figures_cost, figures_training
from codinet.report.inputs import Run
from codinet.report.page import Picture


def cost(runs: Sequence[Run]) -> Picture:
    points = [
        figures_cost.CostPoint(
            run.name, run.folder.data.name, run.evaluation["accuracy"], run.evaluation["macs"], run.unit, run.routed
        )
        for run in runs
    ]
    places = "; ".join(f"{p.name} {p.accuracy:.2f} % at {p.macs / 1e6:.4g} M MACs" for p in points)
    return Picture(
        "accuracy-cost",
        figures_cost.accuracy_cost(points),
        f"Accuracy against cost on a logarithmic cost axis, with published points where there are any. Runs: {places}.",
        "Accuracy against cost, one panel a data set. Orange: these runs, filled where routed, open where static; the "
        "dashed line joins static nets, so a routed run above it beats a static net of equal cost. Published points "
        "stand at the cost their table prints: γ is the paper's trade-off of CoDiNet-110, the dotted line joins its "
        "ResNets.",
    )


def training(runs: Sequence[Run]) -> Picture:
    ends = {run.name: run.metrics[-1].get("accuracy") for run in runs if run.metrics}
    last = "; ".join(f"{name} {accuracy:.2f} %" for name, accuracy in ends.items() if accuracy is not None)
    return Picture(
        "training",
        figures_training.training({run.name: run.metrics for run in runs}),
        f"Four panels by epoch: accuracy on watched images, loss, cost, distinct paths. Last accuracy: {last}.",
        "The course of training, by epoch. Dotted: stage 2, in which routers are fixed and decisions hard.",
    )


def run_rates(run: Run) -> Picture:
    rate_KN = class_block_rates(run.paths, len(run.classes))
    on, off = int((rate_KN.nan_to_num(1) == 1).all(dim=0).sum()), int((rate_KN.nan_to_num(0) == 0).all(dim=0).sum())
    blocks = rate_KN.shape[1]
    return Picture(
        f"run-rates-{run.slug}",
        figures.run_rates(run.paths, run.classes, run.stages),
        f"Heat map of {len(run.classes)} classes by {blocks} blocks for {run.name}: {on} blocks run for every image, "
        f"{off} for none, the other {blocks - on - off} depend on the image.",
        f"{run.name}: the share of each class's images that run a block. A column of one colour is a block that does "
        "not care for the class; white lines part the stages.",
    )


def blocks_run(runs: Sequence[Run]) -> Picture:
    means = "; ".join(f"{run.name} {run.evaluation['mean_blocks']:.2f} on average" for run in runs)
    return Picture(
        "blocks-run",
        figures.blocks_run({run.name: run.paths for run in runs}),
        f"Histograms of blocks run an image, with the accuracy of each bar. {means}.",
        "How many blocks images run (bars), and the accuracy among images that run as many (dots).",
    )


def path_numbers(runs: Sequence[Run]) -> Picture:
    distinct = {run.name: int(run.evaluation["distinct_paths"]) for run in runs}
    entropy = {run.name: float(run.evaluation["path_entropy"]) for run in runs}
    said = "; ".join(f"{name}: {distinct[name]} paths, {entropy[name]:.2f} bits" for name in distinct)
    return Picture(
        "path-numbers",
        figures.path_numbers(distinct, entropy),
        f"Bars of distinct paths and path entropy. {said}.",
        "Distinct paths on the test set, and the entropy of how images spread over them: b bits are as many choices "
        "as 2^b equally common paths.",
    )


def same_path(runs: Sequence[Run]) -> Picture:
    shares = {}
    for run in runs:
        found = run.analysis.figures["consistency"]
        kinds = {kind: values["mean"] for kind, values in found["same_path_kinds"].items()}
        shares[run.name] = {**kinds, "overall": found["same_path"]}
    said = "; ".join(f"{name} {100 * kinds['overall']:.1f} % overall" for name, kinds in shares.items())
    return Picture(
        "same-path",
        figures_consistency.same_path(shares),
        f"Bars: the share of image pairs, original and augmented, with identical paths, by augmentation. {said}.",
        "Pairs of an image and its augmentation that take the very same blocks. Each image gets one augmentation, the "
        "four kinds in equal numbers.",
    )


def kl_histogram(runs: Sequence[Run]) -> Picture:
    said = "; ".join(f"{run.name} mean {run.analysis.figures['kl']['mean']:.3f}" for run in runs)
    return Picture(
        "kl",
        figures_consistency.kl_histogram({run.name: run.analysis.tensors["kl"] for run in runs}),
        f"Histogram of the KL divergence between predictions of original and augmented images, in nats. {said}.",
        "KL divergence from the prediction of an image to that of its augmentation: further left is more consistent.",
    )
