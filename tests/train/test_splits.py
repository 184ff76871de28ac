from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.cost import block_costs
from codinet.data.batches import Resident
from codinet.evaluate import evaluate
from codinet.model import RoutedNetwork
from codinet.train.splits import join


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 59), max_size=4, unique=True))
def test_joined_parts_equal_the_whole(half_open: RoutedNetwork, sixty: Resident, cuts: list[int]) -> None:
    table = block_costs(half_open, (3, 8, 8))
    ((images_NCHW, labels_N),) = sixty.batches(60)
    ends = [0, *sorted(cuts), 60]
    parts = [evaluate(half_open, [(images_NCHW[low:high], labels_N[low:high])], table) for low, high in pairwise(ends)]
    joined, whole = join(parts, table).summary(), evaluate(half_open, [(images_NCHW, labels_N)], table).summary()
    assert joined == pytest.approx(whole, rel=1e-5)
