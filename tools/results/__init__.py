"""Result files of finished runs, and the page that compares them with the paper.

    python -m tools.results add RUNS --table ablation     writes results/*.json, one file per run
    python -m tools.results render                        writes docs/results.md and docs/images/results.svg

Every number is the run's own evaluation on the test images after its last epoch. Nothing here trains, evaluates or
selects an epoch.
"""
