"""How fast a network trains on this machine: the real step with every loss on, against the static net's.

Images are random bytes of the network's published size; what they show changes nothing about speed. In each
round every contestant takes the same number of steps, and the order turns from round to round, so that what
slows a whole round cancels out in the ratios. A mode is a name and a function that makes the step; all of
them change speed alone.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from codinet.backbones import ARCHITECTURES
from codinet.bench.conv_share import conv_share
from codinet.bench.memory import peak_mb
from codinet.config import RunConfig, resolve
from codinet.cost import block_costs
from codinet.data.resident import Resident
from codinet.environment import is_out_of_memory
from codinet.errors import UserError, first_line, unknown
from codinet.model import create_model
from codinet.presets import as_static, paper
from codinet.train import accelerate
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step

Build = Callable[[Speed], Step]
Go = Callable[[], None]
WARM_UP = 2  # steps
_RATE = 1e-3  # of learning; small, for random labels must not drive weights to infinity
_STEPS = 300  # of the stage that the controller thinks it is in


def _eager(build: Build) -> tuple[Step, Go]:
    step = build(Speed())
    return step, step


def _compiled(build: Build) -> tuple[Step, Go]:
    step = build(accelerate.compiled())
    return step, step


def _graph(build: Build) -> tuple[Step, Go]:
    step = build(accelerate.compiled())
    return step, accelerate.capture(step)


def _kernels(build: Build) -> tuple[Step, Go]:
    step = build(accelerate.fused())
    return step, accelerate.capture(step)


MODES: dict[str, Callable[[Build], tuple[Step, Go]]] = {
    "eager": _eager,
    "compiled": _compiled,
    "graph": _graph,
    "kernels": _kernels,
}
_CUDA_ONLY = frozenset({"graph", "kernels"})


def pick_modes(wished: Sequence[str], device: torch.device) -> list[str]:
    """The modes wished, or those that suit the device: compiling for a CPU takes longer than the bench."""
    for name in wished:
        if name not in MODES:
            raise unknown("mode", name, MODES)
        if name in _CUDA_ONLY and device.type != "cuda":
            raise UserError(f"The mode {name} needs a CUDA device; use --device cuda, or leave it out of --modes.")
    if wished:
        return list(dict.fromkeys(wished))
    return list(MODES) if device.type == "cuda" else ["eager"]


@dataclass(frozen=True)
class TrainSetting:
    """What all rows of a measurement share."""

    arch: str
    images: int  # L, of a step
    views: int  # M
    device: torch.device
    amp: bool
    router: str = "fc"
    seed: int = 0


@dataclass(frozen=True)
class Trainer:
    """A network in training, in one mode."""

    routed: bool
    mode: str
    step: Step
    go: Go
    peak_mb: float | None


def measure_training(
    setting: TrainSetting, modes: Sequence[str], *, rounds: int, steps: int = 1
) -> list[dict[str, Any]]:
    """A row for the static and the routed net in each mode. `steps` are taken in each round and timed as one."""
    trainers = [_trainer(setting, mode, routed=routed) for mode in modes for routed in (False, True)]
    seconds: dict[tuple[str, bool], list[float]] = {(entry.mode, entry.routed): [] for entry in trainers}
    for number in range(rounds):
        turn = number % len(trainers)
        for entry in [*trainers[turn:], *trainers[:turn]]:
            seconds[entry.mode, entry.routed].append(_seconds(entry.go, steps, setting.device) / steps)
    inputs = setting.images * setting.views
    rows = []
    for entry in trainers:
        own = seconds[entry.mode, entry.routed]
        rows.append(
            {
                "arch": setting.arch,
                "routed": entry.routed,
                "mode": entry.mode,
                "inputs_per_step": inputs,
                "inputs_per_s": inputs / statistics.median(own),
                "ms_per_step": 1e3 * statistics.median(own),
                "peak_mb": entry.peak_mb,
                "device": setting.device.type,
                "precision": "bfloat16" if setting.amp else "float32",
                "conv_share": conv_share(entry.go, setting.device),
                "against_static": _ratio(own, seconds[entry.mode, False]),
                "against_eager": _ratio(own, seconds.get(("eager", entry.routed))),
            }
        )
    return rows


def _trainer(setting: TrainSetting, mode: str, *, routed: bool) -> Trainer:
    made: list[tuple[Step, Go]] = []

    def make() -> None:
        step, go = MODES[mode](lambda speed: _step(setting, speed, routed=routed))
        made.append((step, go))
        _seconds(go, WARM_UP, setting.device)

    try:
        peak = peak_mb(make, setting.device)
    except UserError:
        raise
    except Exception as error:  # compilers raise what they like
        if is_out_of_memory(error):
            raise UserError(
                f"The memory of {setting.device} is too small for steps of {setting.images} images in "
                f"{setting.views} views; use a smaller --batch."
            ) from error
        if mode == "eager":
            raise
        raise UserError(
            f"The mode {mode} does not work here ({first_line(error)}); leave it out of --modes."
        ) from error
    step, go = made[0]
    if setting.device.type != "cuda" and peak is not None:
        # The process's own figure has compilers and caches in it; a step once everything is there has not.
        peak = peak_mb(go, setting.device)
        peak = None if peak is None else peak + _held_mb(step)
    return Trainer(routed, mode, step, go, peak)


def _step(setting: TrainSetting, speed: Speed, *, routed: bool) -> Step:
    """Stage 1 of the paper's recipe with a budget, or the static net's training, on random bytes."""
    config, device = _config(setting, routed=routed), setting.device
    size = ARCHITECTURES[setting.arch].image_size
    torch.manual_seed(setting.seed)
    classes = 10 if size == 32 else 1000
    model = create_model(setting.arch, num_classes=classes, routed=routed, router=setting.router).to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    number = 2 * setting.images
    data = Resident(
        torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8).to(device),
        torch.randint(0, classes, (number,)).to(device),
        torch.full((3,), 127.5, device=device),
        torch.full((3,), 73.9, device=device),
    )
    budget = config.losses.budget
    controller = None if budget is None else BudgetController(budget, steps=_STEPS, device=device)
    table = block_costs(model, (3, size, size))
    step = Step(
        model,
        data,
        table,
        config,
        stages_of(config)[0],
        controller,
        pad=size // 8,
        flip=True,
        amp=setting.amp,
        speed=speed,
    )
    step.index_L.copy_(torch.randperm(number)[: setting.images])
    step.lr.fill_(_RATE)
    if controller:
        controller.aim(1.0)
    model.train()
    return step


def _config(setting: TrainSetting, *, routed: bool) -> RunConfig:
    config = paper("random")
    config = replace(
        config,
        network=replace(config.network, arch=setting.arch, router=setting.router),  # type: ignore[arg-type]
        schedule=replace(config.schedule, batch=setting.images, views=setting.views),
        seed=setting.seed,
    )
    config = resolve(config, gpu=setting.device.type == "cuda")
    return config if routed else as_static(config)


def _seconds(go: Go, steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        go()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _held_mb(step: Step) -> float:
    """Weights and momentum, which stay from step to step."""
    held = [*step.model.state_dict().values(), *step.momentum().values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in held) / 2**20


def _ratio(own: Sequence[float], other: Sequence[float] | None) -> float | None:
    """Median over rounds of the time over another's; None where the other was not measured."""
    return None if other is None else statistics.median(a / b for a, b in zip(own, other, strict=True))
