"""Attacks on data sets: pickles, npz, mat and binary files, downloads, names and paths, functions of `codinet.data`."""

import functools
import io
import pickle
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.attack.damage import damaged, place
from tests.attack.harness import Attack
from tests.data.conftest import CIFAR10_NAMES, mat_array, mat_file

from codinet.data import catalogue, download
from codinet.data.dataset import Dataset, Split, check
from codinet.data.loading import load, locate
from codinet.data.npz import load_npz
from codinet.data.safe_pickle import read_pickle
from codinet.data.svhn import read_mat
from codinet.data.views import blank_square, crop_flip, normalise, random_views
from codinet.predictor import image_files

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 10**9, 10**30, 0.0, 1.5, -0.5, float("nan"), float("inf"), 1e308),
    *(
        "",
        "1",
        "x",
        b"",
        b"x",
        (),
        (1,),
        [],
        [1, 2],
        {},
        {"a": 1},
        object,
        len,
        Path("x"),
        "\ud800",
        "a\nb",
        "x" * 9999,
    ),
    *(np.float64(2), np.zeros(3), np.array(None), torch.zeros(2), torch.tensor(3), torch.zeros(0)),
    *(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 3, 4, 4, device="meta")),
    torch.zeros(1, 1, 1, 1, dtype=torch.complex64),
]


@functools.cache
def pickles() -> list[bytes]:
    rows = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    values: list[Any] = [
        {"batch_label": "test", "labels": [0, 1, 2], "data": rows, "filenames": ["a.png", "b.png", "c.png"]},
        {b"data": rows[:1], b"fine_labels": [7], b"coarse_labels": [1], "none": None},
        {"label_names": CIFAR10_NAMES, "num_vis": 3072},
        [np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.eye(3)), (1, 2**70), b"", b"\xff", "é"],
    ]
    return [pickle.dumps(value, protocol) for value in values for protocol in range(5)]


def require_plain(value: Any) -> None:
    """Every value inside is of an expected kind; values that are used many times are looked at once."""
    seen, waiting = set(), [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            assert all(isinstance(key, str | bytes | int) for key in one)
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, np.ndarray):
            assert one.dtype.kind in "biuf"
        elif not isinstance(one, tuple):
            assert one is None or isinstance(one, str | bytes | int), type(one)


def attack_pickles(rng: random.Random, folder: Path) -> None:
    place(rng, folder / "batch", damaged(rng, rng.choice(pickles()), rng.choice(pickles())))
    require_plain(read_pickle(folder / "batch"))


