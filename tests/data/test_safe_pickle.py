import os
import pickle
import pickletools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data.safe_pickle import read_pickle
from codinet.errors import UserError


class Command:
    """Pickles as a call of os.system."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Any]:
    def write(content: bytes) -> Any:
        path = tmp_path / "batch"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_lists_and_text_are_read(write: Callable[..., Any], protocol: int) -> None:
    value: dict[Any, Any] = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "wide": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        b"raw": b"\x00\xff",
        "labels": [1, 2, 2**70],
        "pair": ("a", None),
    }
    read = read_pickle(write(pickle.dumps(value, protocol)))
    assert read["data"].tolist() == value["data"].tolist()
    assert read["wide"].tolist() == value["wide"].tolist()
    assert read["wide"].dtype == np.dtype(">i4")
    assert read[b"raw"] == b"\x00\xff"
    assert read["labels"] == value["labels"]
    assert read["pair"] == ("a", None)


def test_a_file_as_python_2_wrote_it(write: Callable[..., Any]) -> None:
    # The official files: Python 2 text, and numpy under its old name.
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\xfe\x01tbU\x06labels]K\x07au."
    )
    read = read_pickle(write(content))
    assert read["data"].tolist() == [[254, 1]]
    assert read["labels"] == [7]


@pytest.mark.parametrize(
    "value",
    [Command(), {"data": [Command()]}, np.array([{}], dtype=object), 1.5, {1, 2}, print, Exception("x")],
    ids=["call", "ignored_folders call", "objects", "float", "set", "function", "exception"],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_else_is_refused_and_never_executed(
    write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(pickle.dumps(value, protocol))
    with pytest.raises(UserError, match="batch"):
        read_pickle(path)
    assert not (tmp_path / "pwned").exists()


def test_attributes_of_functions_cannot_be_set(write: Callable[..., Any]) -> None:
    # BUILD on the function itself.
    poison = b"\x80\x02cnumpy\ndtype\n}U\x04oddsK\x01sb."
    assert "BUILD" in {op.name for op, _, _ in pickletools.genops(poison)}
    with pytest.raises(UserError):
        read_pickle(write(poison))
    good = write(pickle.dumps(np.zeros(2, np.uint8), 2))
    assert read_pickle(good).tolist() == [0, 0]


def test_a_large_memo_index_takes_no_memory(write: Callable[..., Any]) -> None:
    for content in (b"\x80\x02K\x01r\x00\x00\x00\x70.", b"I1\np1879048192\n."):
        assert read_pickle(write(content)) == 1


PAIRS = b"(]q\x00" + b"".join(b"]q%c(h%ch%ce" % (level, level - 1, level - 1) for level in range(1, 60)) + b"t."


TUPLES = b")" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(60))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "content",
    [
        b"}" + TUPLES + b"K\x00s.",  # a key whose hash takes 2^60 steps
        TUPLES + b"U\x01x\x93.",  # the name of a function, likewise
        b"c_codecs\nencode\nU\x01x" + TUPLES + b"\x86R.",  # an encoding, likewise
        b"\x80\x05\x96" + b"\x09" * 8 + b"x.",  # a bytearray of 10^18 bytes
        b"\x8a\xff" + b"\x7f" * 255 + b".",  # a long integer
        b"\x8b" + (10**6).to_bytes(4, "little") + b"\x7f" * 10**6 + b".",
        b"K\x01" + b"2" * 100 + b".",  # DUP, which no writer uses
        b"]" * 3_000_000 + b".",
    ],
)
def test_a_small_file_takes_little_time_and_memory(write: Callable[..., Any], content: bytes) -> None:
    with pytest.raises(UserError, match="batch is damaged or contains more"):
        read_pickle(write(content))


@pytest.mark.timeout(30)
def test_a_value_used_many_times_is_stored_once(write: Callable[..., Any]) -> None:
    # 60 lists, each of which contains the one before it twice: expanded, 2^60 lists.
    inner = read_pickle(write(PAIRS))[-1]
    for _ in range(59):
        assert inner[0] is inner[1]
        inner = inner[0]


@pytest.mark.timeout(30)
def test_text_cannot_become_many_arrays(write: Callable[..., Any]) -> None:
    # A megabyte of text, and then a thousand arrays that each copy it.
    text = b"X" + (2**20).to_bytes(4, "little") + b"x" * 2**20 + b"q\x00U\x06latin1q\x01c_codecs\nencode\nq\x02"
    with pytest.raises(UserError, match="more bytes in arrays than in the file"):
        read_pickle(write(b"(" + text + b"h\x02h\x00h\x01\x86R" * 1000 + b"t."))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("sides", [20_000, 3])
def test_huge_integers_as_a_shape_take_no_time(write: Callable[..., Any], sides: int) -> None:
    side = b"\x8a\x40" + b"\x7f" * 63 + b"\x3f"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01(" + side * sides + b"tcnumpy\ndtype\nU\x02u1\x85R\x89U\x00tb."
    )
    with pytest.raises(UserError, match="an array of an impossible shape"):
        read_pickle(write(array))


@pytest.mark.timeout(30)
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "batch")
    with pytest.raises(UserError, match=r"batch cannot be read \(Not a regular file"):
        read_pickle(tmp_path / "batch")


def test_an_array_must_have_the_bytes_its_shape_needs(write: Callable[..., Any]) -> None:
    content = pickle.dumps(np.zeros((3, 5), np.uint8), 2)
    assert content.count(b"K\x03K\x05\x86") == 1
    with pytest.raises(UserError, match="shape"):
        read_pickle(write(content.replace(b"K\x03K\x05\x86", b"K\x03K\x06\x86")))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing"):
        read_pickle(tmp_path / "batch")


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\); check the path"):
        read_pickle(tmp_path)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_never_escapes_as_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps({"data": np.zeros((2, 3), np.uint8), "labels": [0, 1]}, 2))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(UserError):
        read_pickle(path)
