"""Published results to compare runs with: every table of the CoDiNet paper, DynConv and Torch-Pruning.

Costs are as printed. The paper uses one name for two units: its CIFAR and SVHN columns count two per multiply-add, its
ImageNet columns one (`UNITS`). Rows of other methods are as the paper quotes them; their authors may have counted
differently. This module holds numbers only and does not depend on runs.
"""

from typing import NamedTuple

UNITS = {"cifar10": 2, "cifar100": 2, "svhn": 2, "imagenet": 1}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "imagenet": "ImageNet", "digits": "digits"}

STATIC, VANILLA, CODINET = "static", "vanilla routing", "CoDiNet"
ROUTING, EARLY, OTHER = "dynamic routing", "early prediction", "other ways to save"

TRADE_OFF = "CoDiNet paper, table “The Efficiency and Accuracy Trade-off”"
ABLATION = "CoDiNet paper, table “Ablation Study of Routers”"
SVHN = "CoDiNet paper, table “Results on SVHN”"
CIFAR = "CoDiNet paper, table “Results on CIFAR-10/100”"
SOTA_CIFAR = "CoDiNet paper, table “Comparison with State-of-the-Arts on CIFAR-10”"
SOTA_IMAGENET = "CoDiNet paper, table “Comparison with State-of-the-Arts on ImageNet”"
MARGINS = "CoDiNet paper, table “Analysis of the Margin of Diversity”"
DYNCONV = "DynConv (Verelst and Tuytelaars, CVPR 2020), brought to the paper's unit"
PRUNING = "Torch-Pruning (Fang et al., CVPR 2023), brought to the paper's unit"


class Published(NamedTuple):
    """A row of a published table."""

    data: str
    method: str
    backbone: str
    kind: str  # one of the kinds above
    gmaccs: float | None  # as printed
    accuracy: float  # percent
    source: str
    paths: int | None = None
    setting: str = ""

    @property
    def unit(self) -> int:
        """How much `gmaccs` counts per multiply-add: 1 or 2."""
        return UNITS[self.data]

    @property
    def macs(self) -> float | None:
        """The cost in MACs, counting one per multiply-add."""
        return None if self.gmaccs is None else self.gmaccs * 1e9 / self.unit


def _cifar(data: str, backbone: str, *rows: tuple[float, float]) -> tuple[Published, ...]:
    """The rows of static, vanilla and CoDiNet, each given as (accuracy, cost)."""
    kinds = (STATIC, VANILLA, CODINET)
    return tuple(
        Published(data, backbone if kind == STATIC else kind, backbone, kind, cost, accuracy, CIFAR)
        for kind, (accuracy, cost) in zip(kinds, rows, strict=True)
    )


RESULTS = (
    *_cifar("cifar10", "ResNet-32", (92.40, 0.14), (91.55, 0.09), (92.48, 0.09)),
    *_cifar("cifar10", "ResNet-74", (93.30, 0.34), (93.17, 0.18), (93.61, 0.19)),
    *_cifar("cifar10", "ResNet-110", (93.60, 0.51), (93.66, 0.30), (94.47, 0.29)),
    *_cifar("cifar100", "ResNet-32", (68.7, 0.14), (66.4, 0.09), (69.2, 0.11)),
    *_cifar("cifar100", "ResNet-74", (70.5, 0.34), (69.7, 0.20), (70.9, 0.21)),
    *_cifar("cifar100", "ResNet-110", (71.2, 0.51), (70.3, 0.24), (72.9, 0.24)),
    Published("svhn", "ResNet-110", "ResNet-110", STATIC, 0.51, 94.19, SVHN),
    Published("svhn", VANILLA, "ResNet-110", VANILLA, 0.38, 93.15, SVHN),
    Published("svhn", CODINET, "ResNet-110", CODINET, 0.39, 94.28, SVHN),
)

TRADE_OFFS = tuple(
    Published("cifar10", f"CoDiNet γ={gamma}", "ResNet-110", CODINET, cost, accuracy, TRADE_OFF, setting=f"γ = {gamma}")
    for gamma, cost, accuracy in (
        ("0.01", 0.29, 94.47),
        ("0.02", 0.27, 94.30),
        ("0.04", 0.22, 93.94),
        ("0.08", 0.20, 93.71),
        ("0.10", 0.10, 92.45),
    )
)

ABLATIONS = (
    Published("cifar10", "ResNet-110", "ResNet-110", STATIC, None, 93.60, ABLATION, 1),
    Published("cifar10", VANILLA, "ResNet-110", VANILLA, None, 93.66, ABLATION, 113),
    Published("cifar10", "vanilla + L_con", "ResNet-110", "vanilla + L_con", None, 92.88, ABLATION, 20),
    Published("cifar10", "vanilla + L_div", "ResNet-110", "vanilla + L_div", None, 91.34, ABLATION, 1079),
    Published("cifar10", CODINET, "ResNet-110", CODINET, None, 94.47, ABLATION, 276),
)

DIVERSITY_MARGINS = tuple(
    Published("cifar10", f"CoDiNet m_d={m_d}", "ResNet-110", CODINET, cost, accuracy, MARGINS, paths, f"m_d = {m_d}")
    for m_d, paths, cost, accuracy in (
        ("0.25", 196, 0.22, 93.12),
        ("0.50", 276, 0.29, 94.47),
        ("0.75", 396, 0.24, 92.75),
        ("1.00", 800, 0.32, 92.46),
    )
)

