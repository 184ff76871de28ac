import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet import files
from codinet.cost import CostTable
from codinet.data import Split, load
from codinet.data.npz import load_digits
from codinet.errors import UserError
from codinet.evaluate import evaluate_test_set
from codinet.files import DamagedError
from codinet.records import PathTable
from codinet.runs import RunFolder, open_run
from codinet.zoo.shelf import find
from codinet.zoo.zoo_run import PREFIX, ZooRun, identity_of, open_card, open_zoo, pack_paths, unpack_paths

NAME = "digits-resnet20-06"
TABLE = CostTable(run_N=(100, 200), skip_N=(0, 10), router_N=(1, 1), fixed=50, image_shape=(3, 8, 8), paper_unit=2)
FEW = Split(torch.arange(24, dtype=torch.uint8).view(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2]))


def test_it_reads_like_the_run_folder(zoo: Path, digits_run: Path) -> None:
    folder, entry = open_run(digits_run), open_run(Path(f"zoo:{NAME}"))
    assert folder == RunFolder.open(digits_run)
    assert isinstance(entry, ZooRun)
    assert entry.finished
    assert entry.metrics() == []
    assert (entry.config, entry.data) == (folder.config, folder.data)
    assert entry.load_evaluation() == entry.card.figures()
    assert entry.wall_seconds() == folder.wall_seconds()
    assert entry.environment["commit"] == folder.environment["commit"]
    images_BCHW = torch.randn(4, 1, 8, 8)
    theirs, ours = (run.load_model()(images_BCHW).logits_BK for run in (folder, entry))
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, theirs, atol=0.05)
    assert not torch.equal(ours, theirs)


def test_an_unknown_name_lists_the_known_ones(zoo: Path) -> None:
    with pytest.raises(UserError, match=rf"Unknown network of the zoo 'digits-resnet20-07' \(perhaps you meant {NAME}"):
        open_run("zoo:digits-resnet20-07")


@pytest.mark.parametrize("name", ["", "../secret", "/etc/passwd", "."])
def test_a_name_is_not_a_path(zoo: Path, name: str) -> None:
    with pytest.raises(UserError, match="Unknown network of the zoo"):
        open_run(f"zoo:{name}")


def test_an_empty_zoo_is_reported(empty_zoo: Path) -> None:
    with pytest.raises(UserError, match=r"the zoo is empty; add a network with python -m tools\.zoo_add RUN"):
        open_run("zoo:anything")


def test_weights_that_differ_from_the_card_are_refused(zoo: Path) -> None:
    file = zoo / f"{NAME}.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="is not the file that its card describes: the sha256 differs"):
        open_run(f"zoo:{NAME}").load_model()
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        open_run(f"zoo:{NAME}").load_model()


def test_named_pipes_are_refused_and_do_not_block(zoo: Path) -> None:
    (zoo / f"{NAME}.safetensors").unlink()
    os.mkfifo(zoo / f"{NAME}.safetensors")
    with pytest.raises(UserError, match="is not the file that its card describes: its size differs"):
        open_run(f"zoo:{NAME}").load_model()
    (zoo / f"{NAME}.json").unlink()
    os.mkfifo(zoo / f"{NAME}.json")
    with pytest.raises(UserError, match="cannot be read"):
        open_run(f"zoo:{NAME}")


# --- path tables


def table_of(probabilities: list[list[float]], paths: list[list[int]]) -> PathTable:
    path_TN = torch.tensor(paths, dtype=torch.uint8)
    rows = len(paths)
    return PathTable(
        path_TN,
        torch.tensor(probabilities),
        torch.arange(rows) % 100,
        torch.arange(rows).flip(0) % 100,
        torch.linspace(0.25, 1, rows),
        TABLE.path_macs(path_TN),
    )


def test_packing_by_hand() -> None:
    """A quarter is 64 of 256; one half that did not run stays just below it, and so does one that ran above."""
    given = table_of([[0.25, 1.0], [0.5, 0.499]], [[0, 1], [0, 1]])
    tensors = pack_paths(given)
    assert tensors[PREFIX + "run_probability"].tolist() == [[64, 255], [127, 128]]
    found = PathTable(**(unpack_paths(tensors, TABLE) or {}))
    assert found.path_TN.tolist() == [[0, 1], [0, 1]]
    assert found.macs_T.tolist() == [252.0, 252.0]  # 50 and two routers, and the second block
    assert found.confidence_T.tolist() == [0.25, 1.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=20))
