from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codinet.config import ExtraConfig, RunConfig
from codinet.errors import UserError
from codinet.presets import best
from codinet.published import OTHER, Published
from codinet.runs import RunFolder
from tools.results.record import Record, make_record, read_records
from tools.results.render import EMPTY, best_published, lead, render

ROOT = Path(__file__).parents[3]
Make = Callable[..., Path]


def cells(page: str, label: str) -> list[str]:
    """Of the one row of that name."""
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {label} |"))
    return split(line)


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def quick(config: RunConfig) -> RunConfig:
    return replace(
        config,
        losses=replace(config.losses, alpha=1.0, beta=1.0, m_d=1.0),
        schedule=replace(config.schedule, epochs=30, finetune=6, schedule="cosine"),
        extra=ExtraConfig(ema=0.999),
    )


def quick_with_decay(config: RunConfig) -> RunConfig:
    return replace(quick(config), losses=replace(quick(config).losses, score_decay=1e-3))


def resnet62(config: RunConfig) -> RunConfig:
    return replace(config, network=replace(config.network, arch="resnet62"))


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == render(read_records(ROOT / "results")), (
        "docs/results.md is out of date; run python -m tools.results render"
    )


def test_no_results() -> None:
    assert render([]).endswith(EMPTY)


def test_seeds_become_a_mean_and_a_standard_deviation(record: Callable[..., Record]) -> None:
    page = render([record(seed=seed, accuracy=94.0 + seed, distinct_paths=270 + seed) for seed in range(3)])
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[1:6] == ["`paper`", "250 + 20", "0.57", "95.00 ± 1.00 (3)", "94.47"]
    assert row[6:10] == ["0.570 ± 0.000", "0.290 ± 0.000", "0.29", "271 ± 1"]
    assert row[12] == "0.53 points above the paper at the same cost"
    assert "Runs: 3; 1.5 hours of training." in page
    assert "Devices: H200. Commits: abc. torch: 2.13." in page


def test_the_order_of_records_does_not_matter(record: Callable[..., Record]) -> None:
    records = [record(seed=seed, method=method) for seed in (1, 0) for method in ("codinet", "static", "vanilla")]
    assert render(records) == render(records[::-1])
    table = render(records).partition("## Static")[2].splitlines()
    names = [line.split("|")[1].strip() for line in table if line.startswith("| ResNet")]
    assert names == ["ResNet-110, static", "ResNet-110, vanilla routing", "ResNet-110, CoDiNet"]


def test_shortfall(record: Callable[..., Record]) -> None:
    row = cells(render([record("ablation", accuracy=93.0, distinct_paths=20)]), "ResNet-110, CoDiNet")
    assert row[12] == "**1.47 points below** the paper; 20 paths (paper: 276)"


def test_higher_cost(record: Callable[..., Record]) -> None:
    row = cells(render([record(accuracy=94.47, paper_gmaccs=0.312)]), "ResNet-110, CoDiNet")
    assert row[12] == "as accurate as the paper at 0.02 G more"


@pytest.mark.parametrize(("share", "missed"), [(0.589, ""), (0.551, ""), (0.6, "+0.030"), (0.5, "-0.070")])
def test_a_missed_budget_is_marked(record: Callable[..., Record], share: float, missed: str) -> None:
    remark = cells(render([record(cost_share=share)]), "ResNet-110, CoDiNet")[12]
    assert ("**budget missed** by" in remark) == bool(missed)
    assert missed in remark


def test_missed_budgets_are_not_averaged_away(record: Callable[..., Record]) -> None:
    page = render([record(seed=0, cost_share=0.54), record(seed=1, cost_share=0.60)])
    assert "**budget missed** in 2 of 2 runs by +0.030" in cells(page, "ResNet-110, CoDiNet")[12]


