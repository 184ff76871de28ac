"""Every attack, from the modules that hold them."""

from tests.attack import on_api, on_commands, on_data, on_explorer, on_files, on_images
from tests.attack.harness import Attack

ATTACKS: list[Attack] = [
    attack for module in (on_api, on_commands, on_data, on_explorer, on_files, on_images) for attack in module.ATTACKS
]
