"""The settings of a training run: one frozen dataclass, saved as `config.json` and read back unchanged.

Device and folders are not part of it, so a run can move between machines. `resolving.resolve` fills in defaults and
checks every value. The docstrings of the settings are the help texts of `codinet train`. Importing this module does
not import torch.
"""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from codinet.errors import UserError
from codinet.methods import DEFAULT, NAMES

DATA_ROOT = Path(os.environ.get("CODINET_DATA", "data"))  # default of --data-root
DEFAULT_BUDGET = 0.6
SMALLEST_CROP = 0.01
DEFAULT_DISTILL = 0.5
PADDED: Literal["padded"] = "padded"  # values of --view
RESIZED: Literal["resized"] = "resized"
PARTS = ("data", "network", "losses", "schedule", "extra")  # of a RunConfig, each a dataclass
# Entries that older config files lack; they get their defaults.
_ADDED_LATER = frozenset(
    {"cutout", "extra", "milestones", "watch", "crop", "blocks", "drop_path", "optimizer", "decay_norms", "clip"}
    | {"pretrained", "weights", "weights_sha256", "view", "min_area", "on_damaged", "grow_from", "accumulate"}
    | {"method", "target_rate", "rate_weight", "policy_weight", "penalty", "widths", "teacher_views"}
)

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[NAMES]


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from."""

    image_size: int | None = None
    """Side length in pixels to which the images of a folder are resized. Default: their own size, or for timm:NAME and
    torchvision:NAME the size that the network was published for."""
    crop: float | None = None
    """Fraction of the shorter side of a folder's image that is kept, at the centre. Default: 1, or what the library
    states for a network of timm or torchvision."""
    view: Literal["auto", "padded", "resized"] = "auto"
    """How training views are cut: whole images that are padded and shifted, or random parts that are scaled (random
    resized crops). By default, "auto", resized for image folders above 64 pixels and padded otherwise."""
    min_area: float = 0.25
    """With --view resized, the smallest part of an image that a view shows, as a fraction of its area."""
    grow_from: int | None = None
    """With --view resized, the side length in pixels of the first views, e.g. 128. It grows to that of the images over
    the first 0.7 of stage 1, which saves time. Default: all views have the size of the images."""
    on_damaged: Literal["stop", "skip"] = "stop"
    """What to do with image files that cannot be read: stop, or skip them and say which."""
    holdout: int = 0
    """Training images to hold out; every epoch is evaluated on them instead of the test set."""
    watch: Literal["test", "train"] = "test"
    """What every epoch is evaluated on if nothing is held out. With "train", the test set is used at the end only."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network and its routers."""

    arch: str = "resnet32"
    """A network listed by `codinet models`, timm:NAME, torchvision:NAME, or package.module:function."""
    routed: bool = True
    """Whether blocks have routers; without them, this is the plain residual network."""
    router: Literal["fc", "cnn", "rnn", "narrow", "policy", "hash", "bias", "halting", "spatial"] = "fc"
    """Two linear layers (the paper's), a convolution, or an LSTM along the depth. A method that does not use fc has
    another default: narrow, policy, hash, bias, halting or spatial; see docs/methods.md."""
    relaxation: Literal["gumbel", "straight-through"] = "gumbel"
    """How decisions are relaxed in stage 1."""
    tau: float = 1.0
    """Temperature of the relaxation."""
    stride_on: Literal["3x3", "1x1"] = "3x3"
    """Which convolution of a bottleneck has the stride (the paper's ResNet-50 numbers use 1x1)."""
    widths: tuple[int, ...] = ()
    """Channels between the two convolutions of each block of a pruned network, e.g. of a resnet14 5 16 20 32 9 64.
    Default: as many as the network has."""
    blocks: str | None = None
    """Names of the residual blocks of a timm or torchvision network or of your own, with wildcards and separated by
    commas, e.g. "stages.*.blocks.*". Default: those of its family."""
    drop_path: float = 0.0
    """Stochastic depth of a timm or torchvision network: the rate of its last block, e.g. 0.1."""

    @property
    def title(self) -> str:
        """The name of the network, and whether it is pruned."""
        return f"{self.arch}, pruned" if self.widths else self.arch


