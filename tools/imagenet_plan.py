"""How long a training on ImageNet takes on so many GPUs, and what limits it: a model with measured inputs.

    python -m tools.imagenet_plan --views-per-second 4710 --files-per-core 255

For each number of GPUs it compares, per step: the GPU's computation, decoding on the cores next to it, the all-reduce
of the gradients and the all-gather of the paths for the diversity loss. Decoding runs beside the computation, so the
slower of the two counts. The exchange of gradients overlaps with the backward pass, so only what exceeds it counts. The
all-gather does not overlap. The first two numbers are measured by `codinet bench resnet50 --train` and
`python -m tools.photo_speed`.
"""

import sys
from dataclasses import dataclass
from typing import NamedTuple

import tyro

from codinet.cli import guarded
from codinet.errors import UserError

IMAGES = 1_281_167  # of ImageNet's training set
PARAMETERS = 25_557_032  # of ResNet-50 (torchvision), without routers
BLOCKS = 16


class Step(NamedTuple):
    """The milliseconds of one step, by what takes them."""

    compute: float
    decode: float
    all_reduce: float
    all_gather: float

    @property
    def total(self) -> float:
        """The length of the step."""
        hidden = 2 / 3 * self.compute  # the backward pass
        return max(self.compute + max(0.0, self.all_reduce - hidden) + self.all_gather, self.decode)

    @property
    def limit(self) -> str:
        """What the step waits for most."""
        if self.decode > self.compute:
            return "decoding"
        return "all-reduce" if self.total > 1.1 * self.compute else "computation"


@dataclass(frozen=True)
class Plan:
    """What is known of the machines and the training.

    Args:
        views_per_second: Inputs that one GPU trains on per second; an image in two views is two inputs.
        files_per_core: Image files that one core decodes and cuts into views per second.
        gpus: Numbers of GPUs.
        cores_per_gpu: Cores that decode for one GPU.
        gpus_per_machine: GPUs of a machine, connected faster than machines.
        local_gbyte: Bandwidth between the GPUs of a machine, in gigabytes per second.
        network_gbyte: Bandwidth of a machine's network for each of its GPUs, in gigabytes per second.
        latency_us: Time of an exchange without data, in microseconds.
        batch: Images per step of all GPUs.
        views: Views of an image.
        epochs: Epochs of both stages.
        dollars_per_hour: Price of a GPU; 0 leaves the cost out.
    """

    views_per_second: float
    files_per_core: float
    gpus: tuple[int, ...] = (1, 8, 64)
    cores_per_gpu: int = 16
    gpus_per_machine: int = 8
    local_gbyte: float = 300.0
    network_gbyte: float = 25.0
    latency_us: float = 30.0
    batch: int = 256
    views: int = 2
    epochs: int = 110
    dollars_per_hour: float = 0.0

    def step(self, gpus: int) -> Step:
        """The step of one GPU among so many."""
        images = self.batch / gpus
        bandwidth = self.local_gbyte if gpus <= self.gpus_per_machine else self.network_gbyte
        others = (gpus - 1) / gpus
        paths = 4 * self.batch * self.views * BLOCKS  # bytes
        waits = 0.0 if gpus == 1 else self.latency_us / 1e3
        return Step(
            compute=1e3 * images * self.views / self.views_per_second,
            decode=1e3 * images / (self.files_per_core * self.cores_per_gpu),
            all_reduce=waits + 1e3 * 2 * others * 4 * PARAMETERS / (bandwidth * 1e9) if gpus > 1 else 0.0,
            all_gather=waits + 1e3 * others * paths / (bandwidth * 1e9) if gpus > 1 else 0.0,
        )

    def hours(self, gpus: int) -> float:
        """The hours of a whole training."""
        return self.epochs * (IMAGES // self.batch) * self.step(gpus).total / 3.6e6


def table(plan: Plan) -> str:
    """The plan as a table in Markdown."""
    head = ["GPUs", "compute", "decode", "all-reduce", "all-gather", "step, ms", "limit", "hours"]
    head += ["GPU hours", "cost, $"] if plan.dollars_per_hour else ["GPU hours"]
    lines = [" | ".join(head), " | ".join("---:" for _ in head)]
    for gpus in plan.gpus:
        step, hours = plan.step(gpus), plan.hours(gpus)
        cells = [str(gpus), *(f"{value:.2f}" for value in step), f"{step.total:.2f}", step.limit, f"{hours:.1f}"]
        cells.append(f"{hours * gpus:.0f}")
        cells += [f"{hours * gpus * plan.dollars_per_hour:,.0f}"] if plan.dollars_per_hour else []
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def main(plan: tyro.conf.OmitArgPrefixes[Plan]) -> int:
    """Print the plan."""
    positive = (
        plan.views_per_second,
        plan.files_per_core,
        plan.local_gbyte,
        plan.network_gbyte,
        plan.batch,
        *plan.gpus,
    )
    if min(positive) <= 0:
        raise UserError("All speeds and numbers must be above 0.")
    print(table(plan))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: tyro.cli(main)))