def test_collapse(record: Callable[..., Record]) -> None:
    assert "routing collapsed to one path" in cells(render([record(distinct_paths=1)]), "ResNet-110, CoDiNet")[12]
    static = cells(render([record(method="static", distinct_paths=1)]), "ResNet-110, static")
    assert "collapsed" not in static[12]


def test_another_image_size_is_another_row(record: Callable[..., Record]) -> None:
    """Packed photographs have one digest for every size."""
    page = render([record(seed=size, config=partial(with_data, image_size=size)) for size in (128, 224)])
    assert page.count("\n| ResNet-110, CoDiNet |") == 2


def test_one_training_with_two_results_is_refused(record: Callable[..., Record]) -> None:
    records = [record(config=partial(with_data, watch=watch)) for watch in ("test", "train")]
    with pytest.raises(UserError, match="are the same training; remove one of the files"):
        render(records)


def with_data(config: RunConfig, **values: Any) -> RunConfig:
    return replace(config, data=replace(config.data, **values))


def test_another_recipe_is_another_row(record: Callable[..., Record]) -> None:
    page = render([record(seed=0), record(seed=1), record(config=quick_with_decay)])
    rows = [line for line in page.splitlines() if line.startswith("| ResNet-110, CoDiNet |")]
    assert len(rows) == 2
    (row,) = (row for row in rows if "30 + 6" in row)
    assert "| `best`, lr 0.1, finetune_lr 0.01, weight_decay 0.0001, ema 0.999 |" in row  # fewer than from `paper`
    assert "30 epochs (paper: 250)" in row


@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("static", "`paper`, schedule cosine, ema 0.999"),
        ("vanilla", "`paper`, schedule cosine, ema 0.999"),
        ("con", "`paper`, alpha 1, schedule cosine, ema 0.999"),
        ("div", "`paper`, beta 1, m_d 1, schedule cosine, ema 0.999"),
    ],
)
def test_unused_settings_are_not_shown(record: Callable[..., Record], method: str, recipe: str) -> None:
    assert f"| {recipe} |" in render([record("ablation", config=quick, method=method)])


def test_start_and_teacher_are_shown_without_names(record: Callable[..., Record]) -> None:
    def taught(seed: int, **extra: float) -> Record:
        runs = ExtraConfig(start=f"static-{seed}", teacher=f"static-{seed}", **extra)  # type: ignore[arg-type]

        def config(base: RunConfig) -> RunConfig:
            chosen = best(base.source)
            losses = replace(chosen.losses, budget=base.losses.budget)
            return replace(chosen, network=base.network, losses=losses, seed=seed, extra=runs)

        return record(config=config, seed=seed)

    recipe = "`best`, initialised from another run, distilled from another run"
    assert cells(render([taught(0), taught(1)]), "ResNet-110, CoDiNet")[1] == recipe  # one row of two seeds
    assert cells(render([taught(0, distill=0.1)]), "ResNet-110, CoDiNet")[1] == f"{recipe}, distill 0.1"


def test_the_margin_is_part_of_the_name_not_the_recipe(record: Callable[..., Record]) -> None:
    page = render([record("margin", config=lambda c: replace(c, losses=replace(c.losses, m_d=0.25)))])
    assert cells(page, "ResNet-110, CoDiNet, m_d = 0.25")[1] == "`paper`"
    assert "In the paper but not run here: ResNet-110, CoDiNet, m_d = 0.50 (94.47 %)" in page


def test_other_data_is_not_in_the_paper(record: Callable[..., Record]) -> None:
    page = render([record(config=lambda config: replace(config, source="digits")), record(method="static")])
    assert page.index("CoDiNet: CIFAR-10") < page.index("CoDiNet: digits")
    row = cells(page, "ResNet-110, CoDiNet")
    assert [row[5], row[8], row[10], row[11], row[12]] == ["–", "–", "–", "–", "–"]


def test_one_command_per_row(record: Callable[..., Record]) -> None:
    page = render([record(seed=0), record(seed=1)])
    assert page.count("codinet train cifar10") == 1


