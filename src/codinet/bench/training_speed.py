"""Time training steps of a routed network against those of the static network.

The steps are real ones with every loss on. Images are random bytes of the network's published size, because their
content does not affect speed. In each round every network takes the same number of steps, and the order rotates, so
that whatever slows a whole round cancels out in the ratios. A mode is a way to execute the same step.

Next to them, a plain loop of torchvision's network can take the same number of inputs per step (`plain_loop`).
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from codinet.bench.by_name import create_untrained, published_input
from codinet.bench.engine_speed import Progress, no_progress
from codinet.bench.plain_loop import NETWORKS, PlainLoop
from codinet.bench.profiling import conv_share, operation_times, peak_mb
from codinet.config import RunConfig
from codinet.cost import block_costs
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident
from codinet.environment import is_out_of_memory, seconds_of
from codinet.errors import UserError, first_line, unknown
from codinet.presets import as_static, paper
from codinet.resolving import resolve
from codinet.train import accelerate
from codinet.train.accelerate import StepFn
from codinet.train.budget import BudgetController
from codinet.train.stages import stages_of
from codinet.train.step import Speed, Step, Task

Build = Callable[[Speed], Step]
TORCHVISION = "torchvision"  # the network of the plain loop
_LONG = 60.0  # seconds of all rounds that are announced
_LEARNING_RATE = 1e-3  # small, so that random labels do not drive weights to infinity
_LONGEST = 20  # kernels or operators of a profile that are listed
_STEPS = 300  # length of the stage, for the budget controller


def _eager(build: Build) -> tuple[Step, StepFn]:
    step = build(Speed())
    return step, step


def _compiled(build: Build) -> tuple[Step, StepFn]:
    step = build(accelerate.compiled())
    return step, step


def _graph(build: Build) -> tuple[Step, StepFn]:
    step = build(accelerate.compiled())
    return step, accelerate.capture(step)


def _kernels(build: Build) -> tuple[Step, StepFn]:
    step = build(accelerate.fused())
    return step, accelerate.capture(step)


MODES: dict[str, Callable[[Build], tuple[Step, StepFn]]] = {
    "eager": _eager,
    "compiled": _compiled,
    "graph": _graph,
    "kernels": _kernels,
}
_CUDA_ONLY = frozenset({"graph", "kernels"})
_SET_UP = {"eager": "warm-up", "compiled": "compiling", "graph": "compiling and capturing"}


def pick_modes(names: Sequence[str], device: torch.device) -> list[str]:
    """The modes to time: those of `names`, or by default all on CUDA and eager elsewhere.

    Compiling for a CPU takes longer than the rest of the benchmark.
    """
    for name in names:
        if name not in MODES:
            raise unknown("mode", name, MODES)
        if name in _CUDA_ONLY and device.type != "cuda":
            raise UserError(f"The mode {name} needs a CUDA device; use --device cuda, or leave it out of --modes.")
    if names:
        return list(dict.fromkeys(names))
    return list(MODES) if device.type == "cuda" else ["eager"]


@dataclass(frozen=True)
class TrainSetting:
    """What all rows of a measurement have in common."""

    arch: str
    images: int  # of a step, L
    views: int  # of an image, M
    device: torch.device
    amp: bool
    router: str = "fc"
    seed: int = 0
    image_size: int | None = None  # None: the size that the network was published for


@dataclass(frozen=True)
class Trainer:
    """A network in training, in one mode."""

    network: str  # static, routed, torchvision
    mode: str
    run_step: StepFn
    peak_mb: float | None
    first_s: float  # of a step, a first estimate


@dataclass(frozen=True)
class _Built:
    """A step, and the tensors that are kept between steps."""

    run_step: StepFn
    state: Callable[[], Sequence[torch.Tensor]]


def require_torchvision_has(arch: str) -> None:
    """Raise a `UserError` if there is no plain loop for a network."""
    if arch not in NETWORKS:
        raise UserError(f"--torchvision compares {' and '.join(NETWORKS)}; remove it for {arch}.")


def measure_training(
    setting: TrainSetting,
    modes: Sequence[str],
    *,
    rounds: int,
    steps: int = 1,
    torchvision: bool = False,
    profile: bool = False,
    progress: Progress = no_progress,
    found: Callable[[str], None] = lambda _sentence: None,
) -> list[dict[str, Any]]:
    """Time training steps of the static and the routed network.

    Args:
        setting: The network and the size of a step.
        modes: Some of `MODES`.
        rounds: The number of rounds.
        steps: Steps of a round, timed as one.
        torchvision: Also time a plain loop of torchvision's network, compiled unless every mode is eager. If it fails,
            it is left out.
        profile: Also profile a step of each network after all rounds.
        progress: Called before each part of the work.
        found: Called with a first estimate as soon as a network runs, and with the reason if one is left out; compiling
            the others may take minutes.

    Returns:
        A row for the static and for the routed network in each mode, and one for torchvision's.
    """
    entries = [(mode, network) for mode in modes for network in ("static", "routed")]
    if torchvision:
        require_torchvision_has(setting.arch)
        entries.append(("eager" if {*modes} == {"eager"} else "compiled", TORCHVISION))
    inputs = setting.images * setting.views
    trainers = []
    for number, (mode, network) in enumerate(entries):
        progress(f"{mode}, {network}: {_SET_UP.get(mode, 'compiling')}", number / (len(entries) + 1))
        try:
            trainers.append(_trainer(setting, mode, network, steps))
        except UserError as error:
            if network != TORCHVISION:
                raise
            found(f"torchvision's loop is left out: {error}")
            continue
        found(f"{mode}, {network}: about {inputs / trainers[-1].first_s:,.0f} inputs/s")
    left = rounds * steps * sum(entry.first_s for entry in trainers)
    if left > _LONG:
        found(f"{rounds} rounds take about {left / 60:.0f} minutes; --rounds sets their number")
    seconds: dict[tuple[str, str], list[float]] = {(entry.mode, entry.network): [] for entry in trainers}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}", (len(entries) + number / rounds) / (len(entries) + 1))
        first = number % len(trainers)
        for entry in [*trainers[first:], *trainers[:first]]:
            seconds[entry.mode, entry.network].append(_seconds(entry.run_step, steps, setting.device) / steps)
    plain = next((own for (_, network), own in seconds.items() if network == TORCHVISION), None)
    rows = []
    for entry in trainers:
        own, ours = seconds[entry.mode, entry.network], entry.network != TORCHVISION
        times = operation_times(entry.run_step, setting.device) if profile else {}
        rows.append(
            {
                "arch": setting.arch,
                "network": entry.network,
                "routed": entry.network == "routed",
                "mode": entry.mode,
                "inputs_per_step": inputs,
                "inputs_per_s": inputs / statistics.median(own),
                "ms_per_step": 1e3 * statistics.median(own),
                "peak_mb": entry.peak_mb,
                "device": setting.device.type,
                "precision": "bfloat16" if setting.amp else "float32",
                "conv_share": conv_share(times, setting.device),
                "longest": _longest(times) if profile else None,
                "against_static": _ratio(own, seconds[entry.mode, "static"] if ours else None),
                "against_eager": _ratio(own, seconds.get(("eager", entry.network))),
                "speed_against_torchvision": None if plain is None else _ratio(plain, own),
            }
        )
    return rows


def _longest(times: dict[str, float]) -> list[dict[str, Any]]:
    return [{"name": name, "ms": time / 1e3} for name, time in list(times.items())[:_LONGEST]]


def _trainer(setting: TrainSetting, mode: str, network: str, steps: int) -> Trainer:
    made: list[_Built] = []
    on_cuda = setting.device.type == "cuda"

    def make() -> None:
        made.append(
            _plain(setting, mode) if network == TORCHVISION else _own(setting, mode, routed=network == "routed")
        )
        _seconds(made[0].run_step, 2 if on_cuda else 1, setting.device)

    try:
        peak = peak_mb(make, setting.device)
    except UserError:
        raise
    except Exception as error:  # compilers raise exceptions of any type
        if is_out_of_memory(error):
            raise UserError(
                f"{setting.device} has too little memory for steps of {setting.images} images in {setting.views} "
                "views; use a smaller --batch."
            ) from error
        if network == TORCHVISION:
            raise UserError(f"it fails on this machine ({first_line(error)}).") from error
        if mode == "eager":
            raise
        raise UserError(
            f"The mode {mode} fails on this machine ({first_line(error)}); leave it out of --modes."
        ) from error
    built = made[0]
    if on_cuda:
        return Trainer(network, mode, built.run_step, peak, _seconds(built.run_step, steps, setting.device) / steps)
    # The peak of the process includes compilers and caches; that of a later step does not. A step may take minutes, so
    # the same one is the first estimate.
    taken: list[float] = []
    later = peak_mb(lambda: taken.append(_seconds(built.run_step, 1, setting.device)), setting.device)
    peak = None if peak is None or later is None else later + _megabytes(built.state())
    return Trainer(network, mode, built.run_step, peak, taken[0])


def _own(setting: TrainSetting, mode: str, *, routed: bool) -> _Built:
    step, run_step = MODES[mode](lambda speed: _step(setting, speed, routed=routed))
    return _Built(run_step, lambda: [*step.model.state_dict().values(), *step.optimizer_state().values()])


def _plain(setting: TrainSetting, mode: str) -> _Built:
    torch.manual_seed(setting.seed)
    shape, classes = published_input(setting.arch, setting.image_size)
    loop = PlainLoop(
        setting.arch,
        setting.images * setting.views,
        setting.device,
        amp=setting.amp,
        image_size=shape[1],
        classes=classes,
        compile=torch.compile if mode == "compiled" else lambda model: model,
    )
    return _Built(loop, loop.state)


def _step(setting: TrainSetting, speed: Speed, *, routed: bool) -> Step:
    """A step of stage 1 of the paper's recipe with a budget, or of static training, on random bytes."""
    config, device = _config(setting, routed=routed), setting.device
    torch.manual_seed(setting.seed)
    untrained, shape, classes = create_untrained(
        setting.arch, routed=routed, router=setting.router, image_size=setting.image_size
    )
    model = untrained.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    number = 2 * setting.images
    data = Resident(
        torch.randint(0, 256, (number, *shape), dtype=torch.uint8).to(device),
        torch.randint(0, classes, (number,)).to(device),
        torch.full((3,), 127.5, device=device),
        torch.full((3,), 73.9, device=device),
    )
    budget = config.losses.budget
    controller = None if budget is None else BudgetController(budget, steps=_STEPS, device=device)
    table = block_costs(model, shape)
    augmentation = Augmentation(shape[1:], setting.views, flip=True, pad=shape[1] // 8)
    task = Task(model, data, table, config, augmentation, controller, amp=setting.amp)
    step = Step(task, stages_of(config)[0], speed)
    step.index_L.copy_(torch.randperm(number)[: setting.images])
    step.lr.fill_(_LEARNING_RATE)
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


def _seconds(run_step: StepFn, steps: int, device: torch.device) -> float:
    def run() -> None:
        for _ in range(steps):
            run_step()

    return seconds_of(run, device)


def _megabytes(tensors: Sequence[torch.Tensor]) -> float:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 2**20


def _ratio(own: Sequence[float], other: Sequence[float] | None) -> float | None:
    """The median over rounds of the ratio of two times; None if the other was not measured."""
    return None if other is None else statistics.median(a / b for a, b in zip(own, other, strict=True))
