"""Log time while fewer than half of the clocks jump, drift and lie; and what happens if a rule is broken."""

import pytest

from tests.simulation.log_time_clocks import MUTANTS, first_broken

SEEDS = range(5)
FIRST_SEEDS = {"stale readings count": 20}
"""Where the search begins for what few seeds find; `--mutants` begins with the first seed for all."""


def test_log_time_stays_by_the_true_time_and_honest_servers_publish() -> None:
    assert first_broken(SEEDS) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_farm_that_breaks_a_rule_is_found_out(name: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    assert first_broken(range(first, first + 40), name) is not None