def attack_programs(rng: random.Random, folder: Path) -> None:
    """Pickles that are random programs, with values that are used many times and calls of our functions."""
    names = [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"]
    names += [b"c__builtin__\nbytes\n", b"cos\nsystem\n", b"cbuiltins\neval\n"]
    texts = [b"", b"u1", b"f8", b"O", b"latin1", b"utf8", b">", b"V99", b"\xff"]
    two_bytes = b"cnumpy\ndtype\nU\x02u1\x85R\x89U\x02\x01\x02tb"

    def sized(opcode: bytes, content: bytes) -> bytes:
        return opcode + bytes([len(content)]) + content

    pieces: list[Callable[[], bytes]] = [
        lambda: rng.choice([b"]", b"}", b")", b"(", b"N", b"\x88", b"\x89", b"2", b"0", b"1"]),
        lambda: b"K" + bytes([rng.choice([0, 1, 2, 3, 255])]),
        lambda: sized(b"\x8a", rng.randbytes(rng.choice([0, 1, 8, 60, 64, 65, 255]))),
        lambda: sized(b"U", rng.choice(texts)),
        lambda: b"X" + struct.pack("<I", 1000) + b"y" * 1000,
        lambda: rng.choice(names),
        lambda: b"h" + bytes([rng.randrange(6)]),
        lambda: b"q" + bytes([rng.randrange(6)]),
        lambda: rng.choice([b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"R", b"b", b"\x93"]),
        lambda: b"q\x00h\x00h\x00\x86" * rng.choice([1, 5, 60]),
        lambda: b"q\x00]q\x01h\x00ah\x00a" * rng.choice([1, 5, 60]),
        lambda: b"(K\x01(K\x01K\x02t" + two_bytes,
        lambda: b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x02\x85" + two_bytes,
    ]
    program = b"".join(rng.choice(pieces)() for _ in range(rng.choice([3, 10, 40, 200])))
    (folder / "batch").write_bytes(b"\x80\x02(" + program + b"t." if rng.random() < 0.5 else program + b".")
    require_plain(read_pickle(folder / "batch"))


@functools.cache
def cifar_files(name: str, binary: bool) -> dict[str, bytes]:
    """The files of a small data set in one of the official layouts."""
    layout = catalogue.KNOWN[name].layouts[0 if binary else 1]
    *batches, names = layout.files
    found: dict[str, bytes] = {}
    number = 10 if name == "cifar10" else 100
    for seed, file in enumerate(batches):
        rows = np.random.default_rng(seed).integers(0, 256, (3, 3072), dtype=np.uint8)
        labels = [(seed + row) % number for row in range(3)]
        key = "labels" if number == 10 else "fine_labels"
        heads = np.array([[label] if number == 10 else [0, label] for label in labels], np.uint8)
        batch = pickle.dumps({key: labels, "data": rows}, 2)
        found[file.name] = np.hstack([heads, rows]).tobytes() if binary else batch
    classes = CIFAR10_NAMES if number == 10 else [f"class {label}" for label in range(100)]
    key = "label_names" if number == 10 else "fine_label_names"
    found[names.name] = "\n".join(classes).encode() if binary else pickle.dumps({key: classes}, 2)
    return found


def attack_cifar(rng: random.Random, folder: Path) -> None:
    name, binary = rng.choice(["cifar10", "cifar100"]), rng.random() < 0.5
    files = cifar_files(name, binary)
    where = folder / rng.choice(["", catalogue.KNOWN[name].layouts[0 if binary else 1].folder])
    where.mkdir(exist_ok=True)
    for file, content in files.items():
        (where / file).write_bytes(content)
    for file in rng.sample(sorted(files), rng.randint(1, 2)):
        content = files[file]
        change = rng.randrange(6)
        if change == 0:
            (where / file).unlink()
        elif change == 1 and not binary:
            place(rng, where / file, pickle.dumps(odd_batch(rng), rng.randrange(5)))
        elif change == 2:
            place(rng, where / file, content[: rng.randrange(len(content))])
        elif change == 3:
            place(rng, where / file, b"\xff" * rng.choice([0, 1, 3073, 3074, 6146]))
        else:
            place(rng, where / file, damaged(rng, content))
    require_dataset(load(name, folder), (3, 32, 32))


def odd_batch(rng: random.Random) -> Any:
    numbers: list[Any] = [0, 1, 9, 10, 99, 100, -1, True, 2**40, 2**200, "1", None, 1.5]
    rows = rng.choice([0, 1, 2, 3])
    arrays: list[Any] = [np.zeros((rows, 3072), kind) for kind in ("u1", "i1", "u2", "f4", "?")]
    arrays += [np.zeros((rows, 3071), "u1"), np.zeros(3072, "u1"), np.zeros((rows, 3, 1024), "u1"), np.array(1, "u1")]
    labels = rng.choice([[rng.choice(numbers) for _ in range(rows)], list(range(rows)), [0], 7, ("x",), None])
    names = rng.choice([CIFAR10_NAMES, ["a"] * 10, [b"\xff" * 3] * 10, [(1, 2)] * 10, ["\n"] * 10, ["a"], 5])
    batch = {"data": rng.choice(arrays), "labels": labels, "fine_labels": labels, "label_names": names, (1, 2): 3}
    for key in rng.sample(list(batch), rng.randint(0, 3)):
        del batch[key]
    return rng.choice([batch, batch, batch, list(batch.values()), None, 7])


def require_dataset(data: Dataset, shape: tuple[int, ...] | None = None) -> None:
    """What every data set promises."""
    assert check(data) is data
    assert shape is None or data.image_shape == shape
    for split in (data.train, data.test):
        assert split.images_NCHW[:].dtype == torch.uint8
        assert len(split.images_NCHW) == len(split.labels_N) > 0
        assert 0 <= split.labels_N.min() <= split.labels_N.max() < len(data.classes)
    assert all(name.encode() for name in data.classes)


@functools.cache
def mats() -> list[bytes]:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    labels = np.array([[1], [9], [10], [2]], np.uint8)
    return [
        mat_file(
            mat_array("X", images, order=order, compressed=compressed),
            mat_array("y", labels.astype(kind), order=order, compressed=compressed, stored="u1"),
            order=order,
        )
        for order in "<>"
        for compressed in (True, False)
        for kind in ("u1", "f8")
    ]


def odd_mat(rng: random.Random) -> bytes:
    """A file of odd variables: kinds, shapes, names, and more bytes than they have."""
    variables = []
    for _ in range(rng.randint(0, 3)):
        number = rng.choice([0, 1, 2, 4])
        shapes = [(32, 32, 3, number), (32, 32, 3), (number, 1), (1, number), (number,), (1,) * 9, (1,) * 40]
        array = np.full(rng.choice(shapes), rng.choice([0, 1, 10, 11]), rng.choice(["u1", "i2", "f4", "f8", "u8"]))
        variable = mat_array(
            rng.choice(["X", "y", "", "\xff", "X" * 70]),
            array,
            compressed=rng.random() < 0.5,
            stored=rng.choice([None, "u1", "f8"]),
            array_class=rng.choice([None, 1, 4, 6, 9, 255]),
            complex_flag=rng.random() < 0.1,
        )
        variables.append(variable)
    if rng.random() < 0.3:  # more when unpacked than any memory has, or than the tag says
        size = rng.choice([2**20, 2**26, 2**31, 2**32 - 1])
        packed = zlib.compress(struct.pack("<II", 14, size) + b"\0" * rng.choice([0, 100, 2**20]))
        variables.append(struct.pack("<II", 15, len(packed)) + packed)
    if rng.random() < 0.1:  # a narrow type that becomes a wide one
        wide = np.zeros((rng.choice([2**16, 2**23]), 1))
        variables.append(mat_array("y", wide, stored="u1"))
    return mat_file(*variables)


def attack_mats(rng: random.Random, folder: Path) -> None:
    content = rng.choice(mats()) if rng.random() < 0.7 else odd_mat(rng)
    place(rng, folder / "some.mat", damaged(rng, content, rng.choice(mats())) if rng.random() < 0.8 else content)
    for array in read_mat(folder / "some.mat").values():
        assert array.dtype.kind in "iuf"


def attack_svhn(rng: random.Random, folder: Path) -> None:
    for name in ("train_32x32.mat", "test_32x32.mat"):
        content = rng.choice(mats())
        change = rng.randrange(4)
        if change == 0:
            content = damaged(rng, content)
        elif change == 1:
            content = odd_mat(rng)
        place(rng, folder / name, content)
    require_dataset(load("svhn", folder), (3, 32, 32))


@functools.cache
def archives() -> list[bytes]:
    images = np.random.default_rng(0).integers(0, 256, (10, 6, 8, 3), dtype=np.uint8)
    labels = np.arange(10) % 2
    contents: list[dict[str, Any]] = [
        {"x": images, "y": labels, "classes": ["cat", "dog"]},
        {"images": images.transpose(0, 3, 1, 2), "labels": labels.astype("u1")},
        {"x_train": images[..., 0] / 255, "y_train": labels, "x_test": images[:3, ..., 0] / 255, "y_test": labels[:3]},
    ]
    found = []
    for arrays in contents:
        for save in (np.savez, np.savez_compressed):
            stream = io.BytesIO()
            save(stream, **arrays)
            found.append(stream.getvalue())
    return found


def attack_npz(rng: random.Random, folder: Path) -> None:
    content = rng.choice(archives())
    if rng.random() < 0.5:  # the archive itself is damaged, or one of its members, with a right checksum
        content = damaged(rng, content, rng.choice(archives()))
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice(sorted(members))
        members[name] = damaged(rng, members[name])
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, member)
        content = stream.getvalue()
    place(rng, folder / "mine.npz", content)
    require_dataset(load(str(folder / "mine.npz"), folder))