def test_static_network_of_similar_cost(record: Callable[..., Record]) -> None:
    statics = [
        record("trade-off", method="static", config=resnet62, seed=seed, accuracy=94.1 + seed / 5, macs=2.4e8)
        for seed in range(2)
    ]
    page = render([record(accuracy=94.0), *statics])
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[11] == "94.20 ± 0.14 (ResNet-62, 0.96 × MACs)"
    assert row[12].endswith("; a static ResNet-62 is **0.20 points more accurate** at 0.96 × the MACs")
    assert cells(page, "ResNet-62, static")[11] == "–"
    assert "“Static network of similar cost” is the alternative to routing" in page
    assert "within a factor of 1.25," in page


def test_no_remark_if_the_static_network_is_not_more_accurate(record: Callable[..., Record]) -> None:
    page = render([record(accuracy=94.0), record(method="static", accuracy=94.001)])  # equal as shown
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[11] == "94.00 (ResNet-110, 1.00 × MACs)"
    assert "static" not in row[12]


def test_routing_table(make_run: Make, analyse: Callable[..., Path]) -> None:
    first = analyse(make_run("a", seed=0), swapped=(72.0, 74.25))
    second = analyse(make_run("b", seed=1), same_path=0.625, pcc_hard=None, swapped=(73.0, 74.25))
    page = render([make_record(RunFolder.open(run), ["routing"]) for run in (first, second)])
    (head,) = (line for line in page.splitlines() if line.startswith("| network | recipe | epochs | budget | accuracy"))
    row = dict(zip(split(head)[7:], cells(page, "ResNet-110, CoDiNet")[7:], strict=True))  # the last “paper”: PCC
    assert row == {
        "images": "4",
        "same path, %": "50.0 ± 17.7",
        "crop, %": "50.0 ± 0.0",
        "horizontal flip, %": "–",
        "vertical flip, %": "–",
        "rotation, %": "25.0 ± 0.0",
        "PCC, relaxed paths": "0.250 ± 0.000",
        "PCC, hard paths": "0.125 (1 of 2)",
        "paper": "0.581",
        "features": "own last layer",
        "accuracy with swapped paths, %": "72.50 ± 0.71",
        "swapped within the class, %": "74.25 ± 0.00",
        "static network of similar cost": "–",
        "remarks": "–",
    }
    assert cells(page, "ResNet-110, CoDiNet")[4:7] == ["94.00 ± 0.00 (2)", "0.570 ± 0.000", "300 ± 0"]
    assert cells(page, "ResNet-110, CoDiNet")[9] == "53.4"
    assert "features of a MoCo network" in page


def test_methods_table(make_run: Make, analyse: Callable[..., Path]) -> None:
    routed = [
        analyse(make_run(method, method=method, distinct_paths=1), swapped=(80.0, 85.0))
        for method in ("blockdrop", "skipnet", "fixed")
    ]
    runs = [make_run("static", method="static"), *routed]
    page = render([make_record(RunFolder.open(run), ["methods"]) for run in runs])
    static, skipnet, blockdrop, fixed = (
        cells(page, f"ResNet-110, {name}") for name in ("static", "SkipNet", "BlockDrop", "best fixed path")
    )
    assert static[-4:] == ["–", "–", "93.60 at 0.51 G", "–"]
    assert blockdrop[-4:] == ["37.5", "80.00", "93.60 at 0.17 G", "routing collapsed to one path"]
    assert skipnet[-2] == "92.38 at 0.09 G (ResNet-74)"
    assert fixed[-2:] == ["–", "–"]  # it is meant to have one path


def test_routed_runs_of_the_methods_table_need_an_analysis(make_run: Make) -> None:
    with pytest.raises(UserError, match="which the table methods requires; run codinet analyze"):
        make_record(RunFolder.open(make_run("one")), ["methods"])


