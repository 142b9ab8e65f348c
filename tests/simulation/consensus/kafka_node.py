"""What stands between the core of a simulated KRaft server and its connections: the production parts of one life.

    names      which replica an id means and where it is      QuorumNames
    replies    the core's replies as responses                QuorumReplies, AnsweringLeader
    transport  how long to rest before the next try           KraftTransport, of which nothing runs

All servers listen on one port, each on a host of its own, which the one that takes the place of a server without its
directory gets with the id. Commands are what a client's record batch becomes in the log.
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
"""The ids of producers begin here."""
_FIRST_VERSIONS = {
    # Before these the quorum's requests have no directory ids, or Fetch says nothing of epochs.
    True: {ApiKey.VOTE: 0, ApiKey.BEGIN_QUORUM_EPOCH: 0, ApiKey.END_QUORUM_EPOCH: 0, ApiKey.FETCH: 12},
    False: {ApiKey.VOTE: 1, ApiKey.BEGIN_QUORUM_EPOCH: 1, ApiKey.END_QUORUM_EPOCH: 1, ApiKey.FETCH: 17},
}
_FIRST_SNAPSHOT_VERSIONS = {True: 0, False: 1}


def host_of(server_id: ServerId) -> str:
    """Where a server listens."""
    return f"10.0.0.{replica(server_id).id}"


def named_for_kafka(ids: Sequence[ServerId]) -> tuple[Server, ...]:
    """Servers with the addresses of their listeners."""
    return tuple(server_of(replica(each), (_listener(each),)) for each in ids)


def _listener(server_id: ServerId) -> Endpoint:
    return Endpoint("CONTROLLER", host_of(server_id), _PORT)


def draw_versions(random: Random, rates: KafkaRates) -> Mapping[int, tuple[int, int]]:
    """What one server has of the quorum's requests, by API: the newest versions, or some that are older."""
    lowest = {**_FIRST_VERSIONS[rates.static], ApiKey.FETCH_SNAPSHOT: _FIRST_SNAPSHOT_VERSIONS[rates.static]}
    is_old = random.random() < rates.old_versions
    return {
        key: (first, random.randint(first, VERSIONS[key][1]) if is_old else VERSIONS[key][1])
        for key, first in lowest.items()
    }


@dataclass(slots=True)
class KafkaNode:
    """One life."""

    names: QuorumNames
    replies: QuorumReplies
    transport: KraftTransport


def make_node(server_id: ServerId, configuration: Configuration, core: Raft, random: Random) -> KafkaNode:
    """The parts of a server that begins a life; `configuration` is what it was told beside its log."""
    own = replica(server_id)
    names = QuorumNames(own, (_listener(own),), configuration)
    names.change(core.describe().configuration, ())
    return KafkaNode(
        names,
        QuorumReplies(names, batches_for_replicas, AnsweringLeader(core.soft_state).now),
        KraftTransport(names, fetched_entries, retry=_RETRY, random=random),
    )


class KafkaCommands:
    """Commands as Kafka's producers send them: batches of records, of which some come from a producer with an id."""

    def __init__(self, random: Random, batch_records: int) -> None:
        self.batch_records = batch_records
        self._random = random
        self._sequences: dict[int, int] = {}

    def batch(self, values: Sequence[bytes], now_ms: int, producer: int | None = None) -> tuple[bytes, ...]:
        """The commands of one batch; a producer's sequences go on from its last one, and come round."""
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
        """The head of what a leader is asked to append by itself."""
        return leader_head(UNIX_MS + now_ms)


def command_in(data: bytes) -> bytes:
    """What the application has put into a record."""
    _, value, _ = decode_tail(entry_tail(data))
    return value or b""
