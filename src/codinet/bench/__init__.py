"""How fast engines are, against the static net and against what their multiply-adds promise."""

from codinet.bench.compare import compare
from codinet.bench.contest import ENGINES, Contestant, contestants, pick_engines
from codinet.bench.drawn import settle, with_run_rate
from codinet.bench.measure import Setting, measure

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
