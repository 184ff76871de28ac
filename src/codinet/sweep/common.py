"""What all runs of a sweep share, where it differs from the recipe's own."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from codinet.config import RunConfig


@dataclass(frozen=True)
class Common:
    """Values for every run; those left out are the recipe's."""

    epochs: int | None = None
    """Epochs of stage 1."""
    finetune: int | None = None
    """Epochs of stage 2, of routed runs."""
    batch: int | None = None
    """Images of a step. Default 512 on a GPU and 64 elsewhere."""
    views: int | None = None
    """Augmentations of each image in a step."""
    image_size: int | None = None
    """Side in pixels that images of a folder are brought to."""
    holdout: int | None = None
    """Training images kept aside and watched instead of the test set, to choose recipes on."""
    watch: Literal["test", "train"] | None = None
    """What every epoch is judged on if nothing is held out; with "train" the test set is read once, at the end."""

    def put_into(self, config: RunConfig) -> RunConfig:
        return replace(config, data=self._given(config.data), schedule=self._given(config.schedule))

    def _given(self, part: Any) -> Any:
        """A part of a config with those of its values that are given here."""
        given = {name: value for name, value in vars(self).items() if value is not None and hasattr(part, name)}
        return replace(part, **given)
