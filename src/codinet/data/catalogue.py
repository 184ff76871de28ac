"""The data sets that codinet knows by name: their files, sources, terms of use and checksums.

Facts only, without torch. `download` fetches and verifies the files; `cifar`, `svhn` and `npz` load them.
"""

from dataclasses import dataclass
from pathlib import Path

from codinet.errors import UserError, unknown


@dataclass(frozen=True)
class KnownFile:
    """One file of a layout. Fields are None where nothing is published."""

    name: str
    md5: str | None = None
    size: int | None = None  # bytes
    lines: int | None = None  # for lists of class names: how many


@dataclass(frozen=True)
class Layout:
    """One official form of a data set: the folder and the files in it."""

    folder: str
    files: tuple[KnownFile, ...]


@dataclass(frozen=True)
class Archive:
    """A file to download: a tar archive to unpack, or a data file."""

    address: str
    sha256: str
    md5: str
    size: int  # bytes

    @property
    def name(self) -> str:
        """The file name at the end of the address."""
        return self.address.rsplit("/", 1)[1]


@dataclass(frozen=True)
class KnownDataset:
    """A data set with a name. A download creates the first layout."""

    name: str
    title: str
    summary: str
    terms: str
    page: str
    layouts: tuple[Layout, ...] = ()
    archives: tuple[Archive, ...] = ()

    def locate(self, root: Path) -> tuple[Path, Layout] | None:
        """Find the files in a folder under `root`, or in `root` itself.

        Complete layouts are preferred to incomplete ones, and earlier layouts to later ones.

        Returns:
            The folder and its layout, or None if no file was found.
        """
        places = [(root / layout.folder, layout) for layout in self.layouts]
        places += [(root, layout) for layout in self.layouts]
        for quantifier in (all, any):
            for folder, layout in places:
                if quantifier((folder / file.name).is_file() for file in layout.files):
                    return folder, layout
        return None

    def require(self, root: Path) -> tuple[Path, Layout]:
        """Like `locate`, but raise a `UserError` if no file was found."""
        located = self.locate(root)
        if located is None:
            folders = " or ".join(layout.folder for layout in self.layouts)
            raise UserError(
                f"{self.title} was not found under {root} (no {folders} there); {self.hint}, or set --data-root or "
                "CODINET_DATA to its folder."
            )
        return located

    @property
    def hint(self) -> str:
        """How to get the files, for error messages."""
        return f"download it with `codinet data download {self.name}`"


DIGITS_FILE = "digits.npz"  # in this package
DIGITS_SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"

_KRIZ = "https://www.cs.toronto.edu/~kriz"
_CITE_KRIZ = (
    "No licence is stated; the author asks to cite A. Krizhevsky, "
    '"Learning Multiple Layers of Features from Tiny Images", 2009.'
)
_CIFAR10_FILE = 30_730_000  # 10,000 rows of 1 + 3,072 bytes
_CIFAR100_ROW = 3_074

_DIGITS = KnownDataset(
    name="digits",
    title="The embedded digits",
    summary="1,797 grey 8×8 handwritten digits in 10 classes; included in codinet.",
    terms="CC BY 4.0; E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998.",
    page="https://doi.org/10.24432/C50P49",
)

_CIFAR10 = KnownDataset(
    name="cifar10",
    title="CIFAR-10",
    summary="60,000 colour 32×32 photographs in 10 classes; 50,000 train, 10,000 test.",
    terms=_CITE_KRIZ,
    page=f"{_KRIZ}/cifar.html",
    layouts=(
        Layout(
            "cifar-10-batches-bin",
            (
                KnownFile("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", _CIFAR10_FILE),
                KnownFile("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", _CIFAR10_FILE),
                KnownFile("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", _CIFAR10_FILE),
                KnownFile("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", _CIFAR10_FILE),
                KnownFile("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", _CIFAR10_FILE),
                KnownFile("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", _CIFAR10_FILE),
                KnownFile("batches.meta.txt", lines=10),
            ),
        ),
        Layout(
            "cifar-10-batches-py",
            (
                KnownFile("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                KnownFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                KnownFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                KnownFile("data_batch_4", "634d18415352ddfa80567beed471001a"),
                KnownFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
                KnownFile("test_batch", "40351d587109b95175f43aff81a1287e"),
                KnownFile("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
            ),
        ),
    ),
    archives=(
        Archive(
            f"{_KRIZ}/cifar-10-binary.tar.gz",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            size=170_052_171,
        ),
    ),
)

_CIFAR100 = KnownDataset(
    name="cifar100",
    title="CIFAR-100",
    summary="60,000 colour 32×32 photographs in 100 classes; 50,000 train, 10,000 test.",
    terms=_CITE_KRIZ,
    page=f"{_KRIZ}/cifar.html",
    layouts=(
        Layout(
            "cifar-100-binary",
            (
                KnownFile("train.bin", "6172c7755cfe09b2fe270c85cebc1b15", 50_000 * _CIFAR100_ROW),
                KnownFile("test.bin", "4499cfba6c016c1be1438163640a0898", 10_000 * _CIFAR100_ROW),
                KnownFile("fine_label_names.txt", lines=100),
            ),
        ),
        Layout(
            "cifar-100-python",
            (
                KnownFile("train", "16019d7e3df5f24257cddd939b257f8d"),
                KnownFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
                KnownFile("meta", "7973b15100ade9c7d40fb424638fde48"),
            ),
        ),
    ),
    archives=(
        Archive(
            f"{_KRIZ}/cifar-100-binary.tar.gz",
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            size=168_513_733,
        ),
    ),
)

_SVHN_TRAIN = Archive(
    "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
    sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    md5="e26dedcc434d2e4c54c9b2d4a06d8373",
    size=182_040_794,
)
_SVHN_TEST = Archive(
    "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
    sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    md5="eb5a983be6a315427106f1b164d9cef3",
    size=64_275_384,
)
_SVHN = KnownDataset(
    name="svhn",
    title="SVHN",
    summary="99,289 colour 32×32 house-number digits in 10 classes; 73,257 train, 26,032 test.",
    terms="For non-commercial use only; cite Y. Netzer et al., NIPS workshop on deep learning, 2011.",
    page="http://ufldl.stanford.edu/housenumbers/",
    layouts=(
        Layout(
            "svhn",
            tuple(KnownFile(file.name, file.md5, file.size) for file in (_SVHN_TRAIN, _SVHN_TEST)),
        ),
    ),
    archives=(_SVHN_TRAIN, _SVHN_TEST),
)

KNOWN: dict[str, KnownDataset] = {known.name: known for known in (_DIGITS, _CIFAR10, _CIFAR100, _SVHN)}


def lookup(name: str) -> KnownDataset:
    """Return the known data set of that name; raise a `UserError` if there is none."""
    if not isinstance(name, str):
        raise UserError(f"The name of a data set must be a string, got {type(name).__name__}.")
    if name not in KNOWN:
        raise unknown("data set", name, KNOWN)
    return KNOWN[name]