def test_packing_loses_precision_only(rows: list[tuple[float, float]]) -> None:
    given = table_of([list(row) for row in rows], [[int(p >= 0.5) for p in row] for row in rows])
    found = PathTable(**(unpack_paths(pack_paths(given), TABLE) or {}))
    for name in ("path_TN", "label_T", "prediction_T", "macs_T"):
        assert torch.equal(getattr(found, name), getattr(given, name))
        assert getattr(found, name).dtype == getattr(given, name).dtype
    assert (found.run_probability_TN - given.run_probability_TN).abs().max() <= 1 / 256
    assert torch.allclose(found.confidence_T, given.confidence_T, atol=1e-3)


def test_a_file_may_have_no_path_table() -> None:
    assert unpack_paths({"fc.weight": torch.zeros(2, 2)}, TABLE) is None


def test_the_path_table_is_in_the_canonical_order(stocked: Path) -> None:
    entry, digits = open_card(find("digits-resnet20-06", stocked), stocked), load("digits", Path())
    paths = evaluate_test_set(entry.load_model(), digits, torch.device("cpu")).paths
    order_T, found = identity_of(digits.test).order_T, entry.load_paths()
    assert torch.equal(found.path_TN, paths.path_TN[order_T])
    assert torch.equal(found.prediction_T, paths.prediction_T[order_T])
    assert torch.equal(found.macs_T, paths.macs_T[order_T])


def test_a_missing_path_table_is_reported(zoo: Path, change_card: Callable[..., Path]) -> None:
    file = zoo / f"{NAME}.safetensors"
    tensors, about = files.load_tensors(file)
    files.save_tensors(file, {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}, about)
    change_card(sha256=files.sha256_of(file), bytes=file.stat().st_size)
    open_run(f"zoo:{NAME}").load_model()
    with pytest.raises(UserError, match=rf"comes without a path table; codinet analyze zoo:{NAME} makes one"):
        open_run(f"zoo:{NAME}").load_paths()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("run_probability", lambda tensor: tensor[:, :3]),
        ("run_probability", lambda tensor: tensor.float()),
        ("label", lambda tensor: tensor + 10),
        ("label", lambda tensor: tensor[:3]),
        ("prediction", lambda tensor: tensor - 10),
        ("confidence", lambda tensor: tensor * torch.nan),
        ("confidence", lambda tensor: tensor.long()),
        ("confidence", None),
    ],
)
def test_a_path_table_of_another_network_is_refused(
    zoo: Path, change_card: Callable[..., Path], name: str, spoil: Any
) -> None:
    file = zoo / f"{NAME}.safetensors"
    tensors, about = files.load_tensors(file)
    column = tensors.pop(PREFIX + name)
    files.save_tensors(file, tensors if spoil is None else {**tensors, PREFIX + name: spoil(column)}, about)
    change_card(sha256=files.sha256_of(file), bytes=file.stat().st_size)
    with pytest.raises(DamagedError, match=r"has the path table of another network \("):
        open_run(f"zoo:{NAME}").load_paths()


# --- test images


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_images_does_not_matter(order: list[int]) -> None:
    shuffled = FEW.subset(torch.tensor(order))
    assert identity_of(shuffled).digest == identity_of(FEW).digest
    ours, theirs = (split.subset(identity_of(split).order_T) for split in (FEW, shuffled))
    assert torch.equal(ours.images_NCHW, theirs.images_NCHW)
    assert torch.equal(ours.labels_N, theirs.labels_N)


def test_another_pixel_label_or_count_is_another_set() -> None:
    pixels, labels = FEW.images_NCHW.clone(), FEW.labels_N.clone()
    pixels[3, 0, 1, 1] += 1
    labels[[0, 1]] = labels[[1, 0]]
    others = [Split(pixels, FEW.labels_N), Split(FEW.images_NCHW, labels), FEW.subset(torch.arange(5))]
    assert len({identity_of(split).digest for split in (FEW, *others)}) == 4


def test_a_shuffled_copy_of_the_data_set_is_accepted(zoo: Path) -> None:
    digits, run = load_digits(), open_zoo(NAME)
    shuffled = replace(
        digits, test=digits.test.subset(torch.arange(500).flip(0)), train=digits.train.subset(torch.arange(9))
    )
    ours, theirs = run.aligned(digits), run.aligned(shuffled)
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours.test.images_NCHW, theirs.test.images_NCHW)
    assert torch.equal(ours.test.labels_N, run.load_paths().label_T)
    assert run.aligned(replace(digits, test=digits.test.subset(torch.arange(499)))) is None
