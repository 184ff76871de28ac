"""Networks on the Hugging Face hub: the class with the hub's methods, and the model card.

huggingface_hub is imported at first use, because that is slow.
"""

import html
from collections.abc import Mapping
from typing import Any

from codinet.backbones import ARCHITECTURES
from codinet.config import ModelConfig
from codinet.errors import UserError, one_line, shown
from codinet.notebook import FIGURES, figure_rows

TAGS = ("codinet", "dynamic-inference", "dynamic-routing", "conditional-computation", "resnet")
RESULTS = ("data", *FIGURES)  # that a card shows
_MAX_CLASSES = 20  # that a card lists
_MAX_TEXT = 80  # characters of a name in a card


def with_hub(kind: type) -> Any:
    """The class with the methods of `huggingface_hub.PyTorchModelHubMixin` and codinet's model card."""
    from huggingface_hub import ModelCard, PyTorchModelHubMixin

    def generate_model_card(self: Any, **_options: Any) -> ModelCard:
        return ModelCard(model_card(self.config, self.card_results, self.card_name))

    return type(kind.__name__, (PyTorchModelHubMixin, kind), {"generate_model_card": generate_model_card})


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


def model_card(config: ModelConfig, results: Mapping[str, Any], name: str | None) -> str:
    """The model card, README.md: metadata, what the network is, results if known, how to load it.

    Args:
        config: The config of the network.
        results: Some of `RESULTS`; see `Evaluation`.
        name: The repository on the hub, or the folder; None if unknown.

    Returns:
        Markdown with metadata in YAML.
    """
    shape = ARCHITECTURES[config.arch]
    name = name or f"codinet-{config.arch}"
    kind = "A residual network" + (" that decides per image which of its blocks to run" if config.routed else "")
    lines = [
        f"# {_plain(name)}",
        "",
        f"{kind}: {config.arch}, {shape.blocks} residual blocks in {len(shape.counts)} groups"
        + (f", {config.router} routers." if config.routed else ", no routers."),
        "",
        *_table(_facts(config, results)),
        "",
        *_results(results),
        "## How to load it",
        "",
        "```python",
        "from codinet import CoDiNet, compile_engine",
        "",
        f'model = CoDiNet.from_pretrained("{_quoted(name)}")  # in evaluation mode',
        "engine = compile_engine(model)  # skips blocks for real",
        "output = engine(images)  # B×C×H×W; logits, router scores, path",
        "```",
        "",
        "Images are bytes from 0 to 255, normalised as `(images - mean) / std` per channel. `config.json` holds "
        "`classes`, `mean`, `std` and `image_shape`, and so does `model.config`.",
        "",
        "The method: Wang et al., *CoDiNet: Path Distribution Modeling with Consistency and Diversity for Dynamic "
        "Routing*, IEEE TPAMI.",
        "",
    ]
    return f"---\n{_metadata(config, results, name)}\n---\n\n" + "\n".join(lines)


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
    tags = [*TAGS, config.arch, "model_hub_mixin", "pytorch_model_hub_mixin"]
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
    facts = [("architecture", config.arch), ("router", config.router if config.routed else "none")]
    if "data" in results:
        facts.append(("data", _plain(results["data"])))
    facts.append(("classes", _class_names(config)))
    if config.image_shape is not None:
        facts.append(("images, C×H×W", "×".join(map(str, config.image_shape))))
    for name in ("mean", "std"):
        values = getattr(config, name)
        if values is not None:
            facts.append((f"{name} of bytes", ", ".join(f"{value:.4g}" for value in values)))
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
