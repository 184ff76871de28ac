"""Trains the runs of a plan that have no result yet, several at a time, and saves each result as soon as it is known.

A plan that was stopped continues with the same command: finished runs are kept, others resume.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from codinet import cli, files, sweep
from codinet.analysis.run_analysis import saved_analysis
from codinet.errors import UserError
from codinet.runs import open_run
from codinet.sweep.plan import PlannedRun, method_of
from codinet.sweep.sweep_folder import PLAN, is_finished
from codinet.sweep.sweep_progress import Progress
from codinet.sweep.workers import end_with_sweep, train_arguments
from tools.results.paper_tables import analysed_table, label_of
from tools.results.plans import listed_elsewhere, plan_named, without_result
from tools.results.record import make_record, read_records, save_records

PROGRAM = "from tools.results.train_plan import worker_main; worker_main()"  # of a worker process


def train_plan(
    name: str,
    out: Path,
    results: Path,
    *,
    workers: int = 1,
    data_root: Path,
    devices: Sequence[str | None] = (None,),
    progress: Progress | None = None,
) -> sweep.Outcome:
    """Trains the runs of a plan that have no result yet.

    Args:
        name: The name of the plan.
        out: The folder of the runs.
        results: The folder of the result files.
        workers: The number of runs to train at the same time.
        data_root: The folder of the data sets.
        devices: The devices, which workers use in turn.
        progress: Receives the progress.

    Returns:
        The runs that are finished, and why the others failed.
    """
    table, planned = plan_named(name).table, _planned(name, out, results)

    def command(run: PlannedRun, device: str | None) -> list[str]:
        words = train_arguments(run.training_config(out), out / run.name, data_root=data_root, device=device)
        return [sys.executable, "-c", PROGRAM, table, str(results), str(out / run.name), str(data_root), *words]

    if not planned:
        return sweep.Outcome()
    outcome = sweep.run(
        out, planned, workers=workers, data_root=data_root, devices=devices, command=command, progress=progress
    )
    for run in planned:  # a worker may have been killed between the last epoch and the result
        if is_finished(out, run):
            _save_result(table, results, out / run.name, data_root)
    return outcome


def _planned(name: str, out: Path, results: Path) -> list[PlannedRun]:
    """The runs without a result; in a folder that has a plan already, the runs of that plan.

    Results that other tables list are added to the plan's table.
    """
    plan = plan_named(name)
    table, runs = plan.table, plan.make()
    if (out / PLAN).exists():
        known = {run["name"] for run in files.read_json(out / PLAN)["runs"]}
        return [run for run in runs if run.name in known]
    if not results.exists():
        return runs
    usable = [
        {**record, "tables": {table: label_of(table, record)}}
        for record in listed_elsewhere(runs, read_records(results), table)
        if "analysis" in record or analysed_table([table], record["method"]) is None
    ]
    save_records(usable, results)
    return without_result(runs, read_records(results), table)


def _save_result(table: str, results: Path, folder: Path, data_root: Path) -> None:
    run = open_run(folder)
    if analysed_table([table], method_of(run.config)) and saved_analysis(run) is None:
        words = ["analyze", str(folder), "--no-tsne", "--data-root", str(data_root)]
        if cli.main(words) != 0:
            raise UserError(f"{folder} could not be analysed.")
    # A run that others depend on may have an earlier result. This one's weights are those that they use.
    save_records([make_record(run, [table])], results, replace=True)


def worker_main() -> None:
    """The main function of a worker process: trains a run and saves its result."""
    end_with_sweep()
    table, results, folder, data_root, *words = sys.argv[1:]

    def work() -> int:
        code = cli.main(words)
        if code == 0:
            _save_result(table, Path(results), Path(folder), Path(data_root))
        return code

    sys.exit(cli.guarded(work))
