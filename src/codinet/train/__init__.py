"""Training: stages, the budget, the loop, checkpoints."""

from codinet.train.loop import train

__all__ = ["train"]
