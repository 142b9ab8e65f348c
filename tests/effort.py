"""The size of a search: `make test` runs a few seeds, `make soak` (GARLICFARM_SOAK=1) many.

A test proves a claim with its smallest example. A search for unforeseen faults finds more the longer it runs, so it
belongs where hours are available. Such a test has the mark `search`, which `make soak` selects.
"""

import os
from collections.abc import Mapping

import pytest
from _pytest.mark import ParameterSet

IS_SOAK = os.environ.get("GARLICFARM_SOAK") == "1"
SEEDS = 5
EXAMPLES = 300 if IS_SOAK else 25
"""Examples of a Hypothesis test."""
GROUP_SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3)))
"""Seeds of simulated gossip groups."""


def few_of(cases: Mapping[str, object], *quick: str) -> list[ParameterSet]:
    """Return the cases with their ids as parameters: `make test` runs those in `quick`, and `make soak` all others."""
    if unknown := set(quick) - set(cases):
        raise ValueError(f"no such cases: {sorted(unknown)}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in quick else pytest.mark.soak
        )
        for name, case in cases.items()
    ]


def over_seeds(many: int, quick: int = SEEDS) -> pytest.MarkDecorator:
    """Return the parameter `seed` of a search: `many` seeds in `make soak`, the first `quick` seeds in `make test`."""
    found = [pytest.param(seed, marks=pytest.mark.search) for seed in range(many if IS_SOAK else quick)]
    return pytest.mark.parametrize("seed", found)
