"""Training: stages, the budget, the loop, checkpoints; and the objective alone, for a loop of one's own."""

from codinet.train.loop import train
from codinet.train.objective import Objective

__all__ = ["Objective", "train"]
