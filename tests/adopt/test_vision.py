"""Importing timm and torchvision next to any torch."""

import logging
from types import ModuleType

import pytest

from codinet.adopt import vision
from codinet.errors import UserError

NO_NMS = RuntimeError("operator torchvision::nms does not exist")


def fails(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> ModuleType:
    """Imports raise these errors one after another, then succeed."""
    left, module = list(errors), ModuleType("timm")

    def load(_name: str) -> ModuleType:
        if left:
            raise left.pop(0)
        return module

    monkeypatch.setattr(vision, "_import", load)
    monkeypatch.setattr(vision, "_declared", [])
    monkeypatch.setattr(vision, "_declare_operators", lambda: vision._declared.append(None))  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "0.28.0")
    monkeypatch.setattr("torch.version.cuda", None)
    return module


def test_missing_operators_are_declared_and_the_repair_is_stated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = fails(monkeypatch, NO_NMS)
    with caplog.at_level(logging.WARNING):
        assert vision.import_vision("timm") is module
    (said,) = caplog.messages
    assert said.endswith(
        "pip install --force-reinstall --no-deps --index-url https://download.pytorch.org/whl/cpu "
        "torchvision==0.28.0+cpu"
    )
    assert vision.import_vision("timm") is module
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ([ImportError("No module named 'timm'")], r"timm cannot be imported [(]No module named 'timm'[)]; install it "),
        ([RuntimeError("no device")], r"[(]no device[)]; install the torchvision that fits your torch: pip install "),
        ([NO_NMS, NO_NMS], "nms does not exist[)]; install the torchvision that fits your torch: pip .* torchvision=="),
        ([NO_NMS, ImportError("libcudart")], "timm cannot be imported [(]libcudart[)]; install the torchvision"),
    ],
)
def test_an_installation_that_cannot_work_is_a_user_error(
    errors: list[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, *errors)
    with pytest.raises(UserError, match=sentence):
        vision.import_vision("timm")


def test_only_the_two_libraries_are_imported() -> None:
    with pytest.raises(UserError, match="Unknown library 'os'; choose from timm, torchvision"):
        vision.import_vision("os")
