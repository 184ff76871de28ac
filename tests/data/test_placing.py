from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from codinet.data import Dataset, memory
from codinet.data.folder import load_folder
from codinet.data.placing import Placing, free_bytes
from codinet.data.resident import Resident
from codinet.data.stream import Stream
from codinet.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture
def lazy(image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """16 + 4 images of 360 bytes, decoded when used."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    return load_folder(image_folder(per_class=10))


def test_what_lies_in_memory_is_resident_on_a_cpu(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    data = Placing(few, CPU).place(few.train)
    assert isinstance(data, Resident)
    assert data.images_NCHW is few.train.images_NCHW


def test_what_has_room_is_decoded_once_and_what_has_not_is_streamed(
    lazy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * 4 * 360)
    placing = Placing(lazy, CPU)
    assert isinstance(placing.place(lazy.test), Resident)  # four images, where eight have room
    assert isinstance(placing.place(lazy.train), Stream)
    assert isinstance(placing.place(lazy.test), Resident)
    assert isinstance(placing.place(lazy.test), Stream)  # the room is taken


def test_the_user_decides(few: Dataset, lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(Placing(few, CPU).place(few.train, "stream"), Stream)
    with pytest.raises(UserError, match=r"16 images of pictures take .* GiB free; leave --loader resident out"):
        Placing(lazy, CPU).place(lazy.train, "resident")
    monkeypatch.setattr(memory, "available_bytes", lambda: 8000)
    assert isinstance(Placing(lazy, CPU).place(lazy.train, "auto"), Stream)  # more than half of it
    assert isinstance(Placing(lazy, CPU).place(lazy.train, "resident"), Resident)


def test_a_gpus_own_memory_counts(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 2 * few.train.images_NCHW.nbytes - 1, 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    cuda = torch.device("cuda:1")
    assert free_bytes(cuda) == 2 * few.train.images_NCHW.nbytes - 1
    assert asked == [cuda]


def test_where_nobody_says_everything_is_resident(lazy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    assert isinstance(Placing(lazy, CPU).place(lazy.train), Resident)
