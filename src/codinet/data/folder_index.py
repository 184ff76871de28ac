"""The image files of a folder, found and sorted; for large folders remembered between runs.

A million files take little memory here: names are one block of bytes. Listing them and reading their headers takes
minutes, so an index of a large folder is kept in the cache of codinet (`CODINET_CACHE`). It is valid while every folder
has the modification time and the number of entries that it had. A damaged or outdated index is made again. Facts that
were computed from some of the files, such as statistics, are kept too, and are valid while these files have the same
size and modification time.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple, overload

import numpy as np
import torch

from codinet import files
from codinet.data.dataset import DamagedFiles, hold_out, require_names
from codinet.data.images import FORMATS, Header, read_header
from codinet.data.threads import map_in_threads
from codinet.errors import UserError

SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"],
)
LARGE = 20_000  # files from which on an index is kept

_TEST_FOLDERS = ("test", "val", "valid", "validation")
_RECENT = 2 * 10**9  # nanoseconds; a folder that has just changed may change again without a new time
_SPREAD = 8  # files of a split that are looked at first
_FORMAT = 1


class FileList(Sequence[str]):
    """The paths of many files.

    Args:
        folders: The folders.
        folder_N: For each file, the position of its folder.
        names: The names of all files, one after the other, in the encoding of the file system.
        ends_N: For each file, where its name ends.
        order_N: Which of the files are in the list, and in which order; None: all.
    """

    def __init__(
        self,
        folders: Sequence[str],
        folder_N: np.ndarray,
        names: bytes,
        ends_N: np.ndarray,
        order_N: np.ndarray | None = None,
    ) -> None:
        self.folders, self.folder_N, self.names, self.ends_N, self.order_N = folders, folder_N, names, ends_N, order_N

    def __len__(self) -> int:
        return len(self.ends_N if self.order_N is None else self.order_N)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "FileList": ...
    def __getitem__(self, index: int | slice) -> "str | FileList":
        if isinstance(index, slice):
            return self.pick(range(len(self))[index])
        index = range(len(self))[index]
        row = index if self.order_N is None else int(self.order_N[index])
        start = int(self.ends_N[row - 1]) if row else 0
        return os.path.join(self.folders[self.folder_N[row]], os.fsdecode(self.names[start : int(self.ends_N[row])]))

    def pick(self, indices: Sequence[int] | np.ndarray) -> "FileList":
        """Return the files at these indices, in that order."""
        order_N = np.asarray(indices, np.int64)
        order_N = order_N if self.order_N is None else self.order_N[order_N]
        return FileList(self.folders, self.folder_N, self.names, self.ends_N, order_N)


class Files(NamedTuple):
    """Image files and the class of each, in a fixed order."""

    paths: FileList
    labels_N: torch.Tensor  # int64

    def pick(self, index_N: torch.Tensor) -> "Files":
        """Return the files at these indices."""
        return Files(self.paths.pick(index_N.numpy()), self.labels_N[index_N])


class Sizes(NamedTuple):
    """The sizes of the images of a folder."""

    height: int  # of all images; 0 if sizes differ
    width: int
    side: int  # the median of the shorter sides
    square: int  # 1 if all are square
    largest_height: int  # of the image with the most pixels
    largest_width: int


def summarise_sizes(headers: Sequence[Header]) -> Sizes:
    """Return the sizes of images; `UserError` if there are none."""
    if not headers:
        raise UserError("None of the image files can be read; replace them.")
    one = headers[0] if len({header[:2] for header in headers}) == 1 else Header(0, 0, False)
    largest = max(headers, key=lambda header: header.height * header.width)
    return Sizes(
        one.height,
        one.width,
        median_low(min(header.height, header.width) for header in headers),
        int(all(header.height == header.width for header in headers)),
        largest.height,
        largest.width,
    )


class FolderIndex:
    """The training files, the test files and the classes of an image folder.

    Args:
        folder: `DIR/train/<class>/*` with `DIR/test/<class>/*` (or `val`), or `DIR/<class>/*`, of which a fixed,
            stratified fifth becomes the test split. A folder with another structure is a `UserError`.
        damaged: Collects files whose headers cannot be read; None: they are an error.
    """

    def __init__(self, folder: Path, damaged: DamagedFiles | None = None) -> None:
        self.damaged, self._layout = damaged, _find_layout(folder)
        self.classes = self._layout.classes
        state = self._layout.state()
        self.large = sum(entries for _, _, entries in state) >= LARGE
        self._fingerprint = hashlib.sha256(repr((_FORMAT, state)).encode()).hexdigest()
        key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
        self._cache, self._facts_cache = (cache_folder() / "folders" / f"{key}{end}" for end in (".index", ".facts"))
        everything = self._load() if self.large else None
        if everything is None:
            everything = self._scan()
            now = time.time_ns()
            if self.large and all(abs(now - changed) > _RECENT for _, changed, _ in state):
                self._save(everything)
        if self._layout.tests:
            train = int((everything.paths.folder_N < self._layout.tests[0]).sum())
            self.train = everything.pick(torch.arange(train))
            self.test = everything.pick(torch.arange(train, len(everything.paths)))
        else:
            picked = hold_out(everything.labels_N, max(1, round(len(everything.labels_N) / 5)))
            self.train, self.test = (everything.pick(index_N) for index_N in picked)

    def sizes(self) -> "Sizes":
        """Read the headers of all files, or return what they said before."""

        def compute() -> list[int]:
            return list(summarise_sizes(self._read_headers([*self.train.paths, *self.test.paths])))

        return Sizes(*self.fact("sizes", [], compute))

    def all_grey(self) -> bool:
        """Whether every image is grey. Stops at the first one in colour, which is soon found if there are many."""
        spread = [_spread(part.paths) for part in (self.train, self.test)]
        first = [path for paths in spread for path in paths[:_SPREAD]]

        def compute() -> bool:
            # The first few are from all parts of the folder; usually one of them decides.
            return all(header.grey for header in self._read_headers(first)) and all(
                header.grey for paths in spread for header in self._read_headers(paths[_SPREAD:])
            )

        return bool(self.fact("all grey", first, compute))

    def _read_headers(self, paths: Sequence[str]) -> list[Header]:
        """The headers of the files that can be read."""

        def read(path: str) -> Header | None:
            try:
                return read_header(Path(path))
            except UserError as error:
                if self.damaged is None:
                    raise
                self.damaged.add(path, str(error))
                return None

        headers = map_in_threads(read, paths, "Reading image headers")
        return [header for header in headers if header is not None]

    def fact(self, name: str, sources: Sequence[str], compute: Callable[[], Any]) -> Any:
        """Return what `compute` returns (as JSON), or what it returned before for a large folder.

        Args:
            name: A unique name of the fact.
            sources: The files that it depends on, besides the names of all files.
            compute: Computes it.
        """
        if not self.large:
            return compute()
        signature, known = _signature(sources), self._read_facts()
        if name in known and known[name]["files"] == signature:
            return known[name]["value"]
        value = compute()
        known = self._read_facts()  # another process may have added some
        known[name] = {"files": signature, "value": value}
        with suppress(UserError, OSError):  # the cache may be read-only
            self._facts_cache.parent.mkdir(parents=True, exist_ok=True)
            files.save_tensors(self._facts_cache, {}, {"index": self._fingerprint, "facts": known})  # for its checksum
        return value

    def _read_facts(self) -> dict[str, Any]:
        with suppress(UserError):
            _, found = files.load_tensors(self._facts_cache)
            if found["index"] == self._fingerprint:
                return found["facts"]
        return {}

    def _load(self) -> Files | None:
        """The files of the index if it is valid."""
        if not self._cache.exists():
            return None
        with suppress(UserError, KeyError, ValueError):
            tensors, about = files.load_tensors(self._cache)
            if about == self._fingerprint:
                paths = FileList(
                    self._layout.folders,
                    tensors["folder_N"].numpy(),
                    tensors["names"].numpy().tobytes(),
                    tensors["ends_N"].numpy(),
                )
                return Files(paths, tensors["labels_N"])
        return None

    def _save(self, found: Files) -> None:
        paths = found.paths
        tensors = {
            "folder_N": torch.from_numpy(paths.folder_N),
            "names": torch.frombuffer(bytearray(paths.names), dtype=torch.uint8),
            "ends_N": torch.from_numpy(paths.ends_N),
            "labels_N": found.labels_N,
        }
        with suppress(UserError, OSError):  # the cache may be read-only
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            files.save_tensors(self._cache, tensors, self._fingerprint)

    def _scan(self) -> Files:
        """List the files of all classes."""
        folders, labels = self._layout.folders, self._layout.labels
        names = map_in_threads(_image_names, folders, "Listing images")
        for folder, found in zip(folders, names, strict=True):
            if not found:
                inside = " (folders inside it are not read)" if _subfolders(Path(folder)) else ""
                raise UserError(
                    f"The class folder {folder} has no images{inside}; add some ({', '.join(FORMATS)}) or remove it."
                )
        counts = [len(found) for found in names]
        folder_N = np.repeat(np.arange(len(folders), dtype=np.int32), counts)
        encoded = [os.fsencode(name) for found in names for name in found]
        ends_N = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        labels_N = torch.tensor(labels).repeat_interleave(torch.tensor(counts))
        return Files(FileList(folders, folder_N, b"".join(encoded), ends_N), labels_N)


class _Layout(NamedTuple):
    """The class folders of a folder: those of the training files first."""

    parents: tuple[Path, ...]
    folders: list[str]
    labels: list[int]
    classes: tuple[str, ...]
    tests: tuple[int, ...]  # position of the first class folder with test files; empty: they are held out

    def state(self) -> list[tuple[str, int, int]]:
        """Name, modification time and number of entries of each folder."""
        return [_folder_state(folder) for folder in (*map(str, self.parents), *self.folders)]


def _folder_state(folder: str) -> tuple[str, int, int]:
    with os.scandir(folder) as entries:
        return folder, os.stat(folder).st_mtime_ns, sum(1 for _ in entries)


def _signature(paths: Sequence[str]) -> str:
    state: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            found = os.stat(path)
            state.append((found.st_size, found.st_mtime_ns))
        except OSError:  # a link to nowhere
            state.append(None)
    return hashlib.sha256(repr(state).encode()).hexdigest()


def _spread(paths: FileList) -> FileList:
    """The same files in another fixed order: some of every part of the list come first."""
    number = len(paths)
    stride = max(1, number // _SPREAD)
    return paths.pick(np.argsort(np.arange(number) % stride, kind="stable"))


def cache_folder() -> Path:
    """The folder for what can be made again: CODINET_CACHE, or the user's cache folder."""
    own = os.environ.get("CODINET_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codinet"


def is_image_file(path: Path) -> bool:
    """Return whether a path has an image's suffix and is not a folder. Its content is not checked."""
    return has_image_name(path.name) and not path.is_dir()


def has_image_name(name: str) -> bool:
    """Return whether a name has an image's suffix and is not hidden."""
    return os.path.splitext(name)[1].lower() in SUFFIXES and _is_visible(name)


def _is_visible(name: str) -> bool:
    """Return whether a name is not one of the hidden entries that archivers and file managers create."""
    return not name.startswith((".", "__MACOSX"))


def _image_names(folder: str) -> list[str]:
    # `scandir` knows which entries are folders; `iterdir` would need a system call for each.
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if has_image_name(entry.name) and not _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if _is_visible(entry.name) and _is_folder(entry))


