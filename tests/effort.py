"""The size of a search: `make test` runs a few seeds, `make soak` (GARLICFARM_SOAK=1) many.

A test proves a claim with its smallest example. A search for unforeseen faults finds more the longer it runs, so it
belongs where hours are available. Such a test has the mark `search`, which `make soak` selects.
"""

import os

import pytest

IS_SOAK = os.environ.get("GARLICFARM_SOAK") == "1"
SEEDS = 5
EXAMPLES = 300 if IS_SOAK else 25
"""Examples of a Hypothesis test."""
GROUP_SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3)))
"""Seeds of simulated gossip groups."""


def over_seeds(many: int, quick: int = SEEDS) -> pytest.MarkDecorator:
    """Return the parameter `seed` of a search: `many` seeds in `make soak`, the first `quick` seeds in `make test`."""
    found = [pytest.param(seed, marks=pytest.mark.search) for seed in range(many if IS_SOAK else quick)]
    return pytest.mark.parametrize("seed", found)
