from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codinet.errors import UserError
from codinet.runs import RunFolder
from codinet.zoo.add import add
from codinet.zoo.open_run import open_entry
from codinet.zoo.shelf import find
from codinet.zoo.unpack import unpack

NAME, CPU = "digits-resnet20-06", torch.device("cpu")


def test_a_run_folder_of_ones_own(zoo: Path, tmp_path: Path) -> None:
    entry = open_entry(find(NAME))
    unpack(entry, tmp_path / "run", Path(), CPU)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.load_evaluation() == entry.card.figures()
    assert len(folder.load_paths().label_T) == 500
    assert (folder.config, folder.data) == (entry.config, entry.data)
    assert folder.wall_seconds() == entry.card["wall_s"]
    wanted = entry.load_model().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in folder.load_model().state_dict().items())
    with pytest.raises(UserError, match=rf"comes from the zoo \({NAME}\)"):
        add(folder, "again", Path(), device=CPU)


def test_nothing_is_written_over(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists and is not empty; choose another --out"):
        unpack(open_entry(find(NAME)), zoo, Path(), CPU)


def test_other_data_is_refused(zoo: Path, tmp_path: Path) -> None:
    entry = open_entry(find(NAME))
    entry = replace(entry, card=replace(entry.card, content={**entry.card.content, "test_sha256": "0" * 64}))
    with pytest.raises(UserError, match=f"zoo:{NAME} was tested on other images than digits holds"):
        unpack(entry, tmp_path / "run", Path(), CPU)
    assert not (tmp_path / "run").exists()
