"""`codinet train`: train a network, or continue a run that was stopped.

Under torchrun every process runs this command with the same flags, and only the first one prints.
"""

import os
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from codinet.commands import own_data
from codinet.commands.config_file import with_file
from codinet.commands.library_input import library_input
from codinet.commands.printing import counted, evaluation_rows, note, print_json, print_table
from codinet.config import (
    DATA_ROOT,
    PADDED,
    PARTS,
    RESIZED,
    DataConfig,
    MethodName,
    NetworkConfig,
    RunConfig,
    ScheduleConfig,
    flag_of,
)
from codinet.errors import UserError, unknown
from codinet.flags import given_only
from codinet.methods import DEFAULT, method_named
from codinet.presets import DROP_PATH, LIBRARY_PRESETS, PRESETS, as_static, default_preset
from codinet.resolving import resolve, unused_settings
from codinet.specs import OWN, PYTHON, allow_code, parse_spec, slug

if TYPE_CHECKING:
    import torch

    from codinet.data import Dataset
    from codinet.runs import RunFolder
    from codinet.train.distributed import World

_MAX_SIBLINGS = 200  # folders next to a run that are searched for the static network
_SMALL_SIDE = 64  # pixels; views of such images are padded crops by default
_LARGE_STEP = 2**30  # bytes; smaller steps are not checked against the free memory


def _settings(part: str) -> Any:
    """The flags of a part of the config, all optional; their defaults are the preset's."""
    return tyro.conf.arg(constructor=given_only({name: getattr(make(""), part) for name, make in PRESETS.items()}))


@dataclass(frozen=True)
class Args:
    data: Annotated[dict[str, Any], _settings("data")]
    network: Annotated[dict[str, Any], _settings("network")]
    losses: Annotated[dict[str, Any], _settings("losses")]
    schedule: Annotated[dict[str, Any], _settings("schedule")]
    extra: Annotated[dict[str, Any], _settings("extra")]
    source: tyro.conf.Positional[str] = ""
    """digits, cifar10, cifar100, svhn, an image folder, or an .npz file. Required unless --config has it."""
    config: Path | None = None
    """YAML or JSON file with flags and their values, or a run folder whose settings are used again. Flags on the
    command line replace its values."""
    method: MethodName | None = None
    """How routers score, decide and learn; see docs/methods.md. Default: codinet."""
    seed: int | None = None
    """Seed of the initial weights, the image order, the augmentations and the noise. Default: 0."""
    preset: str | None = None
    """Recipe whose values the other flags replace: paper, best, quick, demo, small, modern, pretrained, imagenet.
    Default: paper; for a small image folder or .npz file small if it starts from the zoo, and quick if the zoo has no
    such network; modern for a network that is not codinet's own, or pretrained if it starts from trained weights."""
    out: Path | None = None
    """Run folder to write. Default: runs/ and a name made of source, network and seed."""
    resume: bool = False
    """Continue the run in --out with the flags it was started with, or start it if there is none."""
    data_root: Path | None = None
    """Folder that holds the data sets. Default: data, or what the environment variable CODINET_DATA names."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps. Default: the best available."""
    compile: tyro.conf.DisallowNone[bool | None] = None
    """Compile blocks and, on CUDA, capture the whole step in a graph. Default: on CUDA."""
    amp: tyro.conf.DisallowNone[bool | None] = None
    """Compute in bfloat16, losses in float32. Default: on CUDA."""
    kernels: tyro.conf.DisallowNone[bool | None] = None
    """With --compile and --amp, use fused kernels for narrow blocks. Default: on CUDA."""
    recompute: tyro.conf.DisallowNone[bool | None] = None
    """Recompute the features inside blocks in the backward pass, which needs less memory and more time."""
    sync_bn: tyro.conf.DisallowNone[bool | None] = None
    """Under torchrun on GPUs, normalise by the batches of all processes together."""
    loader: Literal["auto", "resident", "stream"] | None = None
    """Where training images are kept: on the device, or outside it and streamed. Default: on the device if they fit."""
    tensorboard: tyro.conf.DisallowNone[bool | None] = None
    """Also write the metrics of every epoch for TensorBoard, into the folder tensorboard of the run."""
    wait_minutes: float = 10.0
    """Under torchrun, how long to wait for a process that does not respond."""
    json: bool = False
    """Print the result as one JSON document."""


