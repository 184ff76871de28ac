"""Training stages: those of a run's method, and how the decay of the margins fades within one."""

from dataclasses import replace

from codinet.checks import require_kind, require_number
from codinet.config import RunConfig
from codinet.methods import method_named
from codinet.methods.method import Stage as Stage
from codinet.methods.method import static_stage
from codinet.train.budget import SETTLE

GROW_UNTIL = 0.7  # fraction of stage 1 after which views have the size of the images
GROW_STEP = 32  # pixels


def decay_scale(done: float) -> float:
    """Return the factor of the margins' decay, given the fraction of a stage that is done.

    It is 1 in the first part, so that routers can move. It falls to 0 at the end, so that routers become certain and
    the relaxed network approaches the hard one.
    """
    require_number("done", done, 0, 1)
    return min(1.0, (1 - done) / (1 - SETTLE))


def view_side(config: RunConfig, side: int, epoch: int) -> int:
    """Return the side length of the views of an epoch (`--grow-from`).

    It grows in equal steps of at least GROW_STEP pixels, so that few sizes need a compiled step.

    Args:
        config: A resolved config.
        side: The side length of the images.
        epoch: The epoch, counted from 0 over all stages.
    """
    first, last = config.data.grow_from, config.schedule.epochs - 1
    if first is None or epoch >= GROW_UNTIL * last:
        return side
    steps = max(1, (side - first) // GROW_STEP)
    return first + (side - first) * int(steps * epoch / (GROW_UNTIL * last)) // steps


def stages_of(config: RunConfig, *, new_classifier: bool = False) -> list[Stage]:
    """Return the stages of a run, in order.

    Args:
        config: A resolved config.
        new_classifier: Whether the classifier is new, although the run starts from trained weights. Then the stages are
            those of a run from new weights.
    """
    require_kind("config", config, RunConfig, "a RunConfig")
    if new_classifier:
        config = replace(config, extra=replace(config.extra, start=None, weights=None, pretrained=False))
    return method_named(config.method).stages(config) if config.network.routed else static_stage(config.schedule)


def path_progress(stages: list[Stage], number: int, done: float) -> float:
    """Return the fraction of the stages with a target for the cost that is done after `done` epochs of stage `number`.

    It is 1 from the end of these stages on. A stage without a ramp has reached its end, as far as the budget goes.
    """
    acting = [stage.epochs for stage in stages if stage.has_target]
    before = sum(stage.epochs for stage in stages[:number] if stage.has_target)
    return (before + done * stages[number].has_target) / sum(acting) if acting else 1.0
