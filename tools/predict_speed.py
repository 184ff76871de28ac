"""Time `codinet predict` against the masked and the static network on the same image files.

    python -m tools.predict_speed RUN FOLDER [--batch 1 64] [--threads 1 2] [--rounds 5]

All three decode the files and compute predictions in the same way; only the engine differs. They take turns within each
round, so a busy machine slows all of them. Speeds are medians over rounds, and so are the ratios of one round's times.
Making the engine is not part of these times; it has a column of its own.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
import tyro

from codinet.engines import Engine, MaskedEngine, StaticEngine, compile_engine
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.predictor import Predictor, image_files
from codinet.run_reader import RunReader
from codinet.runs import open_run

COLUMNS = ("threads", "batch", "engine", "images/s", "× masked", "× static", "× static by MACs", "s to build")


def measure(run: RunReader, files: list[Path], device: torch.device, *, batch: int, rounds: int) -> list[Any]:
    """Time one batch size.

    Args:
        run: The run.
        files: Image files.
        device: Where the networks run.
        batch: Images per call.
        rounds: How often each network predicts all files.

    Returns:
        A row of the table, from `engine` on.
    """
    build_s = 0.0

    def timed(model: RoutedNetwork, **options: Any) -> Engine:
        nonlocal build_s
        start = perf_counter()
        engine = compile_engine(model, **options)
        build_s = perf_counter() - start
        return engine

    engines: dict[str, Callable[..., Engine]] = {
        "predict": timed,
        "masked": lambda model, **_options: MaskedEngine(model),
        "static": lambda model, **_options: StaticEngine(model),
    }
    predictors = {name: Predictor(run, device, batch=batch, make_engine=make) for name, make in engines.items()}
    answers = [answer for _, answer in predictors["predict"].predict_files(files)]
    share = fmean(answer.cost_share for answer in answers if not isinstance(answer, UserError))
    for predictor in predictors.values():  # the first call is slower
        list(predictor.predict_files(files[: 2 * batch]))
    times: dict[str, list[float]] = {name: [] for name in predictors}
    names = list(predictors)
    for _ in range(rounds):
        for name in names:
            start = perf_counter()
            for _answer in predictors[name].predict_files(files):
                pass
            times[name].append(perf_counter() - start)
        names = names[1:] + names[:1]
    speedups = [
        median(other / own for other, own in zip(times[name], times["predict"], strict=True))
        for name in ("masked", "static")
    ]
    engine = getattr(predictors["predict"].engine, "name", "none")
    speed = len(files) / median(times["predict"])
    return [engine, f"{speed:.0f}", *(f"{value:.2f}" for value in (*speedups, 1 / share)), f"{build_s:.2f}"]


def main(
    run: tyro.conf.Positional[str],
    folder: tyro.conf.Positional[Path],
    batch: tuple[int, ...] = (1, 64),
    threads: tuple[int, ...] = (1, 2),
    rounds: int = 5,
    device: str = "cpu",
) -> None:
    """Print a table in Markdown.

    Args:
        run: Run folder, or zoo:NAME.
        folder: Folder with images.
        batch: Images per call.
        threads: torch's threads.
        rounds: How often each network predicts all files.
        device: cpu or cuda.
    """
    files, source = image_files([folder]), open_run(run)
    print(f"{len(files)} images, {rounds} rounds, torch {torch.__version__}, {device}\n")
    for cells in (COLUMNS, ["---"] * len(COLUMNS)):
        print("| " + " | ".join(cells) + " |")
    for number in threads:
        torch.set_num_threads(number)
        for size in batch:
            row = measure(source, files, pick_device(device), batch=size, rounds=rounds)
            print("| " + " | ".join(map(str, (number, size, *row))) + " |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