def config_from(args: Args) -> RunConfig:
    """The preset's config with the settings that are given as flags; not yet resolved."""
    name = args.preset or _default_preset(args)
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    preset = PRESETS[name](args.source)
    method = args.method or DEFAULT
    if not args.network.get("routed", preset.network.routed) or not _has_routers(method, args):
        preset = as_static(preset)  # drops the preset's budget; --budget on the command line is an error
    if args.schedule.get("schedule", "multistep") != "multistep":  # the preset's milestones do not apply
        preset = replace(preset, schedule=replace(preset.schedule, milestones=ScheduleConfig.milestones))
    parts: dict[str, Any] = {part: replace(getattr(preset, part), **getattr(args, part)) for part in PARTS}
    if (parts["extra"].start or "").lower() == own_data.NONE:
        parts["extra"] = replace(parts["extra"], start=None)
    return replace(preset, seed=args.seed or 0, method=method, **parts)


def _has_routers(name: str, args: Args) -> bool:
    """Whether a method has routers; `UserError` if it does not use those that are given."""
    if name == DEFAULT:
        return True  # without importing torch
    method, router = method_named(name), args.network.get("router")
    if router is not None and method.routed and router not in method.routers:
        raise UserError(f"--method {name} requires --router {' or '.join(method.routers)}, got {router}.")
    return method.routed


def _default_preset(args: Args) -> str:
    extra = args.extra
    start = (extra.get("start") or own_data.NONE).lower() != own_data.NONE
    trained = start or bool(extra.get("weights")) or bool(extra.get("pretrained"))
    return default_preset(args.network.get("arch", NetworkConfig.arch), trained=trained)


def run(args: Args) -> dict[str, str]:
    """Train, and print the evaluation on the test images.

    Returns:
        The run folder, for the suggested next commands; empty for processes that do not print.
    """
    typed, args = args, with_file(args) if args.config is not None else args
    if not args.source:
        raise UserError(
            "SOURCE is required: a data set, an image folder or an .npz file, or --config with one; see codinet train "
            "--help."
        )
    config_from(args)  # for its checks, before torch is imported
    arch = typed.network.get("arch")
    if arch is not None and parse_spec(arch).library == PYTHON:
        allow_code(arch)  # the user names it

    from codinet.train import distributed

    device = distributed.own_device(args.device)
    with distributed.joined(device, wait_minutes=args.wait_minutes) as world:
        return _train(args, typed, device, world)


def _train(args: Args, typed: Args, device: "torch.device", world: "World") -> dict[str, str]:
    """`typed` has the flags of the command line only."""
    from codinet.train import Execution, train
    from codinet.train.reporting import Console, Reporter, Reporters
    from codinet.train.tensorboard_log import TensorBoard, require_tensorboard

    if args.tensorboard:
        world.on_rank0(require_tensorboard)
    execution = Execution(
        args.compile, args.amp, args.kernels, bool(args.recompute), bool(args.sync_bn), args.loader or "auto"
    )
    amp = bool(execution.resolve(device, world).amp)
    config, dataset, remarks = world.on_every_rank(lambda: _load(args, device, amp, world))
    out = args.out or Path("runs") / _folder_name(config)
    notes = world.on_rank0(lambda: [*_notes(typed, args.source, config), *remarks])
    for sentence in notes if world.is_rank0 else ():
        note(sentence)
    reporter: Reporter = Console()
    if args.tensorboard and world.is_rank0:
        reporter = Reporters(TensorBoard(out), reporter)
    folder, evaluation = train(
        out,
        config,
        dataset,
        device=device,
        resume=args.resume,
        execution=execution,
        reporter=reporter if world.is_rank0 else None,
        world=world,
    )
    if not world.is_rank0:
        return {}
    static = _static_accuracy(folder) if config.network.routed else None
    if args.json:
        known = {} if static is None else {"static_accuracy": static[0]}
        print_json({"run": str(folder.path), **evaluation.summary(), **known})
        return {}
    rows = evaluation_rows(evaluation.summary())
    if static is not None:
        rows.insert(1, ["accuracy of the static network", f"{static[0]:.2f} %"])
    print_table(f"{folder.path} on the {evaluation.n} test images", ["", ""], rows)
    if static is not None:
        note(f"the static network is {static[1]}.")
    elif config.network.routed:
        path = shlex.quote(str(folder.path))
        note(f"for the static network's accuracy: codinet train --config {path} --no-routed --out {path}-static")
    return {"run": str(folder.path)}


