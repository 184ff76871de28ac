"""What a report says, in order: which figures and tables, for which runs."""

from collections.abc import Callable, Sequence

from codinet.published import matching
from codinet.report import pictures, pictures_space, tables
from codinet.report.inputs import Run
from codinet.report.page import Picture, Section


def sections(runs: Sequence[Run]) -> list[tuple[str, Callable[[], Section]]]:
    """(title, what makes it) in order; they are made one by one because figures take a while."""
    routed = [run for run in runs if run.routed]
    made: list[tuple[str, Callable[[], Section]]] = [
        ("Results", lambda: _results(runs)),
        ("Training", lambda: _training(runs)),
        ("Consistency", lambda: _consistency(runs, routed)),
    ]
    if routed:
        made.insert(2, ("Use of blocks", lambda: _blocks(routed)))
        made.append(("Routing space", lambda: _space(routed)))
        made.append(("Similar images, similar paths", lambda: _similarity(routed)))
        made.append(("Images", lambda: _images(routed)))
    made.append(("Published results", lambda: _published(runs)))
    made.append(("Settings", lambda: _settings(runs)))
    return [entry for entry in made if entry[0] != "Published results" or _rows(runs)]


def _results(runs: Sequence[Run]) -> Section:
    text = (
        "Accuracy, cost and paths on the test set. MACs count one per multiply-add of convolutions and matrix "
        "products; the paper's CIFAR and SVHN columns count two under the name GMACCs, its ImageNet columns one."
    )
    if not any(matching(run.folder.data.name, run.folder.config.network.arch, run.method) for run in runs):
        text += " The paper has no rows for these runs' data and networks."
    return Section("results", "Results", text, [tables.against_paper(runs), pictures.cost(runs)])


def _training(runs: Sequence[Run]) -> Section:
    watched = {row.get("watched", "test") for run in runs for row in run.metrics}
    what = " and ".join(sorted(watched)) or "no"
    return Section("training", "Training", f"Watched during training: {what} images.", [pictures.training(runs)])


def _blocks(runs: Sequence[Run]) -> Section:
    text = "Which blocks run for which classes, how many an image runs, and over how many paths images spread."
    parts = [*(pictures.run_rates(run) for run in runs), pictures.blocks_run(runs), pictures.path_numbers(runs)]
    return Section("blocks", "Use of blocks", text, list(parts))


def _consistency(runs: Sequence[Run], routed: Sequence[Run]) -> Section:
    number = " or ".join(f"{count:,}" for count in sorted({run.analysis.figures["images"] for run in runs}))
    text = (
        f"Each of {number} test images against one augmentation of it: a random crop, a horizontal flip, a vertical "
        "flip or a rotation by up to 15 degrees."
    )
    if routed:
        text += " With the path of another image, accuracy falls as far as an image's own path matters."
    if len(routed) < len(runs):
        text += " Static networks have one path, so they keep it; their predictions still change."
    seeds = {(run.analysis.made_from.get("seed"), run.analysis.figures["images"]) for run in runs}
    if len(seeds) > 1:
        text += " These runs were analysed with different seeds or numbers of images: compare with care."
    parts: list[Picture | tables.Table] = [tables.path_figures(runs)]
    if routed:
        parts.append(pictures.same_path(routed))
    return Section("consistency", "Consistency", text, [*parts, pictures.kl_histogram(runs)])


def _space(runs: Sequence[Run]) -> Section:
    parts: list[Picture | tables.Table] = []
    for place, data in enumerate(dict.fromkeys(run.folder.data.sha256 for run in runs), start=1):
        of_it = [run for run in runs if run.folder.data.sha256 == data]
        parts += pictures_space.spaces(of_it, "" if place == 1 else f"-{place}")
    text = (
        "Where the test images' relaxed paths lie: consistency draws an image's views together, diversity parts images."
    )
    return Section("space", "Routing space", text, parts)


def _similarity(runs: Sequence[Run]) -> Section:
    text = "Whether images with similar features take similar paths; dots on the dotted line are as similar in both."
    return Section("similarity", "Similar images, similar paths", text, [pictures_space.similarity(runs)])


def _images(runs: Sequence[Run]) -> Section:
    parts = [picture(run) for run in runs for picture in (pictures_space.effort, pictures_space.sharing)]
    return Section(
        "images", "Images", "What the networks spend much or little on, and what they treat alike.", list(parts)
    )


def _rows(runs: Sequence[Run]) -> list[tables.Table]:
    return tables.published([run.folder.data.name for run in runs])


def _published(runs: Sequence[Run]) -> Section:
    text = "Every row of the paper's tables for these data sets, and of two later works, as printed and in MACs."
    return Section("published", "Published results", text, list(_rows(runs)))


def _settings(runs: Sequence[Run]) -> Section:
    text = "What each run was told, and where it was made."
    return Section("settings", "Settings", text, [tables.configs(runs), tables.environments(runs)])
