"""Named recipes: each function returns a complete config for a data source.

Flags of `codinet train` replace a preset's values one by one. Importing this module does not import torch.
"""

from collections.abc import Callable
from dataclasses import replace

from codinet.config import RESIZED, DataConfig, ExtraConfig, LossConfig, NetworkConfig, RunConfig, ScheduleConfig
from codinet.methods import DEFAULT
from codinet.specs import OWN, parse_spec


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


def modern(source: str) -> RunConfig:
    """For networks of timm, of torchvision and of your own: 100 + 8 epochs of AdamW, 5 of them warm-up, cosine.

    Weight decay 0.05 except on norms and biases, gradients clipped to norm 1, label smoothing 0.1, α = β = 1, m_d = 1.
    The default with --arch timm:NAME, torchvision:NAME or package.module:function; `codinet train` then adds
    --drop-path 0.1 if the network supports it. Learning rates are for steps of 256 images. See docs/recipes.md.

    codinet train photos --preset modern --arch timm:convnext_atto --budget 0.6
    """
    return RunConfig(
        source,
        losses=LossConfig(alpha=1.0, beta=1.0, m_d=1.0),
        schedule=ScheduleConfig(
            epochs=100,
            finetune=8,
            lr=1e-3,
            finetune_lr=1e-4,
            schedule="cosine",
            warmup=5.0,
            optimizer="adamw",
            weight_decay=0.05,
            decay_norms=False,
            clip=1.0,
        ),
        extra=ExtraConfig(label_smoothing=0.1),
    )


def pretrained(source: str) -> RunConfig:
    """`modern` for such networks with trained weights: 30 + 3 epochs at a fifth of the learning rate, warm-up 2.

    The default if --pretrained, --weights or --start is given too.

    codinet train photos --preset pretrained --arch timm:convnext_atto --pretrained --budget 0.6
    """
    config = modern(source)
    schedule = replace(config.schedule, epochs=30, finetune=3, lr=2e-4, finetune_lr=2e-5, warmup=2.0)
    return replace(config, schedule=schedule)


def imagenet(source: str) -> RunConfig:
    """The paper's recipe for ImageNet: ResNet-50, stride on the first 1×1 convolution, 224 pixels, 100 + 10 epochs.

    The learning rate falls tenfold every 30 epochs; views are random parts of at least 0.08 of an image, and the test
    resizes to 256 and crops 224. Steps of 256 images in two views. See docs/imagenet.md.

    codinet train imagenet --preset imagenet --budget 0.55
    """
    return RunConfig(
        source,
        data=DataConfig(image_size=224, crop=0.875, view=RESIZED, min_area=0.08),
        network=NetworkConfig(arch="resnet50", stride_on="1x1"),
        schedule=ScheduleConfig(epochs=100, finetune=10, batch=256, milestones=(0.3, 0.6, 0.9)),
    )


PRESETS: dict[str, Callable[[str], RunConfig]] = {
    "paper": paper,
    "best": best,
    "quick": quick,
    "demo": demo,
    "small": small,
    "modern": modern,
    "pretrained": pretrained,
    "imagenet": imagenet,
}
LIBRARY_PRESETS = ("modern", "pretrained")  # for networks that are not codinet's own
DROP_PATH = 0.1  # of these presets, where the network supports it


def default_preset(arch: str, *, trained: bool) -> str:
    """The preset of a run for which none is given.

    Args:
        arch: The name of the network.
        trained: Whether it starts from trained weights.

    Returns:
        A key of `PRESETS`.
    """
    if parse_spec(arch).library == OWN:
        return "paper"
    return "pretrained" if trained else "modern"


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
        losses=replace(config.losses, budget=None, gamma=None, target_rate=None),
        method=DEFAULT,
    )


def as_vanilla(config: RunConfig) -> RunConfig:
    """Routing at the same budget without the consistency and diversity losses."""
    _require_config(config)
    return replace(config, losses=replace(config.losses, alpha=0.0, beta=0.0))