def test_photographs_are_not_compared_with_the_paper(record: Callable[..., Record]) -> None:
    page = render([{**record("photographs"), "data": "photos"}])
    assert "**ten classes, not ImageNet**" in page
    assert "the paper at" not in page


def test_metrics_that_old_analyses_lack(make_run: Make, analyse: Callable[..., Path]) -> None:
    old = make_record(RunFolder.open(analyse(make_run("a", seed=0))), ["routing"])
    del old["analysis"]["swapped_any"], old["analysis"]["swapped_class"]  # as results/ holds them
    assert cells(render([old]), "ResNet-110, CoDiNet")[-4:-2] == ["–", "–"]
    new = make_record(RunFolder.open(analyse(make_run("b", seed=1), swapped=(72.5, 74.25))), ["routing"])
    assert cells(render([old, new]), "ResNet-110, CoDiNet")[-4:-2] == ["72.50 (1 of 2)", "74.25 (1 of 2)"]


def test_other_features_are_another_row(make_run: Make, analyse: Callable[..., Path]) -> None:
    static = "the last layer of the static run s"
    runs = [analyse(make_run(str(seed), seed=seed), features=f"{static}{seed}") for seed in range(2)]
    runs.append(analyse(make_run("2", seed=2), features="the file moco.npy"))
    page = render([make_record(RunFolder.open(run), ["routing"]) for run in runs])
    rows = [split(line) for line in page.splitlines() if line.startswith("| ResNet-110, CoDiNet |")]
    assert [(row[4], row[-5]) for row in rows] == [
        ("94.00 ± 0.00 (2)", "a static run's last layer"),
        ("94.00 (1)", "the file moco.npy"),
    ]


def test_the_paper_analysed_one_network_only(make_run: Make, analyse: Callable[..., Path]) -> None:
    runs = [analyse(make_run("a", method="con")), analyse(make_run("b", config=resnet62))]
    page = render([make_record(RunFolder.open(run), ["routing"]) for run in runs])
    for label in ("ResNet-110, vanilla + L_con", "ResNet-62, CoDiNet"):
        row = cells(page, label)
        assert (row[9], row[16]) == ("–", "–")


# Accuracy against cost


def published(gmaccs: float, accuracy: float) -> Published:
    return Published("cifar10", "method", "ResNet-8", OTHER, gmaccs, accuracy, "somewhere")


ROWS = [published(*pair) for pair in ((0.3, 94.0), (0.1, 92.0), (0.2, 93.0), (0.25, 92.5), (0.2, 92.8), (0.4, 94.0))]
points = st.tuples(st.integers(1, 9).map(lambda n: n / 10), st.integers(88, 95).map(float))


def test_dominated_rows_are_left_out() -> None:
    assert [(row.gmaccs, row.accuracy) for row in best_published(ROWS)] == [(0.1, 92.0), (0.2, 93.0), (0.3, 94.0)]


@given(st.lists(points, max_size=12))
def test_the_remaining_rows_are_the_pareto_front(pairs: list[tuple[float, float]]) -> None:
    left = [(row.gmaccs or 0, row.accuracy) for row in best_published(published(*pair) for pair in pairs)]
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(left))
    for cost, accuracy in pairs:
        assert any(c <= cost and a >= accuracy for c, a in left)


def test_lead_compares_with_rows_of_the_same_or_lower_cost() -> None:
    assert lead(0.26, 93.5, ROWS) == 0.5
    assert lead(0.296, 93.5, ROWS) == -0.5  # printed as 0.3, that may cost the same
    assert lead(0.05, 93.5, ROWS) is None


def frontier(page: str) -> list[str]:
    return [line for line in page.split("## Static")[0].splitlines() if line.startswith("| 0.")]


