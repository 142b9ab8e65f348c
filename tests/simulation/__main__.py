"""`python -m tests.simulation NAME …`; `--help` after a name.

NAME is consensus (the default), consensus-mutants, gossip-fuzz, gossip-experiments, log-time, garlic-farm-joins, or a
fuzzer of decoders. `--count` counts inputs. An input of `zmq-raft-fuzz`'s endpoint is a conversation of 64
steps; for `kraft-fuzz`'s endpoint, `--count` counts requests.
"""

import sys
from collections.abc import Callable
from functools import partial

from tests.simulation import fuzzing, garlic_farm_joins, gossip_fuzz, log_time_clocks
from tests.simulation.consensus import command
from tests.simulation.decoders import DECODERS
from tests.simulation.gossip_experiments import command as gossip_experiments

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "gossip-fuzz": gossip_fuzz.main,
    "gossip-experiments": gossip_experiments.main,
    "garlic-farm-joins": garlic_farm_joins.main,
    "log-time": log_time_clocks.main,
    "consensus-mutants": command.main_mutants,
    **{name: partial(fuzzing.main, name, subjects) for name, subjects in DECODERS.items()},
}
name, *arguments = sys.argv[1:] or ["consensus"]
sys.exit(COMMANDS[name](arguments) if name in COMMANDS else command.main(sys.argv[1:]))
