import math

import pytest
import torch

from codinet.analysis.usage import (
    by_blocks_run,
    class_block_rates,
    easiest_first,
    entropy_bits,
    expected_blocks,
    path_counts,
    sharing,
)
from codinet.cost import CostTable
from codinet.evaluate import summarise
from codinet.records import PathTable


def table() -> PathTable:
    """Six images, two classes, three blocks."""
    path_TN = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=torch.uint8)
    return PathTable(
        path_TN=path_TN,
        run_probability_TN=path_TN.float() * 0.5 + 0.25,
        label_T=torch.tensor([0, 0, 0, 1, 1, 1]),
        prediction_T=torch.tensor([0, 1, 0, 1, 1, 1]),
        confidence_T=torch.tensor([0.9, 0.8, 0.99, 0.7, 0.6, 0.5]),
        macs_T=path_TN.double().sum(dim=1),
    )


def test_rates_of_a_worked_example() -> None:
    third = 1 / 3
    rates = class_block_rates(table(), 3)
    assert rates[:2].tolist() == [[1, pytest.approx(third), pytest.approx(third)], pytest.approx([2 / 3] * 3)]
    assert rates[2].isnan().all()  # a class without images


def test_paths_are_counted_most_common_first() -> None:
    counts = path_counts(table().path_TN)
    assert counts.path_PN.tolist()[0] == [1, 0, 0]
    assert counts.count_P.tolist() == [3, 2, 1]
    assert torch.equal(counts.path_PN[counts.place_T], table().path_TN)


def test_entropy_of_known_distributions() -> None:
    assert entropy_bits(torch.tensor([7])) == 0
    assert entropy_bits(torch.tensor([5, 5, 5, 5])) == pytest.approx(2)
    assert entropy_bits(torch.tensor([3, 2, 1])) == pytest.approx(
        -(0.5 * math.log2(0.5) + 1 / 3 * math.log2(1 / 3) + 1 / 6 * math.log2(1 / 6))
    )


def test_figures_agree_with_the_evaluation() -> None:
    costs = CostTable((1, 1, 1), (0, 0, 0), (0, 0, 0), 0, image_shape=(1, 8, 8), paper_unit=2)
    evaluation = summarise(table(), costs, loss=0.0)
    counts = path_counts(table().path_TN)
    assert len(counts.count_P) == evaluation.distinct_paths
    assert entropy_bits(counts.count_P) == pytest.approx(evaluation.path_entropy)
    rows = by_blocks_run(table())
    assert sum(row["images"] for row in rows) == evaluation.n
    assert sum(row["images"] * row["accuracy"] for row in rows) / 6 == pytest.approx(evaluation.accuracy)
    assert sum(row["images"] * row["blocks"] for row in rows) / 6 == pytest.approx(evaluation.mean_blocks)


def test_effort_goes_by_blocks_then_by_confidence() -> None:
    assert easiest_first(table()).tolist() == [2, 0, 4, 3, 1, 5]


def test_accuracy_by_blocks_of_a_worked_example() -> None:
    assert by_blocks_run(table()) == [
        {"blocks": 1, "images": 3, "accuracy": 100.0},
        {"blocks": 2, "images": 1, "accuracy": 100.0},
        {"blocks": 3, "images": 2, "accuracy": 50.0},
    ]


def test_images_sharing_a_path_are_spread_over_the_set() -> None:
    paths, images = 2, 2
    groups = sharing(path_counts(table().path_TN), paths=paths, images=images)
    assert [group.tolist() for group in groups] == [[0, 4], [1, 5]]
    assert [group.tolist() for group in sharing(path_counts(table().path_TN), paths=9, images=9)][2] == [3]


def test_expected_blocks_are_the_sum_of_probabilities() -> None:
    assert expected_blocks(torch.tensor([[0.5, 0.25, 1.0]])).tolist() == [1.75]