COMPARISON = (
    Published("cifar10", "ResNet-32", "ResNet-32", STATIC, 0.14, 92.40, SOTA_CIFAR),
    Published("cifar10", "ResNet-110", "ResNet-110", STATIC, 0.50, 93.60, SOTA_CIFAR),
    Published("cifar10", "SkipNet", "ResNet-74", ROUTING, 0.09, 92.38, SOTA_CIFAR),
    Published("cifar10", "BlockDrop", "ResNet-110", ROUTING, 0.17, 93.60, SOTA_CIFAR),
    Published("cifar10", "Conv-AIG", "ResNet-110", ROUTING, 0.41, 94.24, SOTA_CIFAR),
    Published("cifar10", "IamNN", "ResNet-101", ROUTING, 1.10, 94.60, SOTA_CIFAR),
    Published("cifar10", "CGap", "ResNet-110", ROUTING, 0.19, 93.43, SOTA_CIFAR),
    Published("cifar10", "ACT", "ResNet-110", EARLY, 0.38, 93.50, SOTA_CIFAR),
    Published("cifar10", "SACT", "ResNet-110", EARLY, 0.31, 93.40, SOTA_CIFAR),
    Published("cifar10", "DDI", "ResNet-74", EARLY, 0.14, 93.88, SOTA_CIFAR),
    Published("cifar10", "DG-Net", "ResNet-101", EARLY, 3.20, 93.99, SOTA_CIFAR),
    Published("cifar10", "DG-Net (light)", "ResNet-101", EARLY, 2.22, 91.99, SOTA_CIFAR),
    Published("cifar10", "CoDiNet-32", "ResNet-32", CODINET, 0.09, 92.48, SOTA_CIFAR),
    Published("cifar10", "CoDiNet-110", "ResNet-110", CODINET, 0.29, 94.47, SOTA_CIFAR),
    Published("cifar10", "DynConv", "ResNet-32", OTHER, 0.111, 93.58, DYNCONV),
    Published("cifar10", "Torch-Pruning", "ResNet-56", OTHER, 0.098, 93.64, PRUNING),
    Published("cifar10", "Torch-Pruning", "ResNet-56", OTHER, 0.118, 93.77, PRUNING),
    Published("imagenet", "ResNet-50", "ResNet-50", STATIC, 3.86, 75.36, SOTA_IMAGENET),
    Published("imagenet", "ResNet-101", "ResNet-101", STATIC, 7.63, 76.45, SOTA_IMAGENET),
    Published("imagenet", "Conv-AIG 50", "ResNet-50", ROUTING, 3.06, 76.18, SOTA_IMAGENET),
    Published("imagenet", "Conv-AIG 101", "ResNet-101", ROUTING, 5.11, 77.37, SOTA_IMAGENET),
    Published("imagenet", "SkipNet", "ResNet-101", ROUTING, 6.70, 77.40, SOTA_IMAGENET),
    Published("imagenet", "SkipNet (light)", "ResNet-101", ROUTING, 3.60, 75.22, SOTA_IMAGENET),
    Published("imagenet", "LC-Net", "ResNet-50", ROUTING, 2.89, 74.10, SOTA_IMAGENET),
    Published("imagenet", "BlockDrop", "ResNet-101", ROUTING, 7.32, 76.80, SOTA_IMAGENET),
    Published("imagenet", "DG-Net", "ResNet-101", ROUTING, 7.05, 76.80, SOTA_IMAGENET),
    Published("imagenet", "DDI", "DenseNet-201", ROUTING, 3.50, 76.50, SOTA_IMAGENET),
    Published("imagenet", "MSDN", "DenseNets", EARLY, 2.30, 74.24, SOTA_IMAGENET),
    Published("imagenet", "RA-Net", "DenseNets", EARLY, 2.40, 75.10, SOTA_IMAGENET),
    Published("imagenet", "IamNN", "ResNet-101", EARLY, 4.00, 69.50, SOTA_IMAGENET),
    Published("imagenet", "ACT", "ResNets", EARLY, 6.70, 75.30, SOTA_IMAGENET),
    Published("imagenet", "SACT", "ResNets", EARLY, 7.20, 75.80, SOTA_IMAGENET),
    Published("imagenet", "CoDiNet-50", "ResNet-50", CODINET, 3.10, 76.63, SOTA_IMAGENET),
    Published("imagenet", "CoDiNet-101", "ResNet-101", CODINET, 5.02, 77.85, SOTA_IMAGENET),
)

PUBLISHED = (*RESULTS, *TRADE_OFFS, *ABLATIONS, *DIVERSITY_MARGINS, *COMPARISON)

SAME_PATH = {CODINET: 0.5342, VANILLA: 0.2265}  # CIFAR-10, ResNet-110: 5,342 and 2,265 of 10,000 pairs
PCC = {CODINET: 0.581, VANILLA: 0.024}  # CIFAR-10, features of an ImageNet MoCo


def data_key(name: str) -> str:
    """The key of a data set in this module: "cifar10" for "CIFAR-10", "cifar10" and "cifar_10"."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def matching(data: str, arch: str, method: str) -> list[Published]:
    """The paper's own rows with the data, network and method of a run.

    Args:
        data: The name of the data set.
        arch: The network, e.g. "resnet110".
        method: A `kind` of a row, e.g. `CODINET`.
    """
    backbone = f"ResNet-{arch.removeprefix('resnet')}"
    rows = [row for row in (*RESULTS, *ABLATIONS, *COMPARISON) if row.data == data_key(data)]
    rows = [row for row in rows if row.backbone == backbone and row.kind == method]
    # The comparison table repeats CIFAR rows of the results table.
    return rows if not any(row in RESULTS for row in rows) else [row for row in rows if row not in COMPARISON]
