"""The five methods that the paper compares, as forms of one config, and which of a config's values they use."""

from collections.abc import Callable
from dataclasses import replace

from codinet.config import LossConfig, NetworkConfig, RunConfig
from codinet.presets import as_static, as_vanilla


def as_consistent(config: RunConfig) -> RunConfig:
    """Routing with the consistency loss alone."""
    return replace(config, losses=replace(config.losses, beta=0.0))


def as_diverse(config: RunConfig) -> RunConfig:
    """Routing with the diversity loss alone."""
    return replace(config, losses=replace(config.losses, alpha=0.0))


METHODS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "static": as_static,
    "vanilla": as_vanilla,
    "con": as_consistent,
    "div": as_diverse,
    "codinet": lambda config: config,
}


def method_of(config: RunConfig) -> str:
    """Which of the methods a config is."""
    if not config.network.routed:
        return "static"
    weights = (config.losses.alpha > 0, config.losses.beta > 0)
    return {(False, False): "vanilla", (True, False): "con", (False, True): "div"}.get(weights, "codinet")


def canonical(config: RunConfig) -> RunConfig:
    """The config with values that nothing uses at their defaults, so that equal trainings are equal configs."""
    network, losses = config.network, config.losses
    if not network.routed:
        plain = NetworkConfig(arch=network.arch, routed=False, stride_on=network.stride_on)
        # A static network has one stage.
        return replace(config, network=plain, losses=LossConfig(), schedule=replace(config.schedule, finetune=0))
    if losses.alpha == 0:
        losses = replace(losses, m_c=LossConfig.m_c)
    if losses.beta == 0:
        losses = replace(losses, m_d=LossConfig.m_d)
    return replace(config, losses=losses)