def test_own_rows_are_listed_once_among_published_rows(record: Callable[..., Record]) -> None:
    both = "results", "trade-off"
    runs = [record(*both, seed=seed, accuracy=94.5 + seed / 5, paper_gmaccs=0.284) for seed in (0, 1)]
    lines = frontier(render(runs))
    (own,) = (line for line in lines if "ours" in line)
    assert "| 0.284 | **94.60 ± 0.14** | **ResNet-110, CoDiNet at 0.57** |" in own
    assert own.endswith("| +0.30 |")  # over 94.30 at 0.27
    costs = [float(line.split("|")[1]) for line in lines]
    assert costs == sorted(costs)


def test_no_frontier_without_published_rows(record: Callable[..., Record]) -> None:
    assert "Accuracy against cost" not in render([{**record(), "data": "digits"}])


# CoDiNet against vanilla routing


def pairs(page: str) -> list[list[str]]:
    """The cells of every pair on the page."""
    _, _, rest = page.partition("## CoDiNet against vanilla routing: CIFAR-10")
    lines = rest.partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ResNet")]


def runs(record: Callable[..., Record], vanilla: list[float], codinet: list[float], **words: object) -> list[Record]:
    return [
        record("results", "ablation", method=method, seed=seed, accuracy=accuracy, **words)
        for method, found in (("vanilla", vanilla), ("codinet", codinet))
        for seed, accuracy in enumerate(found)
    ]


# Standard deviations by hand: of (90, 91, 92) 1, of (91.5, 91.5, 91.5) 0, of (92.4, 93, 93.6) 0.6.
@pytest.mark.parametrize(
    ("vanilla", "codinet", "ahead", "verdict"),
    [
        ([90.0, 91.0, 92.0], [92.4, 93.0, 93.6], "+2.00", "**better** by more than the standard deviation"),
        ([92.4, 93.0, 93.6], [90.0, 91.0, 92.0], "-2.00", "**worse** by more than the standard deviation"),
        ([90.0, 91.0, 92.0], [91.5, 91.5, 91.5], "+0.50", "within the standard deviation"),
        (
            [90.0, 91.0, 92.0],
            [92.0, 92.0, 92.0],
            "+1.00",
            "within the standard deviation",
        ),  # as large as it, and not larger
        ([90.0], [93.0], "+3.00", "one run each"),
        ([90.0, 91.0], [93.0], "+2.50", "only one run of one method"),
    ],
)
def test_differences_are_compared_with_the_larger_standard_deviation(
    record: Callable[..., Record], vanilla: list[float], codinet: list[float], ahead: str, verdict: str
) -> None:
    (cells,) = pairs(render(runs(record, vanilla, codinet)))
    assert cells[-2:] == [ahead, verdict]


def longer(config: RunConfig) -> RunConfig:
    return replace(config, schedule=replace(config.schedule, epochs=300))


def wider(config: RunConfig) -> RunConfig:
    return replace(config, losses=replace(config.losses, m_d=0.75))


@pytest.mark.parametrize("other", [{"budget": 0.4}, {"config": longer}])
def test_pairs_have_the_same_budget_and_recipe(record: Callable[..., Record], other: dict[str, object]) -> None:
    one, two = runs(record, [90.0], [93.0]), runs(record, [90.0], [93.0], **other)
    assert not pairs(render([one[0], two[1]]))
    assert len(pairs(render([*one, *two]))) == 2


def test_path_loss_settings_share_one_vanilla_row(
    record: Callable[..., Record],
) -> None:
    made = [*runs(record, [90.0], [93.0]), record(accuracy=92.0, config=wider)]
    assert [(cells[1], cells[-2]) for cells in pairs(render(made))] == [
        ("`paper`", "+3.00"),
        ("`paper`, m_d 0.75", "+2.00"),
    ]


def test_pairs_are_sorted_by_budget_and_listed_once(record: Callable[..., Record]) -> None:
    made = [*runs(record, [90.0], [93.0], budget=0.3), *runs(record, [90.0], [93.0], budget=0.5)]
    assert [cells[3] for cells in pairs(render(made))] == ["0.5", "0.3"]
