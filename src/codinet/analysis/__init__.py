"""How a trained network distributes images over paths.

`measures`, `augment` and `embedding` are pure functions on tensors, `features` runs networks, `network_analysis`
combines them, and `run_analysis` applies them to run folders.
"""

from codinet.analysis.run_analysis import Request, RunAnalysis, analyse_run, saved_analysis

__all__ = ["Request", "RunAnalysis", "analyse_run", "saved_analysis"]
