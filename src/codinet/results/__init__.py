"""What finished runs came to, kept as files and shown beside what the paper printed.

    codinet results add RUNS --table ablation     results/*.json, one a run
    codinet results render                        docs/results.md, from all of them

A figure is that of a run's own evaluation after its last epoch, on the test images. Nothing here trains,
evaluates, or picks a best epoch.
"""
