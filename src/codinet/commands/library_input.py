"""How `codinet train` prepares images for a network of timm or torchvision: as the library states for that network.

The size and the crop of an image folder become settings of the run, as if --image-size and --crop had been given.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from codinet.commands import own_data
from codinet.config import RunConfig
from codinet.specs import TIMM, TORCHVISION, parse_spec

if TYPE_CHECKING:
    from codinet.data import Dataset


class LibraryInput(NamedTuple):
    """The config with what the library states, the library's normalisation, and what was taken from it, in words."""

    config: RunConfig
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    taken: tuple[str, ...] = ()

    def normalise(self, dataset: "Dataset") -> "Dataset":
        """Return the data set with the library's normalisation, or unchanged if its images are not in colour."""
        if len(self.mean) != dataset.image_shape[0]:
            return dataset
        return replace(dataset, mean=self.mean, std=self.std)

    def describe(self, dataset: "Dataset") -> str | None:
        """A sentence about what is taken from the library; None if nothing is."""
        colour = len(self.mean) == dataset.image_shape[0]
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        parts = [*self.taken, *([f"mean {mean} and deviation {std} of the colours"] if colour else [])]
        arch = self.config.network.arch
        return f"{arch} gets what {parse_spec(arch).library} states for it: {'; '.join(parts)}." if parts else None


def library_input(config: RunConfig, out: Path, *, resume: bool, folder: bool) -> LibraryInput:
    """Complete a config with the size, crop and normalisation that a network was published with.

    Args:
        config: The config; settings that it has are kept.
        out: The run folder. A run that is continued keeps what it was started with.
        resume: Whether a run in `out` is continued.
        folder: Whether the data is an image folder, which can be resized.

    Returns:
        The config, and the normalisation if the network is one of timm or torchvision.
    """
    from codinet.networks import input_info
    from codinet.runs import open_run

    library = parse_spec(config.network.arch).library
    if library not in (TIMM, TORCHVISION):
        return LibraryInput(config)
    data = config.data
    if not own_data.is_new(out, resume=resume):
        run = open_run(out)
        if run.config.network.arch == config.network.arch:
            size, crop = run.config.data.image_size, run.config.data.crop
            data = replace(data, image_size=data.image_size or size, crop=data.crop or crop)
            return LibraryInput(replace(config, data=data), run.data.mean, run.data.std)
    stated = input_info(config.network.arch)
    assert stated is not None
    taken: list[str] = []
    if folder and data.image_size is None:
        data = replace(data, image_size=stated.size)
        taken.append(f"{stated.size}×{stated.size} pixels (--image-size)")
    if folder and data.crop is None:
        data = replace(data, crop=min(1.0, stated.crop))
        taken.append(f"crop {data.crop:g} (--crop)")
    return LibraryInput(replace(config, data=data), stated.mean, stated.std, tuple(taken))
