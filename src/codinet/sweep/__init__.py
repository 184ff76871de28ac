"""Many runs from one command: a plan, worker processes, a table, and the front of accuracy over cost.

    planned = sweep.plan(presets.quick("cifar10"), sweep.Grid(budget=(0.3, 0.5, 0.7), seed=(0, 1, 2)))
    outcome = sweep.run(Path("runs/budgets"), planned, workers=2)
    groups = sweep.summarise(outcome.results)

Runs are trained by `codinet train` in processes of their own and read back from their run folders; nothing
here knows how training works. `papers` holds the plans of the paper's tables and figures.
"""

from codinet.sweep.fleet import Outcome, run
from codinet.sweep.front import pareto
from codinet.sweep.grid import Grid, Planned, from_static, plan
from codinet.sweep.summary import Group, Result, summarise

__all__ = ["Grid", "Group", "Outcome", "Planned", "Result", "from_static", "pareto", "plan", "run", "summarise"]