@dataclass(frozen=True)
class ModelConfig(NetworkConfig):
    """Everything a network is built from: the network's settings and what its data determines."""

    num_classes: int = 10
    """Number of classes."""
    in_channels: int = 3
    """Channels of an image."""
    image_shape: tuple[int, int, int] | None = None
    """Channels, height and width of the images it is trained on; None if unknown."""
    classes: tuple[str, ...] | None = None
    """Names of the classes; None if unknown."""
    mean: tuple[float, ...] | None = None
    """Mean of each channel, of bytes from 0 to 255; None if unknown. Images are normalised as (bytes - mean) / std."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each channel; None if unknown."""
    crop: float = 1.0
    """The fraction of the shorter side that is kept, at the centre, when an image file is scaled."""


@dataclass(frozen=True)
class LossConfig:
    """The weights and margins of Eq. 8, 9, 11, 12."""

    budget: float | None = None
    """Target cost as a share of the static network's MACs, e.g. 0.57. Default: 0.6 if --gamma is not given."""
    gamma: float | None = None
    """Fixed weight of the cost loss, as in the paper, instead of a budget."""
    alpha: float = 0.2
    """Weight of the consistency loss."""
    beta: float = 0.2
    """Weight of the diversity loss."""
    m_c: float = 0.2
    """Margin of the consistency loss."""
    m_d: float = 0.5
    """Margin of the diversity loss."""
    score_decay: float = 1e-4
    """Decay of the routers' score margins, which keeps decisions flexible until the last epochs; 0 in the paper."""
    paths: Literal["noise-free", "noised"] = "noise-free"
    """Which relaxed paths the losses use; "noised" in the paper."""
    target_rate: float | None = None
    """Fraction of the images that should run each block, of a method with target rates, instead of a budget. With a
    budget, it is the rate that costs the budget."""
    rate_weight: float = 2.0
    """Weight of the target-rate loss."""
    policy_weight: float | None = None
    """Weight of the policy gradient of a method with reinforcement learning. Default: the method's."""
    penalty: float = 5.0
    """Reward that a wrong answer costs, of a method that rewards correct answers."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Optimisation."""

    epochs: int = 250
    """Epochs of stage 1: network and routers together."""
    finetune: int | None = None
    """Epochs of stage 2: routers fixed, hard decisions. Default: 20 for every 250 of stage 1, at least 1."""
    batch: int | None = None
    """Images per step (L), each in --views views. Default: on a GPU 512, or 256 for a network that is not codinet's
    own; 64 elsewhere."""
    views: int = 2
    """Augmented views of each image per step (M)."""
    accumulate: int = 1
    """Parts in which the images of a step are processed one after the other; their gradients are added. Needs less
    memory. BatchNorm and the diversity loss see one part at a time."""
    lr: float = 0.1
    """Initial learning rate of stage 1."""
    finetune_lr: float = 0.01
    """Initial learning rate of stage 2."""
    schedule: Literal["multistep", "cosine"] = "multistep"
    """Learning rate schedule: divided by ten at --milestones, or a cosine."""
    milestones: tuple[float, ...] = (0.6, 0.8)
    """Fractions of stage 1 after which the multi-step rate is divided by ten (the paper: epochs 150 and 200 of 250)."""
    warmup: float = 1.0
    """Epochs over which the learning rate rises from zero."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW, which transformers need."""
    momentum: float = 0.9
    """Momentum of SGD, and the first beta of AdamW."""
    weight_decay: float = 1e-4
    """Weight decay."""
    decay_norms: bool = True
    """Whether weight decay applies to biases and normalisation layers too."""
    clip: float = 0.0
    """Largest norm of the gradient of a step, e.g. 1; 0 is off."""


