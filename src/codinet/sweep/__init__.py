"""Train many runs from one command and summarise them.

    planned = sweep.plan(presets.quick("cifar10"), sweep.Grid(budget=(0.3, 0.5, 0.7), seed=(0, 1, 2)))
    outcome = sweep.run(Path("runs/budgets"), planned, workers=2)
    groups = sweep.summarise(outcome.results)

Each run is a `codinet train` process. The sweep reads results back from the run folders and does not depend on the
training code. `sweep.papers` holds the plans of the paper's tables and figures.
"""

from codinet.sweep.plan import Grid, PlannedRun, from_static, plan
from codinet.sweep.summary import Group, Result, pareto, summarise
from codinet.sweep.workers import Outcome, run

__all__ = ["Grid", "Group", "Outcome", "PlannedRun", "Result", "from_static", "pareto", "plan", "run", "summarise"]