def _static_accuracy(run: "RunFolder") -> tuple[float, str] | None:
    """The accuracy of the static network on the same data, and where it comes from; None if it is unknown.

    Looks at the network that the run started from, at the folders next to the run and at the zoo. Of several static
    networks, one with the same seed comes first, then the most accurate one.
    """
    from codinet.runs import open_run
    from codinet.zoo.shelf import ZOO, listed

    start, ours = run.config.extra.start, run.config.network
    near = sorted(run.path.absolute().parent.glob("*/evaluation.json"))[:_MAX_SIBLINGS]
    names = [*([start] if start else []), *(str(file.parent) for file in near)]
    names += [f"{ZOO}{entry['name']}" for entry in listed() if entry["arch"] == ours.arch]
    found = []
    for name in names:
        try:
            other = open_run(name)
            network = other.config.network
            if network.routed or (network.arch, network.widths) != (ours.arch, ours.widths):
                continue
            if not other.data.same_images(run.data):
                continue
            found.append((other.config.seed == run.config.seed, other.load_evaluation()["accuracy"], name))
        except UserError:  # damaged, or not a run
            continue
    if not found:
        return None
    _, accuracy, name = max(found)
    return accuracy, name


def _load(args: Args, device: "torch.device", amp: bool, world: "World") -> tuple[RunConfig, "Dataset", list[str]]:
    """The complete config and its data, checked against each other and against the free memory, and remarks."""
    from codinet.data import locate
    from codinet.data.loading import holds_files, load_for

    root, gpu = args.data_root or DATA_ROOT, device.type == "cuda"
    config = resolve(config_from(args), gpu=gpu)
    # An absolute path, so that the run can be evaluated from any folder.
    source = locate(args.source, root)
    folder = holds_files(source)
    dataset = None if folder else load_for(source, root, config.data)
    adapted = _adapt(args, source, dataset)
    if adapted.args is not args:
        config = resolve(config_from(adapted.args), gpu=gpu)
    config = replace(config, source=source)
    out = args.out or Path("runs") / _folder_name(config)
    if not own_data.is_new(out, resume=args.resume):
        _require_same_arch(config, out)
    prepared = library_input(config, out, resume=args.resume, folder=folder)
    config = _choose_view(prepared.config, out, resume=args.resume, folder=folder)
    dataset = dataset or load_for(source, root, config.data)
    dataset = prepared.normalise(dataset)
    config, preset_note = _defaults_for_data(adapted.args, config, len(dataset.train), world.size)
    _require_small_cutout(config, dataset)
    if device.type == "cpu":
        _require_memory(config, dataset, bytes_per_value=2 if amp else 4, processes=world.size)
    return config, dataset, [remark for remark in (adapted.note, preset_note, prepared.describe(dataset)) if remark]


def _require_same_arch(config: RunConfig, out: Path) -> None:
    """Refuse another network than that of the run in `out`, before the weights that it started from are read."""
    from codinet.runs import open_run

    before, arch = open_run(out).config.network.arch, config.network.arch
    if arch != before:
        raise UserError(
            f"{out} was started with other settings (arch was {before}, now {arch}); repeat them or choose another "
            "--out."
        )


def _choose_view(config: RunConfig, out: Path, *, resume: bool, folder: bool) -> RunConfig:
    """The config with the default way to cut views: random parts of a folder's images unless they are small."""
    from codinet.data.loading import default_sides
    from codinet.runs import open_run

    data = config.data
    if data.view != DataConfig.view or not folder:
        return config
    if not own_data.is_new(out, resume=resume):
        return replace(config, data=replace(data, view=open_run(out).config.data.view))
    side = data.image_size or min(default_sides(config.source, on_damaged=data.on_damaged))
    return replace(config, data=replace(data, view=RESIZED if side > _SMALL_SIDE else PADDED))


