import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from codinet.errors import UserError
from codinet.files import (
    DamagedError,
    load_tensors,
    lock_folder,
    parse_json,
    read_json,
    remove_leftovers,
    save_tensors,
    sha256_of,
    to_json,
    write,
    write_json,
)

TENSORS = {
    "weights": torch.tensor([[1.5, -2.0], [0.0, 3.25]]),
    "half": torch.tensor([0.1, 7.0], dtype=torch.bfloat16),
    "count": torch.tensor(3),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
    "turned": torch.arange(6).reshape(2, 3).T,
}


def test_content_replaces_what_was_there_and_nothing_else_is_left(tmp_path: Path) -> None:
    write(tmp_path / "file", b"old")
    write(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_full_disk_leaves_the_old_file_as_it_was(
    tmp_path: Path, disk_of: Callable[[int], AbstractContextManager[None]]
) -> None:
    write(tmp_path / "file", b"old")
    with disk_of(100), pytest.raises(UserError, match=r"Could not write .*file: File too large; free some space"):
        write(tmp_path / "file", b"new" * 100)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("below", ["missing/file", "in_the_way/file", "folder", "x" * 300])
def test_a_place_that_cannot_be_written_is_named_and_space_is_not_asked_for(tmp_path: Path, below: str) -> None:
    (tmp_path / "in_the_way").write_text("a file, not a folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=f"Could not write .*{below}: [^;]*; check the path and its permissions or "):
        write(tmp_path / below, b"content")


def test_remove_leftovers(tmp_path: Path) -> None:
    for name in (".model.safetensors.123.tmp", "model.safetensors", "notes.tmp"):
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "notes.tmp"]
    remove_leftovers(tmp_path / "missing")


def test_json_round_trip(tmp_path: Path) -> None:
    content = {"γ": [1, 2.5, None], "nested": {"yes": True}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"\xff\xfe\x00", b"\x00"])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"a\.json cannot be read as JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": NaN}', "it contains nan"),
        (b"[1e999]", "it contains inf"),
        (b"-Infinity", "it contains -inf"),
        (b"9223372036854775808", "integer beyond 64 bits"),
        (b"1" * 5000, "Exceeds the limit"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'{"\\udcff": 1}', "surrogates not allowed"),
        (b"[" * 100_000, "nested more than 50 levels deep"),
        (b"[" * 60 + b"]" * 60, "nested more than 50 levels deep"),
    ],
)
def test_json_that_we_could_not_write_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(content)
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedError, match=rf"a\.json cannot be read as JSON \(.*{reason}"):
        read_json(tmp_path / "a.json")


def test_json_may_be_nested_and_its_numbers_large() -> None:
    assert parse_json(b"[" * 50 + b"]" * 50)
    assert parse_json('{"a": [9223372036854775807, 1e300, true, null, "\U0001f600"]}')["a"][1] == 1e300


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"predictions": [{"confidence": math.nan}]}, r"predictions\.0\.confidence is nan"),
        ([1.0, (2.0, -math.inf)], r"1\.1 is -inf"),
        (math.inf, "The result is inf"),
        ({"name": "\udcff"}, "cannot be written as JSON"),
    ],
)
def test_json_has_finite_numbers_and_unicode_only(tmp_path: Path, content: Any, name: str) -> None:
    with pytest.raises(UserError, match=name):
        to_json(content, ensure_ascii=False)
    with pytest.raises(UserError, match=name):
        write_json(tmp_path / "a.json", content)
    assert list(tmp_path.iterdir()) == []


