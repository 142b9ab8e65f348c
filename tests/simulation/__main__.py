"""`python -m tests.simulation [consensus | gossip-fuzz | gossip-experiments] …`; `--help` after a name."""

import sys

from tests.simulation import gossip_fuzz
from tests.simulation.consensus import command
from tests.simulation.gossip_experiments import command as gossip_experiments

arguments = sys.argv[1:]
if arguments[:1] == ["gossip-fuzz"]:
    sys.exit(gossip_fuzz.main(arguments[1:]))
if arguments[:1] == ["gossip-experiments"]:
    sys.exit(gossip_experiments.main(arguments[1:]))
sys.exit(command.main(arguments))
