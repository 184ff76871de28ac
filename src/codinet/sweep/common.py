"""What all runs of a sweep share, where it differs from the recipe's own."""

from dataclasses import dataclass, replace

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

    def put_into(self, config: RunConfig) -> RunConfig:
        given = {name: value for name, value in vars(self).items() if value is not None and name != "image_size"}
        config = replace(config, schedule=replace(config.schedule, **given))
        if self.image_size is not None:
            config = replace(config, data=replace(config.data, image_size=self.image_size))
        return config
