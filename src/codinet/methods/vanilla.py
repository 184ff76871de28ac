"""Vanilla routing: CoDiNet without the consistency and diversity losses, as `--alpha 0 --beta 0`."""

from codinet.methods.codinet import CoDiNetMethod


class VanillaMethod(CoDiNetMethod):
    """Relaxed decisions and the cost loss only."""

    name = "vanilla"
    settings = CoDiNetMethod.settings - {"alpha", "beta", "m_c", "m_d"}


METHOD = VanillaMethod()
