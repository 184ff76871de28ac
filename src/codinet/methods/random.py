"""Random skipping: each block runs for a random part of the images, at a rate that meets the budget.

A router has to beat this. Decisions are random, but at inference the same image always takes the same path: the noise
is a hash of its pixels. In training every view has other pixels, so it gets other decisions.
"""

from typing import TYPE_CHECKING

import torch

from codinet.methods.method import ROUTING, Method, Stage, StageStart, finetune_stages, main_stage, rate_for
from codinet.relaxation import hard
from codinet.routers import OPEN, Biases, OnceRouters

if TYPE_CHECKING:
    from codinet.config import RunConfig

STEPS = 4.0  # levels of a pixel, per standard deviation
PERIOD = 4096.0  # number of different paths at most; a power of two, so that dividing by it is exact
SPREAD = 4.0  # margins are uniform over this range
_SEED = 20  # of the factors; they are the same in all networks


class HashRouters(OnceRouters):
    """Scores that depend on a hash of the image.

    With S the sum of the rounded pixels, block k gets the noise u_k, the fractional part of (S mod 4096)·φ_k, where φ_k
    is a fixed random number. Sums of whole numbers are exact, so all engines find the same noise.

    Args:
        number: Number of blocks.
        image_channels: Channels of an image; not used.
    """

    factor_N: torch.Tensor

    def __init__(self, number: int, image_channels: int) -> None:
        super().__init__(number)
        generator = torch.Generator("cpu").manual_seed(_SEED)
        factor_N = torch.rand(number, generator=generator, dtype=torch.float64, device="cpu").float()
        self.register_buffer("factor_N", factor_N.to(torch.get_default_device()))
        self.out = Biases(number, OPEN)

    def scores(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        levels_BCHW = (images_BCHW.float() * STEPS).round()
        sum_B = levels_BCHW.sum(dim=(1, 2, 3))
        residue_B = sum_B - PERIOD * (sum_B / PERIOD).floor()
        turns_BN = residue_B[:, None] * self.factor_N
        noise_BN = SPREAD * (turns_BN - turns_BN.floor() - 0.5)
        return self.out() + torch.stack([torch.zeros_like(noise_BN), noise_BN], dim=-1)

    @torch.no_grad()
    def set_rate(self, rate: float) -> None:
        """Make every block run at about this rate."""
        self.out.bias.view(-1, 2)[:, 1] = SPREAD * (rate - 0.5)


class RandomMethod(Method):
    """The network learns under random paths; the rate is calibrated after every epoch."""

    name = "random"
    title = "random skipping"
    routers = ("hash",)
    settings = ROUTING

    def stages(self, config: "RunConfig") -> list[Stage]:
        joint = main_stage("joint", config.schedule, decide=hard, train_routers=False, path_losses=False)
        return [joint, *finetune_stages(config.schedule)]

    def begin_stage(self, stage: Stage, start: StageStart) -> None:
        assert isinstance(start.routers, HashRouters)
        if stage.name == "joint" and start.budget is not None:
            start.routers.set_rate(rate_for(start.budget, start.run_share_N, start.base_share).item())


METHOD = RandomMethod()
