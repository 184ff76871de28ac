"""Training: the loop with its stages, budget and checkpoints, and the objective alone for your own loop."""

from codinet.train.accelerate import Execution
from codinet.train.loop import train
from codinet.train.objective import Objective

__all__ = ["Execution", "Objective", "train"]
