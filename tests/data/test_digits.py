import hashlib
from importlib import resources
from pathlib import Path

import pytest
import torch

from codinet.data.dataset import check
from codinet.data.digits import load_digits
from codinet.errors import UserError


def test_the_embedded_digits() -> None:
    digits = check(load_digits())
    assert (len(digits.train), len(digits.test)) == (1297, 500)
    assert digits.image_shape == (1, 8, 8)
    assert digits.train.images_NCHW.dtype == torch.uint8
    assert digits.classes == tuple("0123456789")
    assert (digits.pad, digits.flip) == (1, False)


def test_values_are_stretched_to_bytes() -> None:
    digits = load_digits()
    values = digits.train.images_NCHW.unique().tolist()
    assert values == [round(level * 255 / 16) for level in range(17)]


def test_the_split_is_stratified_and_fixed() -> None:
    digits = load_digits()
    counts = torch.bincount(digits.test.labels_N)
    assert counts.min() >= 48
    assert counts.max() <= 51
    # A fingerprint: were the split to move, results of different versions could not be compared.
    content = digits.test.images_NCHW.numpy().tobytes() + bytes(digits.test.labels_N.tolist())
    assert hashlib.sha256(content).hexdigest()[:16] == "45afb03b695886ee"


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4 cut"])
def test_a_damaged_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    if content is not None:
        (tmp_path / "digits.npz").write_bytes(content)
    with pytest.raises(UserError, match="the embedded digits are damaged; install codinet again"):
        load_digits()
