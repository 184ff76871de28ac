import subprocess
import sys

import pytest

from codinet.data.catalogue import KNOWN, lookup
from codinet.errors import UserError


def test_can_be_imported_without_torch_and_numpy() -> None:
    code = "import codinet.data.catalogue, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_facts_are_well_formed() -> None:
    assert [known.name for known in KNOWN.values()] == ["digits", "cifar10", "cifar100", "svhn"]
    for known in KNOWN.values():
        assert known.summary
        assert known.terms
        assert known.page.startswith("http")
        for one in known.archives:
            assert (len(one.sha256), len(one.md5)) == (64, 32)
            assert one.size > 10**7
        for layout in known.layouts:
            assert all(file.lines or len(file.md5 or "") == 32 for file in layout.files)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"perhaps you meant cifar100.*digits, cifar10, cifar100, svhn"):
        lookup("CIFAR-100")
    with pytest.raises(UserError, match="Unknown data set 'imagenet'; choose from"):
        lookup("imagenet")
    assert KNOWN["svhn"].archives[0].name == "train_32x32.mat"
