"""Networks as folders and on the Hugging Face hub: config.json, model.safetensors and a model card, README.md.

huggingface_hub is imported at first use, because that is slow.
"""

import html
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codinet import files
from codinet.config import ModelConfig
from codinet.errors import UserError, first_line, one_line, shown
from codinet.notebook import FIGURES, figure_rows
from codinet.specs import OWN, PYTHON, library_versions, parse_spec

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
TAGS = ("codinet", "dynamic-inference", "dynamic-routing", "conditional-computation")
RESULTS = ("data", *FIGURES)  # that a card shows
SECONDS = 120.0  # to wait for an answer of the hub
DOWNLOAD_OPTIONS = ("revision", "token", "cache_dir", "force_download", "local_files_only")
UPLOAD_OPTIONS = (
    *("commit_message", "private", "token", "branch", "create_pr"),
    *("allow_patterns", "ignore_patterns", "delete_patterns"),
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MAX_CLASSES = 20  # that a card lists
_MAX_TEXT = 80  # characters of a name in a card


class Saved(NamedTuple):
    """What a folder of a network holds."""

    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    versions: dict[str, Any]  # of the library that built the network


# Folders


def write_folder(
    folder: Path,
    config: ModelConfig,
    groups: Sequence[int],
    tensors: Mapping[str, torch.Tensor],
    *,
    results: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> None:
    """Write a network. A card that exists is kept.

    Args:
        folder: The folder; it is made if it does not exist. A run folder is a `UserError`.
        config: What the network is built from.
        groups: The number of blocks in each group.
        tensors: Its weights.
        results: What the card shows beside the config; see `RESULTS`.
        name: The name in the card; by default that of the folder.
    """
    card = model_card(config, groups, require_results(results), name or folder.name)
    if is_run_folder(folder):
        raise UserError(f"{folder} is a run folder, whose files would be replaced; choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}; choose another one.") from error
    about = {"config": asdict(config), "versions": library_versions(config.arch)}
    files.save_tensors(folder / WEIGHTS, tensors, about)
    files.write_json(folder / CONFIG, asdict(config))
    if not (folder / CARD).exists():
        files.write(folder / CARD, card.encode())


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds a run (`codinet.runs`): its config.json states a format."""
    if not (folder / CONFIG).exists():
        return False
    content = files.read_json(folder / CONFIG)
    return isinstance(content, dict) and "format" in content


def read_folder(folder: Path) -> Saved:
    """Read a network that `write_folder` or an earlier version wrote. Files without a digest are accepted."""
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} does not hold a network: it has no {CONFIG}.")
    content = files.read_json(folder / CONFIG)
    if not isinstance(content, dict) or not isinstance(content.get("arch"), str):
        raise UserError(f"{folder / CONFIG} must be a JSON object with the name of a network as arch.")
    # Entries that it lacks get their defaults; those of later versions are ignored. Values are checked by the network.
    config = ModelConfig(**{each.name: content[each.name] for each in fields(ModelConfig) if each.name in content})
    tensors, about = files.load_tensors(folder / WEIGHTS, foreign=True)
    versions = about.get("versions") if isinstance(about, dict) else None
    return Saved(config, tensors, versions if isinstance(versions, dict) else {})


def floating_dtype(tensors: Mapping[str, torch.Tensor]) -> torch.dtype | None:
    """The precision of a network's weights; None if it is not the same for all."""
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    return kinds.pop() if len(kinds) == 1 else None


# The hub


def fetch(name: str, options: Mapping[str, Any]) -> Path:
    """Download a network from the hub, unless it is in the cache.

    Args:
        name: The repository, such as "user/name".
        options: Some of `DOWNLOAD_OPTIONS`, which are those of `huggingface_hub.hf_hub_download`.

    Returns:
        The folder in the cache.
    """
    _require_options(options, DOWNLOAD_OPTIONS)
    if not _REPOSITORY.fullmatch(name):
        raise UserError(f"{shown(name)} is neither a folder nor the name of a repository on the hub.")
    from huggingface_hub import hf_hub_download

    with _patience():
        folder = Path(hf_hub_download(name, CONFIG, **options)).parent
        # The folder is named after the commit, so both files are of the same one.
        return Path(hf_hub_download(name, WEIGHTS, **{**options, "revision": folder.name})).parent


def find(source: Any, options: Mapping[str, Any]) -> Path:
    """The folder of a network: the folder itself, or what `fetch` downloads. Problems are a `UserError`."""
    if not isinstance(source, str | Path):
        raise UserError(f"A network must be a folder or the name of a repository on the hub, got {shown(source)}.")
    try:
        if Path(source).is_dir():
            return Path(source)
        if isinstance(source, Path):
            raise UserError("there is no such folder.")
        return fetch(source, options)
    except Exception as error:  # from files, the internet, …
        raise cannot_load(source, error) from error


def cannot_load(source: Any, error: Exception) -> UserError:
    """The error for a network that cannot be loaded."""
    return UserError(
        f"{shown(str(source))} cannot be loaded: {first_line(error).rstrip('.')}; pass a folder that codinet.save or "
        "save_pretrained wrote, or the name of a repository on the hub."
    )


def upload(repository: str, write: Callable[[Path], None], options: Mapping[str, Any]) -> str:
    """Upload a network to the hub. The repository is created if it does not exist.

    Args:
        repository: Its name, such as "user/name".
        write: Writes the files into a folder.
        options: Some of `UPLOAD_OPTIONS`, which are those of `huggingface_hub.HfApi.upload_folder` and `create_repo`;
            `branch` is the revision.

    Returns:
        The address of the commit.
    """
    _require_options(options, UPLOAD_OPTIONS)
    if not isinstance(repository, str) or not _REPOSITORY.fullmatch(repository):
        raise UserError(f"A repository must have a name such as user/name, got {shown(repository)}.")
    from huggingface_hub import HfApi

    rest = {"commit_message": "Upload a network of codinet", **options}
    token, private, branch = (rest.pop(key, None) for key in ("token", "private", "branch"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "network"
        write(folder)
        try:
            with _patience():
                api = HfApi(token=token)
                name = api.create_repo(repository, private=private, exist_ok=True).repo_id
                commit = api.upload_folder(repo_id=name, folder_path=folder, revision=branch, **rest)
        except Exception as error:  # from the internet, the login, …
            raise UserError(
                f"{repository} cannot be uploaded: {first_line(error).rstrip('.')}; check the internet connection and "
                "log in with hf auth login."
            ) from error
    return str(getattr(commit, "commit_url", commit))


def _require_options(options: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UserError(f"Options of the hub must be among {', '.join(known)}, got {', '.join(unknown)}.")


@contextmanager
def _patience() -> Iterator[None]:
    """Wait at most `SECONDS` for each answer. Versions before 1.0 of huggingface_hub have a limit of their own."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    if not hasattr(session, "timeout"):
        yield
        return
    before, session.timeout = session.timeout, SECONDS
    try:
        yield
    finally:
        session.timeout = before


# Model cards


def require_results(results: Any) -> dict[str, Any]:
    """Check the results for a model card; `UserError` for an unknown name or a value that is not a number or text."""
    if results is None:
        return {}
    if not isinstance(results, Mapping) or not set(results) <= set(RESULTS):
        raise UserError(f"results must have names among {', '.join(RESULTS)}, got {shown(results)}.")
    for name, value in results.items():
        if type(value) not in ((str,) if name == "data" else (int, float)):
            raise UserError(f"{name} of results is invalid, got {shown(value)}.")
    return dict(results)


def model_card(config: ModelConfig, groups: Sequence[int], results: Mapping[str, Any], name: str | None) -> str:
    """The model card, README.md: metadata, what the network is, results if known, how to load it.

    Args:
        config: The config of the network.
        groups: The number of blocks in each group.
        results: Some of `RESULTS`; see `Evaluation`.
        name: The repository on the hub, or the folder; None if unknown.

    Returns:
        Markdown with metadata in YAML.
    """
    name = name or f"codinet-{parse_spec(config.arch).name}"
    kind = "A residual network" + (" that decides per image which of its blocks to run" if config.routed else "")
    lines = [
        f"# {_plain(name)}",
        "",
        f"{kind}: {_plain(config.title)}, {sum(groups)} residual blocks in {len(groups)} groups"
        + (f", {config.router} routers." if config.routed else ", no routers."),
        "",
        *_table(_facts(config, results)),
        "",
        *_results(results),
        "## How to load it",
        "",
        *_requirement(config.arch),
        "```python",
        "import codinet",
        "",
        *_permission(config.arch),
        f'model = codinet.load("{_quoted(name)}")  # in evaluation mode',
        "engine = codinet.compile_engine(model)  # skips blocks for real",
        "output = engine(images)  # B×C×H×W; logits, router scores, path",
        "```",
        "",
        "Images are bytes from 0 to 255, normalised as `(images - mean) / std` per channel. `config.json` holds "
        "`classes`, `mean`, `std`, `image_shape` and `crop`, and so does `model.config`.",
        "",
        "Made with codinet, which implements Wang et al., *CoDiNet: Path Distribution Modeling with Consistency and "
        "Diversity for Dynamic Routing*, IEEE TPAMI, and other methods.",
        "",
    ]
    return f"---\n{_metadata(config, results, name)}\n---\n\n" + "\n".join(lines)


def _requirement(arch: str) -> list[str]:
    """What must be installed beside codinet, as lines of the card."""
    versions = " ".join(f"{library} {version}" for library, version in library_versions(arch).items())
    return [f"It was saved with {versions}: `pip install timm torchvision`.", ""] if versions else []


def _permission(arch: str) -> list[str]:
    """The line of code that a network of one's own function needs before it is loaded."""
    if parse_spec(arch).library != PYTHON:
        return []
    return [f'codinet.allow_code("{arch}")  # the function that builds the network, which may run any code']


def _metadata(config: ModelConfig, results: Mapping[str, Any], name: str) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    measured = None
    if "accuracy" in results:
        data = one_line(str(results.get("data", "unknown")))[:_MAX_TEXT]
        measured = [
            EvalResult(
                task_type="image-classification",
                dataset_type=data,
                dataset_name=data,
                metric_type="accuracy",
                metric_name="accuracy in percent",
                metric_value=round(float(results["accuracy"]), 2),
            )
        ]
    spec = parse_spec(config.arch)
    tags = [*TAGS, *(("resnet",) if spec.library == OWN else (spec.library,))]
    tags += [spec.name] if spec.library != PYTHON else []
    card = ModelCardData(
        license="mit",
        library_name="codinet",
        pipeline_tag="image-classification",
        tags=tags,
        model_name=one_line(name)[:_MAX_TEXT],
        eval_results=measured,
    )
    return str(card.to_yaml()).strip()


def _facts(config: ModelConfig, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("architecture", _plain(config.title)), ("router", config.router if config.routed else "none")]
    if "data" in results:
        facts.append(("data", _plain(results["data"])))
    facts.append(("classes", _class_names(config)))
    if config.image_shape is not None:
        facts.append(("images, C×H×W", "×".join(map(str, config.image_shape))))
    for name in ("mean", "std"):
        values = getattr(config, name)
        if values is not None:
            facts.append((f"{name} of bytes", ", ".join(f"{value:.4g}" for value in values)))
    if config.crop < 1:
        facts.append(("crop of files, of the shorter side", f"{config.crop:g}"))
    return facts


def _class_names(config: ModelConfig) -> str:
    if not config.classes:
        return str(config.num_classes)
    names = ", ".join(_plain(name) for name in config.classes[:_MAX_CLASSES])
    return f"{config.num_classes}: {names}{', …' if config.num_classes > _MAX_CLASSES else ''}"


def _results(results: Mapping[str, Any]) -> list[str]:
    rows = figure_rows(results)
    return ["## Results", "", *_table(rows), ""] if rows else []


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {title} | {text} |" for title, text in rows)]


def _plain(text: Any) -> str:
    """Text of unknown origin as one short line without markup."""
    line = html.escape(one_line(str(text))[:_MAX_TEXT])
    return "".join(f"\\{letter}" if letter in "|*_`[]#\\" else letter for letter in line)


def _quoted(name: str) -> str:
    return one_line(name).replace("\\", "/").replace('"', "'").replace("`", "'")
