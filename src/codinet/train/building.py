"""Building the step of a stage as fast as the device allows. What fails is reported once and left out afterwards."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from codinet.data.placing import Loader
from codinet.errors import UserError, first_line
from codinet.train import accelerate
from codinet.train.distributed import World
from codinet.train.stages import Stage
from codinet.train.step import Speed, Step

Go = Callable[[], None]  # takes a step


@dataclass(frozen=True)
class Means:
    """How a training is executed, as opposed to what is trained; see `loop.train`."""

    compile: bool
    amp: bool
    kernels: bool
    sync_bn: bool
    loader: Loader


class Builder:
    """Builds steps. In distributed training all processes build the same: what fails in one is left out in all."""

    def __init__(
        self,
        make: Callable[[Stage, Speed], Step],
        means: Means,
        device: torch.device,
        world: World,
        warn: Callable[[str], None],
    ) -> None:
        """`make` builds the step itself, given a `Speed`."""
        self.make, self.device, self.world, self.warn = make, device, world, warn
        self.compile, self.kernels, self.sync_bn = means.compile, means.kernels, means.sync_bn

    def build(self, stage: Stage) -> tuple[Step, Go]:
        """The step, and the function that takes it."""
        while self.compile:
            fast, reason = self._try(stage)
            reasons = [each for each in self.world.gather(reason) if each is not None]
            if fast and not reasons:
                return fast
            del fast  # two steps of one network must not both act on its gradients
            what = "The fused kernels" if self.kernels else "Compiling or capturing the step"
            self.warn(f"{what} failed ({reasons[0]}); going on without.")
            self.kernels, self.compile = False, self.kernels
        step = self.make(stage, Speed())
        return step, step

    def _try(self, stage: Stage) -> tuple[tuple[Step, Go] | None, str | None]:
        """The step compiled and captured, or why that failed."""
        try:
            # Compiled code cannot contain the exchange of BatchNorm's statistics.
            speed = Speed() if self.sync_bn else accelerate.fused() if self.kernels else accelerate.compiled()
            step = self.make(stage, speed)
            return (step, accelerate.capture(step) if self.device.type == "cuda" else step), None
        except UserError:
            raise
        except Exception as error:  # a compiler may raise anything, and training does not depend on it
            return None, first_line(error)
