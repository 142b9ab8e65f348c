"""`python -m tests.simulation NAME …`; `--help` after a name.

NAME is consensus (the default), consensus-mutants, gossip-fuzz,
gossip-experiments, meta-lease-set-fuzz, structure-exchange-fuzz, garlic-farm-fuzz, entry-fuzz, i2cp-fuzz,
zmq-raft-fuzz, kraft-fuzz, sam-fuzz, log-time or garlic-farm-joins.
"""

import sys

from tests.simulation import (
    entry_fuzz,
    garlic_farm_fuzz,
    garlic_farm_joins,
    gossip_fuzz,
    i2cp_fuzz,
    kraft_fuzz,
    log_time_clocks,
    meta_lease_set_fuzz,
    sam_fuzz,
    structure_exchange_fuzz,
    zmq_raft_fuzz,
)
from tests.simulation.consensus import command
from tests.simulation.gossip_experiments import command as gossip_experiments

arguments = sys.argv[1:]
if arguments[:1] == ["gossip-fuzz"]:
    sys.exit(gossip_fuzz.main(arguments[1:]))
if arguments[:1] == ["gossip-experiments"]:
    sys.exit(gossip_experiments.main(arguments[1:]))
if arguments[:1] == ["meta-lease-set-fuzz"]:
    sys.exit(meta_lease_set_fuzz.main(arguments[1:]))
if arguments[:1] == ["structure-exchange-fuzz"]:
    sys.exit(structure_exchange_fuzz.main(arguments[1:]))
if arguments[:1] == ["garlic-farm-fuzz"]:
    sys.exit(garlic_farm_fuzz.main(arguments[1:]))
if arguments[:1] == ["entry-fuzz"]:
    sys.exit(entry_fuzz.main(arguments[1:]))
if arguments[:1] == ["garlic-farm-joins"]:
    sys.exit(garlic_farm_joins.main(arguments[1:]))
if arguments[:1] == ["i2cp-fuzz"]:
    sys.exit(i2cp_fuzz.main(arguments[1:]))
if arguments[:1] == ["zmq-raft-fuzz"]:
    sys.exit(zmq_raft_fuzz.main(arguments[1:]))
if arguments[:1] == ["kraft-fuzz"]:
    sys.exit(kraft_fuzz.main(arguments[1:]))
if arguments[:1] == ["sam-fuzz"]:
    sys.exit(sam_fuzz.main(arguments[1:]))
if arguments[:1] == ["log-time"]:
    sys.exit(log_time_clocks.main(arguments[1:]))
if arguments[:1] == ["consensus-mutants"]:
    sys.exit(command.main_mutants(arguments[1:]))
sys.exit(command.main(arguments))
