"""Named recipes: each function returns a complete config for a data source.

Flags of `codinet train` replace a preset's values one by one. Importing this module does not import torch.
"""

from collections.abc import Callable
from dataclasses import replace

from codinet.config import LossConfig, NetworkConfig, RunConfig, ScheduleConfig


def paper(source: str) -> RunConfig:
    """The paper's recipe, as we interpret it: 250 + 20 epochs, α = β = 0.2, m_c = 0.2, m_d = 0.5, multi-step.

    codinet train cifar10 --preset paper --arch resnet110 --budget 0.57
    """
    return RunConfig(source)


def best(source: str) -> RunConfig:
    """The best recipe found: 40 + 5 epochs, cosine from 0.4, weight decay 5e-4, α = β = 1, m_d = 1, score decay.

    Meant to start from a static run that is also the teacher: --start RUN --teacher RUN. See docs/recipes.md.

    codinet train cifar10 --preset best --arch resnet110 --budget 0.57 --watch train
    """
    return RunConfig(
        source,
        losses=LossConfig(alpha=1.0, beta=1.0, m_d=1.0, score_decay=1e-3),
        schedule=ScheduleConfig(
            epochs=40, finetune=5, batch=512, lr=0.4, finetune_lr=0.04, schedule="cosine", weight_decay=5e-4
        ),
    )


def quick(source: str) -> RunConfig:
    """A short run that routes well: 30 + 6 epochs, cosine, α = β = 1, m_d = 1.

    codinet train cifar10 --preset quick --arch resnet20 --budget 0.6
    """
    return RunConfig(
        source,
        losses=LossConfig(alpha=1.0, beta=1.0, m_d=1.0),
        schedule=ScheduleConfig(epochs=30, finetune=6, schedule="cosine"),
    )


def demo(source: str) -> RunConfig:
    """The run of `make demo` on the embedded digits: a routed resnet20 at 0.6 of its static cost.

    codinet train digits --preset demo          about 40 s on two cores; at least 96 % and ten paths
    """
    config = quick(source)
    return replace(config, network=NetworkConfig(arch="resnet20"), losses=replace(config.losses, budget=0.6))


def small(source: str) -> RunConfig:
    """Fine-tuning on a few images of your own, from a network of the zoo: 15 + 3 epochs of small, gentle steps.

    The default for small image folders and .npz files, which start from the zoo. See docs/your-data.md.

    codinet train flowers --preset small --budget 0.6 --start zoo:cifar10-resnet32-065
    """
    return RunConfig(
        source,
        losses=LossConfig(alpha=1.0, beta=1.0, m_d=1.0),
        schedule=ScheduleConfig(epochs=15, finetune=3, batch=32, lr=0.05, schedule="cosine"),
    )


PRESETS: dict[str, Callable[[str], RunConfig]] = {
    "paper": paper,
    "best": best,
    "quick": quick,
    "demo": demo,
    "small": small,
}


def _require_config(config: RunConfig) -> None:
    from codinet.checks import require_kind

    require_kind("config", config, RunConfig, "a RunConfig")
    require_kind("network", config.network, NetworkConfig, "a NetworkConfig")
    require_kind("losses", config.losses, LossConfig, "a LossConfig")


def as_static(config: RunConfig) -> RunConfig:
    """The same training without routing: the baseline of cost shares."""
    _require_config(config)
    return replace(
        config,
        network=replace(config.network, routed=False),
        losses=replace(config.losses, budget=None, gamma=None),
    )


def as_vanilla(config: RunConfig) -> RunConfig:
    """Routing at the same budget without the consistency and diversity losses."""
    _require_config(config)
    return replace(config, losses=replace(config.losses, alpha=0.0, beta=0.0))
