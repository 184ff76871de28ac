"""CoDiNet (Wang et al., TPAMI 2021): relaxed decisions, consistency, diversity and cost (Eq. 8 to 12)."""

from functools import partial
from typing import TYPE_CHECKING

import torch

from codinet.checks import require_choice
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.methods.method import ROUTING, Method, PathBatch, PathLoss, Stage, finetune_stage, main_stage
from codinet.published import CODINET, STATIC, VANILLA
from codinet.relaxation import RELAXATIONS, run_probability

if TYPE_CHECKING:
    from codinet.config import RunConfig


class CoDiNetMethod(Method):
    """Stage 1 trains network and routers together, stage 2 the network under fixed routers."""

    name = "codinet"
    title = CODINET
    routers = ("fc", "cnn", "rnn")
    settings = ROUTING | {"relaxation", "tau", "gamma", "alpha", "beta", "m_c", "m_d", "score_decay", "paths"}

    def title_of(self, config: "RunConfig") -> str:
        if not config.network.routed:
            return STATIC
        kinds = {(False, False): VANILLA, (True, False): "vanilla + L_con", (False, True): "vanilla + L_div"}
        return kinds.get((config.losses.alpha > 0, config.losses.beta > 0), self.title)

    def stages(self, config: "RunConfig") -> list[Stage]:
        require_choice("relaxation", config.network.relaxation, RELAXATIONS)
        relaxed = partial(RELAXATIONS[config.network.relaxation], tau=config.network.tau)
        joint = main_stage("joint", config.schedule, decide=relaxed, train_routers=True, path_losses=True)
        return [*joint, *finetune_stage(config.schedule)]

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """Eq. 12, and the decay of the margins."""
        output, losses = batch.output, batch.losses
        paths_BN = output.path_BN if losses.paths == "noised" else run_probability(output.scores_BN2)
        paths_LMN = paths_BN.unflatten(0, (-1, batch.views))
        terms = Terms(
            classification,
            consistency(paths_LMN, margin=losses.m_c),
            diversity(batch.gather_rows(paths_LMN), margin=losses.m_d),
            expected_cost(paths_BN, batch.weights_N),
        )
        decay = score_decay(output.scores_BN2)
        loss = total(terms, alpha=losses.alpha, beta=losses.beta, gamma=batch.gamma)
        return PathLoss(loss + losses.score_decay * batch.decay_scale * decay, *terms[1:], decay)


METHOD = CoDiNetMethod()
