"""`python -m tests.simulation [consensus] [--seeds N] [--seed N] [--steps N] [--mutant NAME] [--trace]`."""

import sys

from tests.simulation.consensus.command import main

sys.exit(main(sys.argv[1:]))
