"""What metrics.jsonl holds that is the same, bit for bit, if a training is repeated."""

import json
from pathlib import Path

from codinet.runs import DATA_WAIT


def repeated_metrics(run: Path) -> list[str]:
    """The lines of the metrics of a run folder without the measured time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row.pop(DATA_WAIT) <= 1 for row in rows)
    return [json.dumps(row) for row in rows]
