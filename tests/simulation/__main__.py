"""`python -m tests.simulation [consensus | gossip-fuzz] …`: long runs from the command line; `--help` after a name."""

import sys

from tests.simulation import gossip_fuzz
from tests.simulation.consensus import command

arguments = sys.argv[1:]
if arguments[:1] == ["gossip-fuzz"]:
    sys.exit(gossip_fuzz.main(arguments[1:]))
sys.exit(command.main(arguments))
