"""Every attack, from the modules that hold them."""

from tests.attack import on_api, on_commands, on_data, on_downloads, on_explorer, on_files, on_images, on_shards
from tests.attack.harness import Attack

MODULES = (on_api, on_commands, on_data, on_downloads, on_explorer, on_files, on_images, on_shards)
ATTACKS: list[Attack] = [attack for module in MODULES for attack in module.ATTACKS]
