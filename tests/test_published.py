"""`published` matches numbers copied by hand from the paper's tables."""

import pytest

from codinet import published
from codinet.published import PUBLISHED, Published, data_key, matching


def find(data: str, method: str, **more: object) -> list[Published]:
    rows = [row for row in PUBLISHED if row.data == data and row.method == method]
    return [row for row in rows if all(getattr(row, key) == value for key, value in more.items())]


@pytest.mark.parametrize(
    ("data", "method", "gmaccs", "accuracy"),
    [
        ("cifar10", "SkipNet", 0.09, 92.38),
        ("cifar10", "BlockDrop", 0.17, 93.60),
        ("cifar10", "Conv-AIG", 0.41, 94.24),
        ("cifar10", "IamNN", 1.10, 94.60),
        ("cifar10", "CGap", 0.19, 93.43),
        ("cifar10", "ACT", 0.38, 93.50),
        ("cifar10", "SACT", 0.31, 93.40),
        ("cifar10", "DDI", 0.14, 93.88),
        ("cifar10", "DG-Net", 3.20, 93.99),
        ("cifar10", "DG-Net (light)", 2.22, 91.99),
        ("cifar10", "CoDiNet-110", 0.29, 94.47),
        ("cifar10", "DynConv", 0.111, 93.58),
        ("imagenet", "Conv-AIG 50", 3.06, 76.18),
        ("imagenet", "Conv-AIG 101", 5.11, 77.37),
        ("imagenet", "SkipNet", 6.70, 77.40),
        ("imagenet", "SkipNet (light)", 3.60, 75.22),
        ("imagenet", "LC-Net", 2.89, 74.10),
        ("imagenet", "BlockDrop", 7.32, 76.80),
        ("imagenet", "DG-Net", 7.05, 76.80),
        ("imagenet", "DDI", 3.50, 76.50),
        ("imagenet", "MSDN", 2.30, 74.24),
        ("imagenet", "RA-Net", 2.40, 75.10),
        ("imagenet", "IamNN", 4.00, 69.50),
        ("imagenet", "ACT", 6.70, 75.30),
        ("imagenet", "SACT", 7.20, 75.80),
        ("imagenet", "CoDiNet-50", 3.10, 76.63),
        ("imagenet", "CoDiNet-101", 5.02, 77.85),
    ],
)
def test_comparison_tables(data: str, method: str, gmaccs: float, accuracy: float) -> None:
    assert [(row.gmaccs, row.accuracy) for row in find(data, method)] == [(gmaccs, accuracy)]


def test_pruned_networks() -> None:
    assert [(row.gmaccs, row.accuracy) for row in find("cifar10", "Torch-Pruning")] == [(0.098, 93.64), (0.118, 93.77)]


def test_each_table_of_the_paper_is_complete() -> None:
    count = lambda source: sum(row.source == source for row in PUBLISHED)  # noqa: E731
    assert count(published.CIFAR) == 18
    assert count(published.SVHN) == 3
    assert count(published.TRADE_OFF) == 5
    assert count(published.ABLATION) == 5
    assert count(published.MARGINS) == 4
    assert count(published.SOTA_CIFAR) == 14
    assert count(published.SOTA_IMAGENET) == 17
    assert {row.paths for row in published.DIVERSITY_MARGINS} == {196, 276, 396, 800}
    assert {row.paths for row in published.ABLATIONS} == {1, 113, 20, 1079, 276}


def test_the_two_units_of_the_paper() -> None:
    [resnet110] = find("cifar10", "ResNet-110", source=published.CIFAR)
    assert resnet110.macs == pytest.approx(0.2529e9, rel=0.01)  # printed 0.51, counted by hand 0.2529 G
    [resnet50] = find("imagenet", "ResNet-50")
    assert resnet50.macs == pytest.approx(3.86e9)


def test_matching_rows() -> None:
    rows = matching("cifar10", "resnet110", "CoDiNet")
    assert [(row.accuracy, row.gmaccs, row.paths) for row in rows] == [(94.47, 0.29, None), (94.47, None, 276)]
    assert [row.paths for row in matching("cifar10", "resnet110", "vanilla + L_con")] == [20]
    assert [row.accuracy for row in matching("CIFAR-100", "resnet32", "static")] == [68.7]
    assert [row.accuracy for row in matching("imagenet", "resnet50", "CoDiNet")] == [76.63]
    assert matching("digits", "resnet20", "CoDiNet") == []
    assert data_key("CIFAR-10") == data_key("cifar_10") == "cifar10"
