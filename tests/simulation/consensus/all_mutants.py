"""All planted bugs of all parts."""

from tests.simulation.consensus.client_mutants import CLIENT_MUTANTS
from tests.simulation.consensus.fetch_mutants import FETCH_MUTANTS
from tests.simulation.consensus.kraft_mutants import KRAFT_MUTANTS
from tests.simulation.consensus.mutants import MUTANTS
from tests.simulation.consensus.storage_mutants import STORAGE_MUTANTS
from tests.simulation.consensus.transport_mutants import TRANSPORT_MUTANTS
from tests.simulation.consensus.zmq_mutants import ZMQ_MUTANTS

ALL_MUTANTS = (
    *MUTANTS,
    *FETCH_MUTANTS,
    *CLIENT_MUTANTS,
    *STORAGE_MUTANTS,
    *TRANSPORT_MUTANTS,
    *ZMQ_MUTANTS,
    *KRAFT_MUTANTS,
)