def test_a_huge_json_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(UserError, match=r"a\.json cannot be read \(larger than 16 MiB\); check the path"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("read", [read_json, load_tensors])
def test_a_named_pipe_is_refused_and_does_not_block(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe cannot be read \(.*regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        sha256_of(tmp_path / "pipe")
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(UserError, match="Cannot write to the folder"), lock_folder(tmp_path, ""):
        pass


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.json does not exist; is .* a run folder"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"a\.safetensors does not exist; is .* a finished run folder"):
        load_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("read", [read_json, load_tensors])
def test_a_file_that_the_system_does_not_open_is_not_called_damaged(
    tmp_path: Path, read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(UserError, match=r"file cannot be read \(Is a directory\); check the path\.$") as caught:
        read(tmp_path / "file")
    assert not isinstance(caught.value, DamagedError)  # some callers replace damaged files, or go on without them
    for number, way_out in ((errno.EACCES, "its permissions"), (errno.EIO, "the disk")):
        failing = OSError(number, os.strerror(number))
        monkeypatch.setattr(os, "open", Mock(side_effect=failing))
        with pytest.raises(UserError, match=rf"file cannot be read \({failing.strerror}\); check {way_out}\.$"):
            read(tmp_path / "file")


@pytest.mark.parametrize("about", [None, {"epoch": 3, "names": ["a", "β"]}])
def test_tensors_come_back_bit_for_bit(tmp_path: Path, about: Any) -> None:
    save_tensors(tmp_path / "a.safetensors", TENSORS, about)
    tensors, note = load_tensors(tmp_path / "a.safetensors")
    assert note == about
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_a_tensor_of_one_element_may_have_any_stride(tmp_path: Path) -> None:
    one = torch.tensor([[1, 2, 3]]).T[1]
    assert one.stride() == (3,)
    save_tensors(tmp_path / "a.safetensors", {"one": one})
    assert load_tensors(tmp_path / "a.safetensors")[0]["one"].tolist() == [2]


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    contents = set()
    for _ in range(8):
        save_tensors(tmp_path / "a.safetensors", TENSORS, {"name": "β"})
        contents.add((tmp_path / "a.safetensors").read_bytes())
    assert len(contents) == 1


def test_anyone_can_read_the_tensors(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", TENSORS)
    assert torch.equal(load_file(tmp_path / "a.safetensors")["weights"], TENSORS["weights"])


def test_gradients_are_left_out(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", {"w": torch.ones(2, requires_grad=True)})
    assert not load_tensors(tmp_path / "a.safetensors")[0]["w"].requires_grad


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_tensors(file, {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}, {"epoch": 1})
    whole = file.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            spoilt = bytearray(whole)
            spoilt[place] ^= 1 << bit
            file.write_bytes(spoilt)
            try:
                tensors, about = load_tensors(file)
            except DamagedError:
                continue
            # What is not noticed may only be what carries no meaning.
            assert tensors["w"].tolist() == [1.0, 2.0]
            assert tensors["n"].item() == 7
            assert about == {"epoch": 1}


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_tensors(file, {"w": torch.tensor([1.0, 2.0])})
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"a\.safetensors"):
            load_tensors(file)


def test_a_file_without_a_seal_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(DamagedError, match="was not written by codinet"):
        load_tensors(tmp_path / "foreign.safetensors")


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def sealed(dtype: str, about: str) -> bytes:
    """A file with a valid digest, as a program other than ours might write it."""
    digest = hashlib.sha256(about.encode() + b"w torch.float32 (1,)" + bytes(4)).hexdigest()
    metadata = {"about": about, "sha256": digest}
    return with_header(
        {"__metadata__": metadata, "w": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}, bytes(4)
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_header({"__metadata__": None}), "it carries no checksum"),
        (with_header({"__metadata__": {"sha256": "0" * 64}}), "it carries no checksum"),
        (
            with_header({"w": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)),
            "of the unknown type 'F8_E8M0'",
        ),
        (
            with_header({"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, bytes(4)),
            "of the unknown type 'F4'",
        ),
        (with_header({"w": {"dtype": "Q7", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)), "damaged"),
        (with_header(b"[" * 100_000), "damaged"),
        (with_header(b"null"), "damaged"),
        (sealed("F32", "[" * 100_000), "its description is not JSON"),
        (sealed("F32", "{"), "its description is not JSON"),
        (sealed("F32", "NaN"), "its description is not JSON"),
    ],
)
def test_safetensors_of_other_programs_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(sealed("F32", "{}"))
    assert load_tensors(file) == ({"w": torch.zeros(1)}, {})  # the seal itself is right
    file.write_bytes(content)
    with pytest.raises(DamagedError, match=rf"a\.safetensors .*({reason})"):
        load_tensors(file)


def test_the_description_is_sealed_too(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_tensors(file, {"w": torch.ones(2)}, {"epoch": 1})
    content = file.read_bytes()
    note, changed = (json.dumps(json.dumps({"epoch": epoch})).encode() for epoch in (1, 2))
    assert note in content
    file.write_bytes(content.replace(note, changed))
    with pytest.raises(DamagedError, match="do not match its checksum"):
        load_tensors(file)


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_path_without_a_name_is_not_written(path: str) -> None:
    with pytest.raises(UserError, match="it is a folder; name a file in it"):
        write(Path(path), b"content")