def odd_array(rng: random.Random, key: str) -> Any:
    number = rng.choice([0, 1, 2, 10, 10, 10])
    if key == "classes":
        pairs = [["cat", "dog"], ["a", "a"], ["\ud800", "b"], ["a\n", "b"], ["", "b"], ["a" * 999, "b"]]
        names = rng.choice([*pairs, ["a"], []])
        kinds = [np.array(names), np.array([names]), np.array([b"\xff", b"a"]), np.array("x"), np.array([1, 2]), None]
        kinds += [np.array([None, "a"], dtype=object), np.full(4, 2**30, "u4").view("U2"), np.array(["a", "b"], ">U3")]
        return rng.choice(kinds)
    if key.startswith(("y", "labels")):
        values: list[Any] = [
            np.arange(number) % 2,
            np.zeros(number, int),
            np.full(number, 2**40),
            np.arange(number) - 1,
        ]
        values += [np.arange(number)[:, None] % 2, np.eye(number, dtype=int), np.array(1), np.arange(number) % 2 > 0]
        return rng.choice(values).astype(rng.choice(["i8", "u1", "f8", "u8", "i8", ">i4", "U3", "c16", "M8[s]"]))
    shapes = [(number, 6, 8, 3), (number, 3, 6, 8), (number, 6, 8), (number, 3, 8, 3), (number, 1, 1, 1), (number,)]
    shapes += [(number, 0, 8, 3), (), (1, 1, 1, 1, 1), (number, 6, 8, 4), (number, 1, 3), (number, 70_000, 1)]
    value = rng.choice([0, 0, 1, 0.5, 255, -1, np.nan, np.inf])
    array = np.full(rng.choice(shapes), value, rng.choice(["f4", "f8", "f2"]))
    with np.errstate(all="ignore"):
        return array.astype(rng.choice(["u1", "u1", "u1", "f4", "f8", "i4", "?", ">f4", "g", "c8", "V3", "S2"]))


