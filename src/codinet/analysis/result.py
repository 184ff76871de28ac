"""The files that an analysis writes into a run folder: analysis.json, and analysis.safetensors beside it.

The tensor file is sealed and carries the digest of the JSON it belongs to, so that the two are used together or not at
all. What is loaded is checked: it has every figure and every tensor that reports and tables use.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from codinet import files
from codinet.analysis.augment import KINDS

FORMAT = 1  # of the files; older analyses lack some figures, and are read all the same
JSON, TENSORS = "analysis.json", "analysis.safetensors"


@dataclass(frozen=True)
class RunAnalysis:
    """Figures of one run, the tensors behind its pictures, and what both were made from."""

    made_from: dict[str, Any]  # digests of network and data, the options, the revision
    figures: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        content = {"format": FORMAT, "made_from": self.made_from, "figures": self.figures}
        files.save_tensors(folder / TENSORS, self.tensors, about={"json": _digest(content)})
        files.write_json(folder / JSON, content)

    @classmethod
    def load(cls, folder: Path) -> "RunAnalysis | None":
        """The saved analysis; None where there is none of this version; `DamagedError` where it changed since."""
        if not (folder / JSON).exists() or not (folder / TENSORS).exists():
            return None
        content = files.read_json(folder / JSON)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        tensors, about = files.load_tensors(folder / TENSORS)
        if not isinstance(about, dict) or about.get("json") != _digest(content):
            raise files.DamagedError(f"{folder / JSON} and {folder / TENSORS} do not belong together.")
        made_from, figures = content.get("made_from"), content.get("figures")
        if not isinstance(figures, dict) or not isinstance(made_from, dict):
            raise files.DamagedError(f"{folder / JSON} is not an analysis.")
        if any(isinstance(value, dict | list) for value in made_from.values()):
            raise files.DamagedError(f"{folder / JSON} does not say what it was made from.")
        return cls(made_from, figures, tensors)

    def misfit(self, *, routed: bool, images: int, classes: int, blocks: int) -> str | None:
        """The first figure or tensor that an analysis of such a run has and this one lacks; None where it is whole."""
        odd = _odd_entry(self.figures, _FIGURES | (_ROUTED_FIGURES if routed else {}), "")
        if odd is not None:
            return odd
        views = self.figures["embedding"]["views"] if routed else 1
        sizes = {"T": images, "K": classes, "N": blocks, "D": 2}
        for name, (dtype, letters) in (_TENSORS | (_ROUTED_TENSORS if routed else {})).items():
            tensor = self.tensors.get(name)
            if tensor is None and name in _OPTIONAL:
                continue
            if tensor is None or tensor.dtype != dtype or tensor.ndim != len(letters):
                return name
            if any(sizes.setdefault(*pair) != pair[1] for pair in zip(letters, tensor.shape, strict=True)):
                return name
            if tensor.numel() == 0 and letters != "A":  # a single image makes no pairs
                return name
            if tensor.is_floating_point() and name != "run_rates" and not tensor.isfinite().all():
                return name
        if routed and (views < 1 or sizes["V"] != sizes["G"] * views):
            return "group_pca"
        return self._misplaced(images)

    def _misplaced(self, images: int) -> str | None:
        """The first tensor with an index that points to no image."""
        for name in ("index", "easiest", "hardest", "shared", "shown_index", "tsne_index", "group_index"):
            tensor = self.tensors.get(name, torch.zeros(1))
            low = -1 if name == "shared" else 0  # there, −1 fills up a row
            if not low <= int(tensor.min()) <= int(tensor.max()) < images:
                return name
        kept, shared_PI = self.tensors["shown_index"], self.tensors["shared"]
        strips = [self.tensors["easiest"], self.tensors["hardest"], shared_PI[shared_PI >= 0]]
        if not torch.isin(torch.cat(strips), kept).all() or not torch.equal(kept, kept.unique()):
            return "shown_index"
        if bool((shared_PI[:, 0] < 0).any()):
            return "shared"
        return "kind" if int(self.tensors["kind"].max()) >= len(KINDS) else None


# What figures hold: types, an object of entries, or for "*" an object whose entries are all alike.
_INT, _NUMBER, _TEXT = (int,), (int, float), (str,)
_LARGEST = 2**53
_BY_KIND = {"*": {"pairs": _INT, "mean": _NUMBER}}
_FIGURES: dict[str, Any] = {
    "images": _INT,
    "consistency": dict.fromkeys(("same_prediction", "accuracy_original", "accuracy_augmented"), _NUMBER),
    "kl": {"mean": _NUMBER, "median": _NUMBER, "kinds": _BY_KIND},
    "usage": {"distinct_paths": _INT, "path_entropy": _NUMBER},
    "swapped?": {"accuracy_any": _NUMBER, "accuracy_class": _NUMBER},  # older analyses lack it
}
_ROUTED_FIGURES: dict[str, Any] = {
    "consistency": {
        **_FIGURES["consistency"],
        **{"pairs": _INT, "same_path": _NUMBER, "same_path_kinds": _BY_KIND, "blocks_changed": _NUMBER},
    },
    "correlation": {
        **dict.fromkeys(("pcc_relaxed", "pcc_hard"), (*_NUMBER, NoneType)),
        **{"features": _TEXT, "pairs": _INT, "which_pairs": _TEXT},
    },
    "embedding": {"groups": _INT, "views": _INT},
}

# dtype and shape of each tensor: letters that are equal are equal sizes. T images, K classes and N blocks of the run.
_TENSORS: dict[str, tuple[torch.dtype, str]] = {
    "index": (torch.int64, "S"),
    "kind": (torch.uint8, "S"),
    "kl": (torch.float32, "S"),
    "easiest": (torch.int64, "I"),
    "hardest": (torch.int64, "I"),
    "shared": (torch.int64, "PJ"),
    "shown_index": (torch.int64, "X"),
    "shown_images": (torch.uint8, "XCHW"),
    "run_rates": (torch.float32, "KN"),
}
_ROUTED_TENSORS: dict[str, tuple[torch.dtype, str]] = {
    "same_path": (torch.uint8, "S"),
    "pair_path": (torch.float32, "A"),
    "pair_feature": (torch.float32, "A"),
    "pca": (torch.float32, "TD"),
    "expected_blocks": (torch.float32, "T"),
    "tsne_index": (torch.int64, "E"),
    "tsne": (torch.float32, "ED"),
    "group_index": (torch.int64, "G"),
    "group_pca": (torch.float32, "VD"),
    "group_tsne": (torch.float32, "VD"),
}
_OPTIONAL = {"tsne", "group_tsne"}


def _odd_entry(found: Any, wanted: Any, name: str) -> str | None:
    """The name of the first entry that is missing, of another type, negative where it counts, or out of range."""
    if isinstance(wanted, tuple):
        fine = type(found) in wanted and not (wanted == _INT and found < 0)
        if type(found) in _NUMBER:
            fine = fine and abs(found) <= _LARGEST  # NaN fails too
        return None if fine else name
    if not isinstance(found, dict):
        return name
    if "*" in wanted:
        wanted = dict.fromkeys(found, wanted["*"])
    for key, inner in wanted.items():
        plain = key.removesuffix("?")
        if key != plain and plain not in found:
            continue
        odd = _odd_entry(found.get(plain), inner, f"{name}.{plain}" if name else plain)
        if odd is not None:
            return odd
    return None


def _digest(content: dict[str, Any]) -> str:
    # Through text and back: the digest is of the values that a reader of the file gets.
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()
