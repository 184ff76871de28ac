"""A plan of the paper made smaller, shorter or moved to other data by flags."""

from dataclasses import fields, replace

from codinet.errors import UserError, unknown
from codinet.presets import PRESETS
from codinet.sweep.common import Common
from codinet.sweep.grid import Grid, Planned, settle
from codinet.sweep.methods import method_of
from codinet.sweep.papers import PAPERS
from codinet.sweep.printed import Row

_MAY_BE_GIVEN = ("arch", "method", "seed")


def plan_paper(
    name: str,
    grid: Grid | None = None,
    common: Common | None = None,
    *,
    recipe: str = "paper",
    data_path: str | None = None,
    gpu: bool = False,
) -> list[Planned]:
    """The runs of a table or figure of the paper.

    Of the grid, seeds multiply the runs, methods select among them, and so do networks, unless the plan has
    one network only, which they replace. Runs on other data or another network than the paper's lose the row
    they would be held against.
    """
    grid = grid or Grid()
    if name not in PAPERS:
        raise unknown("table or figure of the paper", name, PAPERS)
    paper = PAPERS[name]
    for axis in fields(grid):
        if axis.name not in _MAY_BE_GIVEN and getattr(grid, axis.name):
            flag = axis.name.replace("_", "-")
            raise UserError(f"{name} sets --{flag} itself; leave it out, or sweep a data set instead.")
    source = data_path or paper.source
    if source is None:
        raise UserError(f"{name} needs an image folder; name it with --data-path DIR.")
    rows = paper.rows(PRESETS[recipe](source))
    if data_path is not None and paper.source is not None:
        rows = [(config, None) for config, _ in rows]
    rows = _of_methods(name, _of_networks(name, rows, grid.arch), grid.method)
    if common is not None:
        rows = [(common.put_into(config), row) for config, row in rows]
    return settle(rows, seeds=grid.seed, gpu=gpu)


def _of_networks(name: str, rows: list[Row], wanted: tuple[str, ...]) -> list[Row]:
    if not wanted:
        return rows
    there = list(dict.fromkeys(config.network.arch for config, _ in rows))
    if len(there) == 1 and set(wanted) != set(there):
        return [
            (replace(config, network=replace(config.network, arch=arch)), row if arch == there[0] else None)
            for arch in wanted
            for config, row in rows
        ]
    _require(name, "networks", wanted, there)
    return [(config, row) for config, row in rows if config.network.arch in wanted]


def _of_methods(name: str, rows: list[Row], wanted: tuple[str, ...]) -> list[Row]:
    if not wanted:
        return rows
    _require(name, "methods", wanted, list(dict.fromkeys(method_of(config) for config, _ in rows)))
    return [(config, row) for config, row in rows if method_of(config) in wanted]


def _require(name: str, what: str, wanted: tuple[str, ...], there: list[str]) -> None:
    missing = [value for value in wanted if value not in there]
    if missing:
        raise UserError(f"{name} has no run with {missing[0]}; its {what} are {', '.join(there)}.")