def attack_arrays(rng: random.Random, folder: Path) -> None:
    """Well-formed archives of odd arrays."""
    with np.load(io.BytesIO(rng.choice(archives()))) as file:
        arrays = dict(file)
    for key in rng.sample(sorted(arrays), rng.randint(0, 2)):
        arrays[key] = odd_array(rng, key)
    if rng.random() < 0.4:
        arrays["classes"] = odd_array(rng, "classes")
    if rng.random() < 0.1:
        arrays["x" if "x" not in arrays else "images"] = odd_array(rng, "x")
    path = folder / "mine.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.savez_compressed(path, **arrays)
    if rng.random() < 0.2:
        with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(rng.choice(["x", "y.npy", "classes", "x_train.npy", "../x.npy"]), odd_member(rng))
    require_dataset(check(load_npz(path)))


def odd_member(rng: random.Random) -> bytes:
    shapes = ["(10,)", "(10, 6, 8)", "(1000000000000, 6, 8)", "(-1, 2)", "(10.5,)", "()", "(9,)*9"]
    shapes += ["-" * 5000 + "1", "[" * 5000]
    header = f"{{'descr': '{rng.choice(['|u1', '<f8', '|O', 'V99999999', '<U9', 'x'])}', 'fortran_order': "
    header += f"{rng.choice(['False', 'True', '3'])}, 'shape': {rng.choice(shapes)}, }}"
    version = rng.choice([b"\1\0", b"\2\0", b"\3\0", b"\x63\0"])
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    body = b"\x93NUMPY" + version + size + header.encode() + b"\0" * rng.choice([0, 10, 480])
    return rng.choice([body, body, b"just text", b"", b"\x93NUMPY"])


