from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.cost import CostTable
from codinet.data import load
from codinet.records import PathTable
from codinet.runs import measure
from codinet.zoo.open_run import open_entry
from codinet.zoo.paths import PREFIX, packed, unpacked
from codinet.zoo.same_images import identity_of
from codinet.zoo.shelf import find

TABLE = CostTable(run_N=(100, 200), skip_N=(0, 10), router_N=(1, 1), fixed=50, image_shape=(3, 8, 8), paper_unit=2)


def table_of(probabilities: list[list[float]], paths: list[list[int]]) -> PathTable:
    path_TN = torch.tensor(paths, dtype=torch.uint8)
    rows = len(paths)
    return PathTable(
        path_TN,
        torch.tensor(probabilities),
        torch.arange(rows) % 100,
        torch.arange(rows).flip(0) % 100,
        torch.linspace(0.25, 1, rows),
        TABLE.path_macs(path_TN),
    )


def test_a_worked_example() -> None:
    """A quarter is 64 of 256; one half that did not run stays just below it, and so does one that ran above."""
    given = table_of([[0.25, 1.0], [0.5, 0.499]], [[0, 1], [0, 1]])
    tensors = packed(given)
    assert tensors[PREFIX + "run_probability"].tolist() == [[64, 255], [127, 128]]
    found = PathTable(**(unpacked(tensors, TABLE) or {}))
    assert found.path_TN.tolist() == [[0, 1], [0, 1]]
    assert found.macs_T.tolist() == [252.0, 252.0]  # 50 and two routers, and the second block
    assert found.confidence_T.tolist() == [0.25, 1.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=20))
def test_nothing_is_lost_but_digits(rows: list[tuple[float, float]]) -> None:
    given = table_of([list(row) for row in rows], [[int(p >= 0.5) for p in row] for row in rows])
    found = PathTable(**(unpacked(packed(given), TABLE) or {}))
    for name in ("path_TN", "label_T", "prediction_T", "macs_T"):
        assert torch.equal(getattr(found, name), getattr(given, name))
        assert getattr(found, name).dtype == getattr(given, name).dtype
    assert (found.run_probability_TN - given.run_probability_TN).abs().max() <= 1 / 256
    assert torch.allclose(found.confidence_T, given.confidence_T, atol=1e-3)


def test_a_file_without_one_has_none() -> None:
    assert unpacked({"fc.weight": torch.zeros(2, 2)}, TABLE) is None


def test_the_table_is_the_networks_own_on_images_in_order(stocked: Path) -> None:
    entry, digits = open_entry(find("digits-resnet20-06", stocked), stocked), load("digits", Path())
    paths = measure(entry.load_model(), digits, torch.device("cpu")).paths
    order_T, found = identity_of(digits.test).order_T, entry.load_paths()
    assert torch.equal(found.path_TN, paths.path_TN[order_T])
    assert torch.equal(found.prediction_T, paths.prediction_T[order_T])
    assert torch.equal(found.macs_T, paths.macs_T[order_T])
