"""Random skipping: each block runs for a random part of the images, at a rate that meets the budget.

A router has to beat this. Decisions are random, but at inference the same image always takes the same path: the noise
is a hash of its pixels. In training every view has other pixels, so it gets other decisions.
"""

from typing import TYPE_CHECKING

import torch

from codinet.methods.method import ROUTING, Method, Stage, StageStart, finetune_stage, main_stage, rate_for
from codinet.relaxation import hard
from codinet.routers import OPEN, Biases, OnceRouters

if TYPE_CHECKING:
    from codinet.config import RunConfig

STEPS = 4.0  # levels of a pixel, per standard deviation
PERIOD = 2048  # a power of two, so that dividing by it is exact
SPREAD = 4.0  # margins are uniform over this range
_SEED = 20  # of the numbers below; they are the same in all networks


class HashRouters(OnceRouters):
    """Scores that depend on a hash of the image.

    With S the sum of the rounded pixels, x = a_k S + b_k modulo 2048 and y = x (2x + 1) modulo 2048, block k gets the
    noise y / 2048. a_k and b_k are fixed random numbers, a_k odd, so that all values of y are equally likely. Whole
    numbers below 2²⁴ are exact in single precision, so all engines find the same noise.

    Args:
        number: Number of blocks.
        image_channels: Channels of an image; not used.
    """

    factor_N: torch.Tensor
    offset_N: torch.Tensor

    def __init__(self, number: int, image_channels: int) -> None:
        super().__init__(number)
        generator = torch.Generator("cpu").manual_seed(_SEED)
        factor_N, offset_N = torch.randint(1, 128, (2, number), generator=generator, device="cpu").float()
        # At most eight bits each, so that they are exact in bfloat16 too.
        self.register_buffer("factor_N", (2 * factor_N + 1).to(torch.get_default_device()))
        self.register_buffer("offset_N", (8 * offset_N).to(torch.get_default_device()))
        self.out = Biases(number, OPEN)

    def scores(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        levels_BCHW = (images_BCHW.float() * STEPS).round()
        sum_B1 = _residue(levels_BCHW.sum(dim=(1, 2, 3)))[:, None]
        x_BN = _residue(sum_B1 * self.factor_N.float() + self.offset_N.float())
        noise_BN = SPREAD * (_residue(x_BN * (2 * x_BN + 1)) / PERIOD - 0.5)
        return self.out() + torch.stack([torch.zeros_like(noise_BN), noise_BN], dim=-1)

    @torch.no_grad()
    def set_rate(self, rate: float) -> None:
        """Make every block run at about this rate."""
        self.out.bias.view(-1, 2)[:, 1] = SPREAD * (rate - 0.5)


def _residue(whole: torch.Tensor) -> torch.Tensor:
    """Whole numbers modulo `PERIOD`."""
    return whole - PERIOD * (whole / PERIOD).floor()


class RandomMethod(Method):
    """The network learns under random paths; the rate is calibrated after every epoch."""

    name = "random"
    title = "random skipping"
    routers = ("hash",)
    settings = ROUTING

    def stages(self, config: "RunConfig") -> list[Stage]:
        joint = main_stage("joint", config.schedule, decide=hard, train_routers=False, path_losses=False)
        return [*joint, *finetune_stage(config.schedule)]

    def begin_stage(self, stage: Stage, start: StageStart) -> None:
        assert isinstance(start.routers, HashRouters)
        if stage.name == "joint" and start.budget is not None:
            start.routers.set_rate(rate_for(start.budget, start.run_share_N, start.base_share).item())


METHOD = RandomMethod()