def attack_names(rng: random.Random, folder: Path) -> None:
    """`load`, `locate`, `verify`, `download` and `image_files` with odd names, roots and sizes."""
    (folder / "mine.npz").write_bytes(archives()[0])
    names = [
        *(
            "digits",
            "Digits",
            "cifar10",
            "cifr10",
            "svhn",
            "~",
            "~nobody/x",
            "..",
            ".",
            "/",
            "//",
            "x.npz",
            "\0",
            "a\0b",
        ),
        *("\udcff", "a\nb", "x" * 5000, "x/" * 3000, "mine.npz", str(folder / "mine.npz"), "/dev/null", "/dev/zero"),
    ]
    name = rng.choice([*names, *names, rng.choice(ODD_VALUES)])
    root = rng.choice([folder, folder, folder / "none", Path("\0"), Path("x" * 5000), Path("/dev/null"), *ODD_VALUES])
    size = rng.choice([None, None, 8, *ODD_VALUES])
    call = rng.randrange(5)
    if call == 0:
        assert load(name, root, image_size=size).classes
    elif call == 1:
        assert locate(name, root)
    elif call == 2:
        assert download.verify(name, root)
    elif call == 3 and str(name) not in ("cifar10", "svhn"):  # which would be downloaded
        assert download.download(name, root)
    elif isinstance(name, str):
        assert image_files([Path(name), folder])


def attack_views(rng: random.Random, _folder: Path) -> None:
    """`random_views`, `crop_flip`, `normalise` and `blank_square` with odd arguments."""
    images = torch.zeros(2, 3, 4, 5)
    where, flags = torch.tensor([0, 2]), torch.tensor([True, False])
    calls: list[tuple[Callable[..., torch.Tensor], dict[str, Any]]] = [
        (random_views, {"images_LCHW": images, "views": 2, "pad": 1, "flip": True, "blank": 1}),
        (crop_flip, {"images_BCHW": images, "dy_B": where, "dx_B": where, "flip_B": flags, "pad": 1}),
        (normalise, {"images_BCHW": images, "mean_C": torch.zeros(3), "std_C": torch.ones(3)}),
        (blank_square, {"images_BCHW": images, "top_B": where, "left_B": where, "side": 2}),
    ]
    function, arguments = rng.choice(calls)
    for key in rng.sample(list(arguments), rng.randint(1, 2)):
        vectors = [torch.tensor([0, 3]), torch.tensor([-1, 0]), where.int(), where[:1], where.double()]
        batches = [images[0], images[:0], images[:, :1], images.half(), images.long()]
        arguments[key] = rng.choice([*ODD_VALUES, *vectors, *batches])
    result = function(**arguments)
    number = len(next(iter(arguments.values()))) * arguments.get("views", 1)
    assert result.shape == (number, *next(iter(arguments.values())).shape[1:])
    assert result.is_floating_point()


def attack_datasets(rng: random.Random, _folder: Path) -> None:
    """`check` of data sets that were made in Python."""
    split = Split(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    fields: dict[str, Any] = {
        **{"name": "toy", "train": split, "test": split, "classes": ("a", "b")},
        **{"mean": (0.0,), "std": (1.0,), "pad": 0, "flip": False},
    }
    for key in rng.sample(list(fields), rng.randint(1, 2)):
        odd = rng.choice(ODD_VALUES)
        if key in ("train", "test"):
            fields[key] = rng.choice([Split(odd, split.labels_N), Split(split.images_NCHW, odd), odd])
        else:
            fields[key] = rng.choice([odd, (odd,), (odd, odd)])
    require_dataset(Dataset(**fields))


ATTACKS = [
    Attack("data: damaged pickles", attack_pickles),
    Attack("data: pickles that are random programs", attack_programs),
    Attack("data: files of CIFAR", attack_cifar),
    Attack("data: damaged mat files", attack_mats),
    Attack("data: files of SVHN", attack_svhn),
    Attack("data: damaged npz files", attack_npz),
    Attack("data: odd arrays in npz files", attack_arrays),
    Attack("data: odd names and roots", attack_names),
    Attack("data: odd arguments of views", attack_views),
    Attack("data: odd data sets in Python", attack_datasets),
]
