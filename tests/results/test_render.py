from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from codinet.config import ExtraConfig, RunConfig
from codinet.presets import best
from codinet.results.record import Record, read_all, record_of
from codinet.results.render import NOTHING, render
from codinet.runs import RunFolder

ROOT = Path(__file__).parents[2]
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


def test_the_page_of_this_repository_is_what_its_results_give() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == render(read_all(ROOT / "results")), (
        "docs/results.md is behind results/; run codinet results render"
    )


def test_without_results_it_says_so() -> None:
    assert render([]).endswith(NOTHING)


def test_seeds_become_a_mean_and_a_spread(record: Callable[..., Record]) -> None:
    page = render([record(seed=seed, accuracy=94.0 + seed, distinct_paths=270 + seed) for seed in range(3)])
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[1:6] == ["`paper`", "250 + 20", "0.57", "95.00 ± 1.00 (3)", "94.47"]
    assert row[6:10] == ["0.570 ± 0.000", "0.290 ± 0.000", "0.29", "271 ± 1"]
    assert row[12] == "0.53 points above the paper at its cost"
    assert "Runs: 3; 1.5 hours of training." in page
    assert "Devices: H200. Commits: abc. torch: 2.13." in page


def test_the_order_of_records_does_not_matter(record: Callable[..., Record]) -> None:
    records = [record(seed=seed, method=method) for seed in (1, 0) for method in ("codinet", "static", "vanilla")]
    assert render(records) == render(records[::-1])
    table = render(records).partition("## Static")[2].splitlines()
    names = [line.split("|")[1].strip() for line in table if line.startswith("| ResNet")]
    assert names == ["ResNet-110, static", "ResNet-110, vanilla routing", "ResNet-110, CoDiNet"]


def test_a_shortfall_is_said(record: Callable[..., Record]) -> None:
    row = cells(render([record("ablation", accuracy=93.0, distinct_paths=20)]), "ResNet-110, CoDiNet")
    assert row[12] == "**falls short** of the paper by 1.47 points; 20 paths where the paper has 276"


def test_a_dearer_network_is_said(record: Callable[..., Record]) -> None:
    row = cells(render([record(accuracy=94.47, paper_gmaccs=0.312)]), "ResNet-110, CoDiNet")
    assert row[12] == "as accurate as the paper for 0.02 G more"


@pytest.mark.parametrize(("share", "missed"), [(0.589, ""), (0.551, ""), (0.6, "+0.030"), (0.5, "-0.070")])
def test_a_missed_budget_is_marked(record: Callable[..., Record], share: float, missed: str) -> None:
    remark = cells(render([record(cost_share=share)]), "ResNet-110, CoDiNet")[12]
    assert ("**budget missed** by" in remark) == bool(missed)
    assert missed in remark


def test_one_seed_that_misses_is_not_averaged_away(record: Callable[..., Record]) -> None:
    page = render([record(seed=0, cost_share=0.54), record(seed=1, cost_share=0.60)])
    assert "**2 of 2 runs: budget missed** by +0.030" in cells(page, "ResNet-110, CoDiNet")[12]


def test_a_collapse_is_said(record: Callable[..., Record]) -> None:
    assert "routing collapsed to one path" in cells(render([record(distinct_paths=1)]), "ResNet-110, CoDiNet")[12]
    static = cells(render([record(method="static", distinct_paths=1)]), "ResNet-110, static")
    assert "collapsed" not in static[12]


def test_another_recipe_is_another_row_and_told(record: Callable[..., Record]) -> None:
    page = render([record(seed=0), record(seed=1), record(config=quick_with_decay)])
    rows = [line for line in page.splitlines() if line.startswith("| ResNet-110, CoDiNet |")]
    assert len(rows) == 2
    (row,) = (row for row in rows if "30 + 6" in row)
    assert "| `best`, lr 0.1, finetune_lr 0.01, weight_decay 0.0001, ema 0.999 |" in row  # fewer than from `paper`
    assert "30 epochs where the paper's recipe has 250" in row


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("static", "`paper`, schedule cosine, ema 0.999"),
        ("vanilla", "`paper`, schedule cosine, ema 0.999"),
        ("con", "`paper`, alpha 1, schedule cosine, ema 0.999"),
        ("div", "`paper`, beta 1, m_d 1, schedule cosine, ema 0.999"),
    ],
)
def test_settings_that_a_method_does_not_use_are_not_told(
    record: Callable[..., Record], method: str, told: str
) -> None:
    assert f"| {told} |" in render([record("ablation", config=quick, method=method)])


def test_where_runs_started_and_who_taught_them_are_told_without_names(record: Callable[..., Record]) -> None:
    def taught(seed: int, **extra: float) -> Record:
        runs = ExtraConfig(start=f"static-{seed}", teacher=f"static-{seed}", **extra)  # type: ignore[arg-type]

        def config(base: RunConfig) -> RunConfig:
            chosen = best(base.source)
            losses = replace(chosen.losses, budget=base.losses.budget)
            return replace(chosen, network=base.network, losses=losses, seed=seed, extra=runs)

        return record(config=config, seed=seed)

    told = "`best`, started from another run, taught by another run"
    assert cells(render([taught(0), taught(1)]), "ResNet-110, CoDiNet")[1] == told  # one row of two seeds
    assert cells(render([taught(0, distill=0.1)]), "ResNet-110, CoDiNet")[1] == f"{told}, distill 0.1"


