"""The static network: no routers, every block runs, as `--no-routed`."""

from dataclasses import replace
from typing import TYPE_CHECKING

from codinet.methods.method import Method, Stage, static_stage
from codinet.published import STATIC

if TYPE_CHECKING:
    from codinet.config import RunConfig


class StaticMethod(Method):
    """The plain residual network."""

    name = "static"
    title = STATIC
    routers = ("fc",)  # as without a method; no routers are built
    settings = frozenset()
    routed = False

    def configure(self, config: "RunConfig") -> "RunConfig":
        return replace(config, network=replace(config.network, routed=False))

    def stages(self, config: "RunConfig") -> list[Stage]:
        return static_stage(config.schedule)


METHOD = StaticMethod()
