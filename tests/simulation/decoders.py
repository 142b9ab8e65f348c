"""All fuzzed decoders of untrusted bytes, by command: `python -m tests.simulation NAME --count N`.

    meta-lease-set-fuzz, structure-exchange-fuzz, i2cp-fuzz, sam-fuzz   structures and streams of I2P
    entry-fuzz                                                          entries of members, applied by a farm
    garlic-farm-fuzz, kraft-fuzz, zmq-raft-fuzz                         each protocol of consensus; `--what` selects

`make test` plays a few inputs of each decoder. Long runs find rare faults, and also check the growth of memory.
"""

from typing import Final

from tests.simulation import garlic_farm_targets, kraft_targets, zmq_raft_targets
from tests.simulation.entry_fuzz import Applied
from tests.simulation.i2cp_fuzz import I2cpFrames
from tests.simulation.kraft_endpoint_target import EndpointTarget as KraftEndpoint
from tests.simulation.meta_lease_set_fuzz import MetaLeaseSets
from tests.simulation.sam_fuzz import SamParsers
from tests.simulation.structure_exchange_fuzz import StructureExchange
from tests.simulation.zmq_endpoint_target import EndpointTarget as ZmqEndpoint

DECODERS: Final = {
    "meta-lease-set-fuzz": (MetaLeaseSets,),
    "structure-exchange-fuzz": (StructureExchange,),
    "i2cp-fuzz": (I2cpFrames,),
    "sam-fuzz": (SamParsers,),
    "entry-fuzz": (Applied,),
    "garlic-farm-fuzz": garlic_farm_targets.TARGETS,
    "kraft-fuzz": (*kraft_targets.TARGETS, KraftEndpoint),
    "zmq-raft-fuzz": (*zmq_raft_targets.TARGETS, ZmqEndpoint),
}