@dataclass(frozen=True)
class ExtraConfig:
    """Training techniques that the paper does not use; all are off by default."""

    label_smoothing: float = 0.0
    """Label smoothing, e.g. 0.1."""
    ema: float = 0.0
    """Decay of a moving average of the weights, e.g. 0.999; the average is evaluated and saved. 0 is off."""
    start: str | None = None
    """Run folder or zoo:NAME with the initial weights, e.g. a static run of the same network, or what a library
    publishes, e.g. torchvision:resnet50 for --arch resnet50; none: new weights. Default: none, except for small image
    folders and .npz files, which start from a network of the zoo."""
    start_sha256: str | None = None
    """SHA-256 that the weights of --start must have. Default: not checked when the run starts, fixed from then on."""
    pretrained: bool = False
    """Start from the weights that timm or torchvision publish for the network."""
    weights: str | None = None
    """File with initial weights, .safetensors or .pth, by the names of the network's library."""
    weights_sha256: str | None = None
    """SHA-256 of the file of --weights. Default: not checked when the run starts, fixed from then on."""
    teacher: str | None = None
    """Run folder or zoo:NAME of a teacher for distillation; any network for the same classes."""
    teacher_sha256: str | None = None
    """SHA-256 that the weights of --teacher must have. Default: not checked when the run starts, fixed from then on."""
    teacher_views: int = 0
    """Fixed views of each training image, e.g. 32, that the teacher sees once, before the training, which makes a large
    teacher cheap; steps use --views of them. Default: new views in every step, with the teacher in every step."""
    distill: float | None = None
    """Weight of the teacher in the classification loss; the labels have the rest. Default: 0.5."""
    distill_temperature: float = 4.0
    """Temperature of the distillation."""
    cutout: int = 0
    """Side length in pixels of a square blanked at a random place of every view, e.g. 8; 0 is off."""


@dataclass(frozen=True)
class RunConfig:
    """A whole training run."""

    # Not compared, because data may be moved. A digest identifies the data.
    source: str = field(compare=False)
    """Name of a data set, an image folder, or an .npz file."""
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    seed: int = 0
    """Seed of the initial weights, the image order, the augmentations and the noise."""
    extra: ExtraConfig = field(default_factory=ExtraConfig)
    method: MethodName = DEFAULT
    """How routers score, decide and learn; see docs/methods.md."""


def flag_of(setting: str) -> str:
    """The command-line flag of a setting: `--m-d` for `m_d`."""
    return f"--{setting.replace('_', '-')}"


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The config as nested dicts, as in JSON: tuples become lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(values: Any) -> dict[str, Any]:
    """The innermost entries of the result of `to_dict`; no two have the same name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value) if isinstance(value, dict) else {key: value}
    return found


def first_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """A description of the first difference between two flat configs, or None."""
    changed = (f"{key} was {old.get(key)}, now {value}" for key, value in new.items() if old.get(key) != value)
    return next(changed, None)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The inverse of `to_dict`. Unknown, missing or mistyped entries are a `UserError`."""
    return _build(RunConfig, values, "config")


def _build(kind: type, values: Any, where: str) -> Any:
    from codinet.checks import shown

    if not isinstance(values, dict):
        raise UserError(f"{where} must be a JSON object, got {shown(values)}.")
    hints = get_type_hints(kind)
    names = {entry.name for entry in dataclasses.fields(kind)}
    if not names - _ADDED_LATER <= set(values) <= names:
        wrong = ", ".join(sorted(map(str, (set(values) - names) | (names - _ADDED_LATER - set(values)))))
        raise UserError(f"{where} does not match this version of codinet: unknown or missing entries {wrong}.")
    built = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = _build(hint, value, f"{where}.{name}")  # type: ignore[arg-type]
            continue
        value = tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value
        if not fits_hint(value, hint):
            raise UserError(f"{where}.{name} must be {describe_hint(hint)}, got {shown(value)}.")
        built[name] = value
    return kind(**built)


def fits_hint(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a hint. An int fits a float; a bool fits only bool."""
    kind, options = get_origin(hint), get_args(hint)
    if kind is tuple:
        return isinstance(value, tuple) and all(fits_hint(each, options[0]) for each in value)
    if kind is Literal:
        return isinstance(value, str) and value in options
    if options:  # a union
        return any(fits_hint(value, option) for option in options)
    if isinstance(value, bool):
        return hint is bool
    if hint is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, hint)


def describe_hint(hint: Any) -> str:
    """A type hint in words."""
    kind, options = get_origin(hint), get_args(hint)
    if kind is tuple:
        return f"a list, each item {describe_hint(options[0])}"
    if kind is Literal:
        return f"one of {', '.join(options)}"
    if options:
        return " or ".join(map(describe_hint, options))
    return {bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None"}[hint]
