"""Bringing the images that run a block together, by moving as few as possible.

Features of a batch lie in places. Those that run a block must lie in one window of places for the block to be run on
them where they are. The window chosen is the one that most of them lie in already; each stranger in it trades places
with one who runs outside. Less is copied than by taking the images out and putting them back, and nothing where
blocks agree on whom to run. Knows nothing of features.
"""

from typing import NamedTuple

import numpy as np


class Trade(NamedTuple):
    """What is at `source` goes to `target`, all at once; then the window holds all that run and no others."""

    window: slice
    source_M: np.ndarray
    target_M: np.ndarray


def trade(runs_B: np.ndarray) -> Trade:
    """The moves that bring together the places where `runs_B` is True; one of them is, at least."""
    (place_R,) = runs_B.nonzero()
    number = len(place_R)
    assert number > 0
    # A best window begins at one that runs, or would but for the end of the batch.
    past_R = place_R.searchsorted(place_R + number)
    first = int((past_R - np.arange(number)).argmax())
    start = min(int(place_R[first]), len(runs_B) - number)
    window = slice(start, start + number)
    leaves_J = (~runs_B[window]).nonzero()[0]
    leaves_J += start
    inside = number - len(leaves_J)
    begin = int(place_R.searchsorted(start))
    joins_J = np.concatenate((place_R[:begin], place_R[begin + inside :]))
    return Trade(window, np.concatenate((joins_J, leaves_J)), np.concatenate((leaves_J, joins_J)))