def test_a_margin_is_a_row_and_no_deviation(record: Callable[..., Record]) -> None:
    page = render([record("margin", config=lambda c: replace(c, losses=replace(c.losses, m_d=0.25)))])
    assert cells(page, "ResNet-110, CoDiNet, m_d = 0.25")[1] == "`paper`"
    assert "Printed in the paper and not run here: ResNet-110, CoDiNet, m_d = 0.50 (94.47 %)" in page


def test_other_data_has_no_row_of_the_paper(record: Callable[..., Record]) -> None:
    page = render([record(config=lambda config: replace(config, source="digits")), record(method="static")])
    assert page.index("CoDiNet: CIFAR-10") < page.index("CoDiNet: digits")
    row = cells(page, "ResNet-110, CoDiNet")
    assert [row[5], row[8], row[10], row[11], row[12]] == ["–", "–", "–", "–", "–"]


def test_the_commands_are_told_once_a_row(record: Callable[..., Record]) -> None:
    page = render([record(seed=0), record(seed=1)])
    assert page.count("codinet train cifar10") == 1


def test_a_static_network_of_equal_cost_stands_beside(record: Callable[..., Record]) -> None:
    statics = [
        record("trade-off", method="static", config=resnet62, seed=seed, accuracy=94.1 + seed / 5, macs=2.4e8)
        for seed in range(2)
    ]
    page = render([record(accuracy=94.0), *statics])
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[11] == "94.20 ± 0.14 (ResNet-62, 0.96 of the MACs)"
    assert row[12].endswith("; a static ResNet-62 is **0.20 points more accurate** for 0.96 of the MACs")
    assert cells(page, "ResNet-62, static")[11] == "–"
    assert "“Static of equal cost” is what one would take instead" in page
    assert "within a\n  factor of 1.25," in page


def test_a_static_network_that_is_no_more_accurate_needs_no_word(record: Callable[..., Record]) -> None:
    page = render([record(accuracy=94.0), record(method="static", accuracy=94.001)])  # equal as shown
    row = cells(page, "ResNet-110, CoDiNet")
    assert row[11] == "94.00 (ResNet-110, 1.00 of the MACs)"
    assert "static" not in row[12]


def test_how_paths_follow_images(make_run: Make, analyse: Callable[..., Path]) -> None:
    first = analyse(make_run("a", seed=0), swapped=(72.0, 74.25))
    second = analyse(make_run("b", seed=1), same_path=0.625, pcc_hard=None, swapped=(73.0, 74.25))
    page = render([record_of(RunFolder.open(run), ["routing"]) for run in (first, second)])
    (head,) = (line for line in page.splitlines() if line.startswith("| row |"))
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
        "accuracy with another image's path, %": "72.50 ± 0.71",
        "… of its class, %": "74.25 ± 0.00",
        "static of equal cost": "–",
        "remarks": "–",
    }
    assert cells(page, "ResNet-110, CoDiNet")[4:7] == ["94.00 ± 0.00 (2)", "0.570 ± 0.000", "300 ± 0"]
    assert cells(page, "ResNet-110, CoDiNet")[9] == "53.4"
    assert "features of an ImageNet MoCo" in page


def test_figures_that_analyses_of_before_lack_are_a_dash(make_run: Make, analyse: Callable[..., Path]) -> None:
    old = record_of(RunFolder.open(analyse(make_run("a", seed=0))), ["routing"])
    del old["analysis"]["swapped_any"], old["analysis"]["swapped_class"]  # as results/ holds them
    assert cells(render([old]), "ResNet-110, CoDiNet")[-4:-2] == ["–", "–"]
    new = record_of(RunFolder.open(analyse(make_run("b", seed=1), swapped=(72.5, 74.25))), ["routing"])
    assert cells(render([old, new]), "ResNet-110, CoDiNet")[-4:-2] == ["72.50 (1 of 2)", "74.25 (1 of 2)"]


def test_other_features_are_another_row(make_run: Make, analyse: Callable[..., Path]) -> None:
    static = "the last layer of the static run s"
    runs = [analyse(make_run(str(seed), seed=seed), features=f"{static}{seed}") for seed in range(2)]
    runs.append(analyse(make_run("2", seed=2), features="the file moco.npy"))
    page = render([record_of(RunFolder.open(run), ["routing"]) for run in runs])
    rows = [split(line) for line in page.splitlines() if line.startswith("| ResNet-110, CoDiNet |")]
    assert [(row[4], row[-5]) for row in rows] == [
        ("94.00 ± 0.00 (2)", "a static run's last layer"),
        ("94.00 (1)", "the file moco.npy"),
    ]


def test_the_paper_measured_paths_of_one_network_alone(make_run: Make, analyse: Callable[..., Path]) -> None:
    runs = [analyse(make_run("a", method="con")), analyse(make_run("b", config=resnet62))]
    page = render([record_of(RunFolder.open(run), ["routing"]) for run in runs])
    for label in ("ResNet-110, vanilla + L_con", "ResNet-62, CoDiNet"):
        row = cells(page, label)
        assert (row[9], row[16]) == ("–", "–")
