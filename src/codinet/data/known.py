"""The description of a data set with a name: its files, where they come from, and where to find them.

Only the types; the facts are in `official`.
"""

from dataclasses import dataclass
from pathlib import Path

from codinet.errors import UserError


@dataclass(frozen=True)
class KnownFile:
    """One file of a layout; None for what is not published."""

    name: str
    md5: str | None = None
    size: int | None = None  # bytes
    lines: int | None = None  # class names in it, for lists of them


@dataclass(frozen=True)
class Layout:
    """The files of one official form of a data set, and the name of their folder."""

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
        return self.address.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Known:
    """A data set with a name. `download` gives the first layout."""

    name: str
    title: str
    summary: str
    terms: str
    page: str
    layouts: tuple[Layout, ...] = ()
    archives: tuple[Archive, ...] = ()

    def locate(self, root: Path) -> tuple[Path, Layout] | None:
        """The folder with this data set's files and their layout: inside `root`, or `root` itself.

        Complete sets are preferred to incomplete ones, and earlier layouts to later ones.
        """
        places = [(root / layout.folder, layout) for layout in self.layouts]
        places += [(root, layout) for layout in self.layouts]
        for enough in (all, any):
            for folder, layout in places:
                if enough((folder / file.name).is_file() for file in layout.files):
                    return folder, layout
        return None

    def found(self, root: Path) -> tuple[Path, Layout]:
        """`locate`; `UserError` with the way to get the files if there are none."""
        located = self.locate(root)
        if located is None:
            folders = " or ".join(layout.folder for layout in self.layouts)
            raise UserError(f"{self.title} was not found under {root} (no {folders} there); {self.way_out}.")
        return located

    @property
    def way_out(self) -> str:
        return f"fetch it with `codinet data download {self.name}`"
