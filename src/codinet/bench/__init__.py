"""Benchmarks: the speed of engines and of training, compared with the static network and with the cost in MACs."""

from codinet.bench.engine_speed import ENGINES, Contestant, Setting, compare, contestants, measure, pick_engines
from codinet.bench.run_rate import settle, with_run_rate

__all__ = [
    "ENGINES",
    "Contestant",
    "Setting",
    "compare",
    "contestants",
    "measure",
    "pick_engines",
    "settle",
    "with_run_rate",
]
