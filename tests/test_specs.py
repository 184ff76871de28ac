"""Names of networks, and which functions a file may name."""

import pytest

from codinet.errors import UserError
from codinet.specs import ALLOWED_CODE, Spec, allow_code, parse_spec, require_allowed, require_arch, slug


@pytest.mark.parametrize(
    ("arch", "spec"),
    [
        ("resnet32", Spec("codinet", "resnet32")),
        ("timm:convnext_atto", Spec("timm", "convnext_atto")),
        ("timm:convnext_atto.d2_in1k", Spec("timm", "convnext_atto.d2_in1k")),
        ("torchvision:resnet50", Spec("torchvision", "resnet50")),
        ("my_package.nets:make_net", Spec("python", "my_package.nets:make_net")),
    ],
)
def test_a_name_says_where_a_network_comes_from(arch: str, spec: Spec) -> None:
    assert parse_spec(arch) == require_arch(arch) == spec


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("timm:", "timm: must be followed by the name of a network, got 'timm:'"),
        ("timm:hf-hub:someone/model", "timm: must be followed by the name of a network"),
        ("torchvision:../x", "torchvision: must be followed by the name of a network"),
        ("os:system('x')", "A network must be one of codinet's own, timm:NAME, torchvision:NAME or package.module:fun"),
        (":", "A network must be one of codinet's own"),
        ("a:b:c", "A network must be one of codinet's own"),
        (7, "A network must be a name as text, got 7"),
    ],
)
def test_other_names_are_refused(arch: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_spec(arch)
    assert message in str(error.value)


def test_an_unknown_network_of_our_own_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"Unknown architecture 'resnet33'.*resnet32"):
        require_arch("resnet33")


def test_a_name_is_a_valid_part_of_a_folder_name() -> None:
    assert slug("timm:convnext_atto") == "timm-convnext_atto"


def test_a_function_is_called_only_if_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codinet.specs._allowed", set())
    with pytest.raises(UserError, match=r"may run any code; if you trust it, set CODINET_ALLOW_CODE=nets:make"):
        require_allowed("nets:make")
    monkeypatch.setenv(ALLOWED_CODE, "others:make,nets:make")
    require_allowed("nets:make")
    monkeypatch.delenv(ALLOWED_CODE)
    allow_code("nets:make")
    require_allowed("nets:make")
    with pytest.raises(UserError, match=r"A function must be package\.module:function, got 'timm:x'"):
        allow_code("timm:x")
