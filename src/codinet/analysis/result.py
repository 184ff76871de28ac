"""What an analysis leaves in a run folder: analysis.json for people and programs, analysis.safetensors beside it.

The tensor file is sealed and carries the digest of the JSON it belongs to, so that the two are used together
or not at all.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from codinet import files

FORMAT = 1  # of the files; figures that came later are missing from earlier analyses, which are read all the same
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
        """What was saved; None where nothing was, or by another version; `DamagedError` where it changed since."""
        if not (folder / JSON).exists() or not (folder / TENSORS).exists():
            return None
        content = files.read_json(folder / JSON)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        tensors, about = files.load_tensors(folder / TENSORS)
        if not isinstance(about, dict) or about.get("json") != _digest(content):
            raise files.DamagedError(f"{folder / JSON} and {folder / TENSORS} do not belong together.")
        return cls(content["made_from"], content["figures"], tensors)


def _digest(content: dict[str, Any]) -> str:
    # Through text and back: what is compared is what a reader of the file gets.
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()
