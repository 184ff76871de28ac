"""A few inputs of every attack; `make attack` tries many more."""

import pytest
from tests.attack.catalogue import ATTACKS
from tests.attack.harness import Attack, try_seed


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_every_input_is_answered_or_refused(attack: Attack) -> None:
    outcomes = {seed: try_seed(attack, seed) for seed in range(attack.quick)}
    findings = {seed: outcome for seed, outcome in outcomes.items() if outcome.verdict not in ("answer", "refused")}
    assert not findings, "\n\n".join(f"seed {seed}: {outcome.detail}" for seed, outcome in findings.items())


def test_names_are_unique() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
