"""The parts between the core of a simulated KRaft server and its connections: the production parts of one run.

    names      maps an id to a replica and its address        QuorumNames
    replies    builds responses from the core's replies       QuorumReplies, AnsweringLeader
    transport  draws the pause before the next try            KraftTransport; none of its tasks run

All servers listen on one port, each on its own host. The successor of a server without its directory has the same id
and host. Commands are the entries that the log derives from a client's record batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from consensus.core.model import Configuration, Server, ServerId
from consensus.core.raft import Raft
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.record_batches import decode_tail
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.peer_transport import KraftTransport, RetryTimes
from consensus.protocols.kraft.replica.quorum_names import QuorumNames, server_of
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader, QuorumReplies
from consensus.protocols.kraft.wire.entries import (
    batches_for_replicas,
    data_of,
    entry_tail,
    fetched_entries,
    leader_head,
    next_sequence,
)
from consensus.protocols.kraft.wire.replica_names import replica
from tests.simulation.consensus.profile import KafkaRates

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
UNIX_MS = 1_700_000_000_000
"""The time of day when a history begins."""
_PORT = 9093
_RETRY = RetryTimes(first_ms=5, max_ms=200)
_LAST_SEQUENCES = 2**31 - 5
_PRODUCERS = 1_000
"""The first producer id."""
_FIRST_VERSIONS = {
    # True: static voters, which do not need directory ids; Fetch lacks epochs before version 12.
    True: {ApiKey.VOTE: 0, ApiKey.BEGIN_QUORUM_EPOCH: 0, ApiKey.END_QUORUM_EPOCH: 0, ApiKey.FETCH: 12},
    False: {ApiKey.VOTE: 1, ApiKey.BEGIN_QUORUM_EPOCH: 1, ApiKey.END_QUORUM_EPOCH: 1, ApiKey.FETCH: 17},
}
_FIRST_SNAPSHOT_VERSIONS = {True: 0, False: 1}


def host_of(server_id: ServerId) -> str:
    return f"10.0.0.{replica(server_id).id}"


def named_for_kafka(ids: Sequence[ServerId]) -> tuple[Server, ...]:
    return tuple(server_of(replica(each), (_listener(each),)) for each in ids)


def _listener(server_id: ServerId) -> Endpoint:
    return Endpoint("CONTROLLER", host_of(server_id), _PORT)


def draw_versions(random: Random, rates: KafkaRates) -> Mapping[int, tuple[int, int]]:
    """Return the versions of the quorum's requests that one server supports, by API: the newest, or some older ones."""
    lowest = {**_FIRST_VERSIONS[rates.static], ApiKey.FETCH_SNAPSHOT: _FIRST_SNAPSHOT_VERSIONS[rates.static]}
    is_old = random.random() < rates.old_versions
    return {
        key: (first, random.randint(first, VERSIONS[key][1]) if is_old else VERSIONS[key][1])
        for key, first in lowest.items()
    }


@dataclass(slots=True)
class KafkaNode:
    """The parts of one run."""

    names: QuorumNames
    replies: QuorumReplies
    transport: KraftTransport


def make_node(server_id: ServerId, configuration: Configuration, core: Raft, random: Random) -> KafkaNode:
    """Create the parts of a starting server; `configuration` is its initial configuration, not part of its log."""
    own = replica(server_id)
    names = QuorumNames(own, (_listener(own),), configuration)
    names.change(core.describe().configuration, ())
    return KafkaNode(
        names,
        QuorumReplies(names, batches_for_replicas, AnsweringLeader(core.soft_state).now),
        KraftTransport(names, fetched_entries, retry=_RETRY, random=random),
    )


class KafkaCommands:
    """Commands as Kafka's producers send them: batches of records, some from a producer with an id."""

    def __init__(self, random: Random, batch_records: int) -> None:
        self.batch_records = batch_records
        self._random = random
        self._sequences: dict[int, int] = {}

    def batch(self, values: Sequence[bytes], now_ms: int, producer: int | None = None) -> tuple[bytes, ...]:
        """Return the commands of one batch; a producer's sequences continue after its last one, and wrap around."""
        random = self._random
        records = tuple(
            Record(
                UNIX_MS + now_ms - random.randrange(50),
                random.choice((None, b"", b"key")),
                value,
                random.choice(((), (), (("kind", b"swap"), ("none", None)))),
            )
            for value in values
        )
        if producer is None:
            return data_of(RecordBatch(0, 0, records))
        base = self._sequences.get(producer, random.choice((0, _LAST_SEQUENCES)))
        self._sequences[producer] = next_sequence(base, len(records))
        return data_of(
            RecordBatch(0, 0, records, producer_id=_PRODUCERS + producer, producer_epoch=0, base_sequence=base)
        )

    def head(self, now_ms: int) -> bytes:
        """Return the head of an entry that a leader appends itself."""
        return leader_head(UNIX_MS + now_ms)


def command_in(data: bytes) -> bytes:
    """Return the application's value of a record."""
    _, value, _ = decode_tail(entry_tail(data))
    return value or b""