def ignored_folders(folder: Path) -> list[Path]:
    """Return the folders inside class folders that contain images, which are not read."""
    nested = [inner for name in _find_layout(folder).folders for inner in _subfolders(Path(name))]
    return [inner for inner in nested if _contains_images(inner)]


def _contains_images(folder: Path) -> bool:
    """Return whether there is an image at any depth. Links to folders are not followed: they may form a cycle."""
    queue = [folder]
    while queue:
        entries = []
        with suppress(OSError), os.scandir(queue.pop()) as found:
            entries = list(found)
        if any(has_image_name(entry.name) and not _is_folder(entry) for entry in entries):
            return True
        queue += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return False


def _find_layout(folder: Path) -> _Layout:
    if not folder.is_dir():
        raise UserError(f"The folder {folder} does not exist; check the path.")
    train = folder / "train"
    if not train.is_dir():
        classes = _class_names(folder)
        return _Layout((folder,), [str(folder / name) for name in classes], list(range(len(classes))), classes, ())
    test = next((folder / name for name in _TEST_FOLDERS if (folder / name).is_dir()), None)
    if test is None:
        raise UserError(f"{folder} has a train folder but no test folder; add {folder / 'test'}.")
    classes, test_classes = _class_names(train), _class_names(test, at_least=1)
    unknown = sorted(set(test_classes) - set(classes))
    if unknown:
        raise UserError(f"{test} has a class {unknown[0]!r} that {train} lacks; give both the same class folders.")
    labels = [*range(len(classes)), *(label for label, name in enumerate(classes) if name in set(test_classes))]
    folders = [
        *(str(train / name) for name in classes),
        *(str(test / name) for name in classes if name in test_classes),
    ]
    return _Layout((folder, train, test), folders, labels, classes, (len(classes),))


def _class_names(folder: Path, *, at_least: int = 2) -> tuple[str, ...]:
    names = [entry.name for entry in _subfolders(folder)]
    if not names:
        raise UserError(f"{folder} has no class folders; put the images of each class in a separate folder.")
    if len(names) < at_least:
        raise UserError(f"{folder} has one class folder only ({names[0]}); a classifier needs at least two.")
    require_names(names, str(folder))
    return tuple(names)
