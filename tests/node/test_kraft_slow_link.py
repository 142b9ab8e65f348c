"""A KRaft quorum over links of 1 Mbit/s: a follower catches up, and its leader continues to lead."""

from random import Random

import pytest
import trio

from consensus.core.features import KRAFT_STATIC, LeaderRecords
from consensus.core.model import Configuration, ReplicaKey, Server
from consensus.core.raft import Raft
from consensus.protocols.kafka.connections import connection
from consensus.protocols.kafka.connections.connection import DialOptions
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.operators.settings import NamedVoter, VoterSettings, core_options
from consensus.protocols.kraft.replica.peer_transport import KraftTransport
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader, QuorumService
from consensus.protocols.kraft.wire.entries import (
    batch_continues_after,
    batches_for_replicas,
    data_of,
    fetched_entries,
    leader_head,
)
from consensus.server.event_loop import now_ms
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Recovery
from tests.effort import few_of
from tests.node.kept_entries import KeptEntries
from tests.node.kraft_replicas import KnownReplicas, replica_names
from tests.node.memory_server import MemoryDisk, parts_around
from tests.node.slow_link import NUMBERS, SlowGroup, run_slow_group, slow_pair


class Quorum(SlowGroup):
    """Voters whose connections are pipes."""

    def __init__(self, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(nursery)
        self.names: list[KnownReplicas] = replica_names(len(NUMBERS))
        self._listeners: dict[int, KafkaListener] = {}
        for each in self.names:
            each.addresses.update({number: (str(each.own.id), number) for number in NUMBERS})
        monkeypatch.setattr(connection, "_open_stream", self.open_stream)

    async def open_stream(self, host: str, port: int, _tls: object) -> trio.abc.Stream:
        """Replace TCP: `host` is the caller, `port` the called voter."""
        if port not in self.members:
            raise OSError(111, "Connection refused")
        ours, theirs = slow_pair(self._nursery, self.toward[port], self.toward[int(host)])
        self._nursery.start_soon(self._listeners[port].serve, theirs, f"10.0.0.{host}", 1)
        return ours

    def build(self, number: int, recovery: Recovery, disk: MemoryDisk, machine: KeptEntries) -> ConsensusServer:
        """Return a voter with its listener."""
        names = self.names[number - 1]
        voters = Configuration(tuple(Server(each.own, f"replica:{each.own.id}") for each in self.names))
        settings = VoterSettings(number, disk, voters=(NamedVoter(ReplicaKey(1), "h", 1),))  # type: ignore[arg-type]
        core = Raft(
            names.own,
            voters,
            recovery.hard_state,
            recovery.log,
            core_options(settings),
            KRAFT_STATIC,
            Random(number),
            now_ms(),
            None,
            LeaderRecords(lambda: leader_head(1), tuple, lambda each: each),
        )
        transport = KraftTransport(names, fetched_entries, DialOptions(), random=Random(number))
        parts = parts_around(transport, machine, self.observe(number))
        server = ConsensusServer(core, recovery.storage, disk, parts)
        service = QuorumService(
            server,
            names,
            batches_for_replicas,
            AnsweringLeader(server.soft_state).now,
            ends_batch=lambda entry: not batch_continues_after(entry),
        )
        self._listeners[number] = KafkaListener((service,), ListenerOptions())
        return server


def batch(size: int, records: int = 1) -> RecordBatch:
    return RecordBatch(0, -1, tuple(Record(1_000, None, bytes([n % 251]) * (size // records)) for n in range(records)))


MISSING = {
    "many-records": [batch(10_000)] * 500,
    "one-record": [batch(5_000_000)],
    "large-batches": [batch(2_500_000, 250)] * 2,
}


@pytest.mark.parametrize("missing", few_of(MISSING, "one-record"))
def test_follower_on_one_megabit_link_catches_up(missing: list[RecordBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower lacks 5 MB (a transfer of 40 s). Voters do not campaign during the transfer."""
    proposals = [data_of(each) for each in missing]
    run_slow_group(lambda nursery: Quorum(nursery, monkeypatch), lambda made: made.check_catching_up(proposals, 75))


def test_large_record_commits_over_one_megabit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both followers have slow links: until the record has arrived, only heartbeats keep the leader."""
    proposals = [data_of(batch(5_000_000))]
    run_slow_group(lambda nursery: Quorum(nursery, monkeypatch), lambda made: made.check_commit(proposals))