def _defaults_for_data(args: Args, config: RunConfig, images: int, processes: int) -> tuple[RunConfig, str | None]:
    """The config with the defaults that depend on network and data, and a note.

    These are a batch that fits, so that an epoch has at least four steps, and for a network that is not codinet's own
    the drop path of the presets for such networks.
    """
    from codinet.networks import supports_drop_path

    name, arch = args.preset or _default_preset(args), config.network.arch
    own = parse_spec(arch).library == OWN
    if name in LIBRARY_PRESETS and "drop_path" not in args.network and supports_drop_path(arch):
        config = replace(config, network=replace(config.network, drop_path=DROP_PATH))
    images -= config.data.holdout
    batch = config.schedule.batch or 0
    if args.schedule.get("batch") is None and (not own or batch > images):
        parts = processes * config.schedule.accumulate
        batch = min(batch, max(max(2, images // 4) // parts * parts, parts))
        config = replace(config, schedule=replace(config.schedule, batch=batch))
    if own:
        return config, None
    if args.preset or len(args.schedule) == len(fields(ScheduleConfig)):  # all are given, e.g. by a run's config.json
        return config, None
    dropped = f", --drop-path {DROP_PATH:g}" if config.network.drop_path and "drop_path" not in args.network else ""
    return config, f"{arch} is trained with --preset {name}{dropped}, --batch {batch}; see docs/recipes.md."


def _adapt(args: Args, source: str, dataset: "Dataset | None") -> own_data.Adapted:
    """Add the defaults of small data sets. An image folder has no `dataset` yet."""
    from codinet.data.catalogue import KNOWN
    from codinet.data.loading import summarise
    from codinet.runs import open_run

    if source in KNOWN or own_data.start_given(args):
        return own_data.Adapted(args)
    if dataset is None:
        on_damaged = args.data.get("on_damaged", DataConfig.on_damaged)
        summary = summarise(source, most=own_data.SMALL, on_damaged=on_damaged)
        if summary is None:
            return own_data.Adapted(args)
        images, channels = summary
    else:
        images, channels = len(dataset.train), dataset.image_shape[0]
    # A folder's name may depend on the network, which is part of the defaults.
    new = own_data.adapt_new(args, images, channels, resizable=dataset is None)
    out = args.out or Path("runs") / _folder_name(config_from(new.args))
    if own_data.is_new(out, resume=args.resume):
        return new
    return own_data.adapt_resumed(args, open_run(out).config, images)


def _require_small_cutout(config: RunConfig, dataset: "Dataset") -> None:
    _, height, width = dataset.image_shape
    cutout, side = config.extra.cutout, min(height, width)
    if cutout >= side:
        raise UserError(
            f"--cutout must be below {side} for the images of {dataset.name}, which are {height}×{width}, got {cutout}."
        )


def _require_memory(config: RunConfig, dataset: "Dataset", *, bytes_per_value: int, processes: int) -> None:
    """Refuse a step for which the system would end the process.

    The estimate is a lower bound: the images, and of codinet's own networks the output of the first convolution (16
    channels in all of them) before and after its normalisation. Other networks may reduce the size of images at once.
    """
    from codinet.data.free_memory import require_memory

    channels, height, width = dataset.image_shape
    views = (config.schedule.batch or 0) // processes * config.schedule.views
    own = parse_spec(config.network.arch).library == OWN
    needed = views * height * width * (4 * channels + (2 * 16 * bytes_per_value if own else 0))
    if needed > _LARGE_STEP:
        require_memory(
            needed,
            what=f"A step on {views} views of {height}×{width}",
            hint="use a smaller --batch, or --image-size for an image folder",
        )


def _notes(typed: Args, source: str, config: RunConfig) -> list[str]:
    """Where the training may differ from what the flags on the command line, and the source, seem to say."""
    from codinet.data.catalogue import KNOWN
    from codinet.data.folder_index import ignored_folders
    from codinet.data.remote import is_url
    from codinet.data.shards import is_packed

    notes = []
    if config.source not in KNOWN and not is_url(source):
        if not Path(os.path.expanduser(source)).exists():
            notes.append(f"{source} does not exist; using {config.source}.")
        path = Path(config.source)
        inner = ignored_folders(path) if path.is_dir() and not is_packed(path) else []
        if inner:
            more = f" and {counted(len(inner) - 1, 'more folder')}" if len(inner) > 1 else ""
            notes.append(f"images in {inner[0]}{more} are not read; put images directly into the folder of a class.")
    given = [name for part in PARTS for name, value in getattr(typed, part).items() if value != 0]  # 0 switches off
    unused = [flag_of(name) for name in given if name in unused_settings(config)]
    if unused:
        why = "--no-routed" if not config.network.routed else "a loss weight of 0"
        why = why if config.method == DEFAULT else f"--method {config.method}"
        notes.append(f"these flags have no effect with {why}: {', '.join(unused)}.")
    return notes


def _folder_name(config: RunConfig) -> str:
    kind = "routed" if config.network.routed else "static"
    kind = kind if config.method == DEFAULT else config.method
    return f"{Path(config.source).stem}-{slug(config.network.arch)}-{kind}-seed{config.seed}"
