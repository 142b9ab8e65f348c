"""Voters of a KRaft quorum on loopback: elections, replication, loss of the leader, and changes of the voters."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from operator import ge
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, ProposalResolved, Role
from consensus.core.model import Configuration, Entry, EntryKind, Index, ReplicaKey, Server
from consensus.protocols.kafka.connections.connection import DialOptions, open_connection
from consensus.protocols.kafka.topic.served_topic import Produced, ProduceRefusedError
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.limits import uuid_text
from consensus.protocols.kafka.wire.record_batches import decode_tail
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.operators.quorum_directory import format_directory, new_uuid, parse_initial_voters
from consensus.protocols.kraft.operators.settings import Endpoint, NamedVoter, VoterSettings
from consensus.protocols.kraft.replica.admin_service import AdminService
from consensus.protocols.kraft.replica.open_voter import KraftVoter, VoterOptions, open_voter
from consensus.protocols.kraft.replica.quorum_names import server_of
from consensus.protocols.kraft.replica.state_machine import QuorumLog, WrittenBatch
from consensus.protocols.kraft.wire.entries import data_of, entry_tail
from consensus.server.errors import NotLeaderError
from tests.processes import free_ports

pytestmark = pytest.mark.usefixtures("small_segments")

CLUSTER = uuid_text(b"\x00" * 15 + b"\x01")
LOOPBACK = "127.0.0.1"


def batch(*values: bytes, producer: int = -1, sequence: int = -1) -> RecordBatch:
    records = tuple(Record(1_000, None, value) for value in values)
    epoch = 0 if producer >= 0 else -1
    return RecordBatch(0, -1, records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def settings_of(path: Path, node_id: int, ports: list[int], *, dynamic: bool) -> VoterSettings:
    voters = tuple(NamedVoter(ReplicaKey(number), LOOPBACK, port) for number, port in enumerate(ports[:3], 1))
    return VoterSettings(
        node_id,
        path / str(node_id),
        voters=() if dynamic else voters,
        bootstrap_servers=tuple((LOOPBACK, port) for port in ports[:3]) if dynamic else (),
        listeners=(Endpoint("CONTROLLER", LOOPBACK, ports[node_id - 1]),),
        append_linger_ms=0,
        # All servers share one event loop. On a busy machine, a leader would lose its role with shorter timeouts.
        election_timeout_ms=750,
        fetch_timeout_ms=1_500,
        election_backoff_max_ms=300,
    )


def formatted(path: Path, count: int, *, dynamic: bool, initial: int = 3) -> list[VoterSettings]:
    """Format `count` servers; the first `initial` are the voters of the new quorum."""
    ports = free_ports(count)
    settings = [settings_of(path, number, ports, dynamic=dynamic) for number in range(1, count + 1)]
    keys = [new_uuid() for _ in ports]
    text = ",".join(
        f"{number}@{LOOPBACK}:{port}:{uuid_text(key)}"
        for number, port, key in zip(range(1, initial + 1), ports, keys, strict=False)
    )
    for number, each in enumerate(settings):
        voters = parse_initial_voters(text) if dynamic and number < initial else ()
        format_directory(each, CLUSTER, initial=voters)
    return settings


class Quorum:
    """Servers that a test starts and ends one by one."""

    def __init__(self, nursery: trio.Nursery, options: VoterOptions | None = None) -> None:
        self.running: dict[int, KraftVoter] = {}
        self._ends: dict[int, tuple[trio.CancelScope, trio.Event]] = {}
        self._nursery = nursery
        self._options = options

    async def start(self, settings: VoterSettings) -> KraftVoter:
        await self._nursery.start(self._run, settings)
        return self.running[settings.node_id]

    async def end(self, node_id: int) -> None:
        """Cancel a server during its work; return when its directory is released."""
        del self.running[node_id]
        scope, ended = self._ends.pop(node_id)
        scope.cancel()
        await ended.wait()

    async def leader(self) -> KraftVoter:
        """Return the leader after a majority has confirmed it: until then, another server may also be elected."""
        while True:
            for voter in list(self.running.values()):
                if voter.server.role.role is Role.LEADER:
                    with suppress(NotLeaderError), trio.move_on_after(1):
                        await voter.server.read_barrier()
                        return voter
            await trio.sleep(0.01)

    async def append(self, made: RecordBatch) -> tuple[KraftVoter, Produced]:
        """Append a batch through the leader. After a change of leader, append it again: the log may contain both."""
        while True:
            leader = await self.leader()
            with trio.move_on_after(20):
                try:
                    return leader, await leader.topic.append(made, None)
                except ProduceRefusedError as error:
                    if error.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        raise

    async def _run(self, settings: VoterSettings, *, task_status: trio.TaskStatus[None]) -> None:
        ended = trio.Event()
        with trio.CancelScope() as scope:
            async with open_voter(settings, self._options) as voter:
                self.running[settings.node_id], self._ends[settings.node_id] = voter, (scope, ended)
                task_status.started()
                await trio.sleep_forever()
        ended.set()


@asynccontextmanager
async def opened(settings: list[VoterSettings], options: VoterOptions | None = None) -> AsyncIterator[Quorum]:
    """Run these servers for at most 60 s."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            quorum = Quorum(nursery, options)
            for each in settings:
                await quorum.start(each)
            yield quorum
            nursery.cancel_scope.cancel()


def values(entries: tuple[Entry, ...]) -> list[bytes | None]:
    return [decode_tail(entry_tail(entry.data))[1] for entry in entries if entry.kind is EntryKind.COMMAND]


async def values_of(voter: KraftVoter, index: Index) -> list[bytes | None]:
    await voter.server.wait_commit(index)
    first = voter.server.describe().raft.log_start.index + 1
    return values(await voter.server.read(first, 10_000, 10**7))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
async def test_three_voters_replicate_acknowledged_records(tmp_path: Path, *, dynamic: bool) -> None:
    async with opened(formatted(tmp_path, 3, dynamic=dynamic)) as quorum:
        leader = await quorum.leader()
        produced = await leader.topic.append(batch(b"one", b"two"), None)
        for voter in quorum.running.values():
            assert await values_of(voter, produced.base_offset + 2) == [b"one", b"two"]
        # Byte for byte, including the leader's control records
        logs = [await voter.server.read(1, 100, 10**6) for voter in quorum.running.values()]
        assert logs[0] == logs[1] == logs[2]
        assert len(logs[0]) == produced.base_offset + 2


async def test_acknowledged_records_remain_after_loss_of_leader(tmp_path: Path) -> None:
    """The remaining voters elect a leader with every acknowledged record, and a restarted voter catches up."""
    settings = formatted(tmp_path, 3, dynamic=True)
    async with opened(settings) as quorum:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"before"), None)
        await quorum.end(leader.key.id)
        successor = await quorum.leader()
        produced = await successor.topic.append(batch(b"after"), None)
        returned = await quorum.start(settings[leader.key.id - 1])
        assert await values_of(returned, produced.base_offset + 1) == [b"before", b"after"]


async def test_repeated_batch_is_written_once(tmp_path: Path) -> None:
    """The repeated batch of an idempotent producer gets its original offset, also from the next leader."""
    async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
        leader = await quorum.leader()
        producer = (await leader.topic.new_producer_id(None)).producer_id
        first = await leader.topic.append(batch(b"a", b"b", producer=producer, sequence=0), None)
        again = await leader.topic.append(batch(b"a", b"b", producer=producer, sequence=0), None)
        assert again == first
        with pytest.raises(ProduceRefusedError) as refused:
            await leader.topic.append(batch(b"x", producer=producer, sequence=7), None)
        assert refused.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await quorum.end(leader.key.id)
        successor = await quorum.leader()
        elsewhere = await successor.topic.append(batch(b"a", b"b", producer=producer, sequence=0), None)
        assert elsewhere == first
        next_batch = await successor.topic.append(batch(b"c", producer=producer, sequence=2), None)
        assert await values_of(successor, next_batch.base_offset + 1) == [b"a", b"b", b"c"]


async def test_batch_repeated_before_apply_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed batch is acknowledged. Its repetition waits for the table of producers."""
    async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
        leader = await quorum.leader()
        producer = (await leader.topic.new_producer_id(None)).producer_id
        written = await leader.topic.append(batch(b"a", producer=producer, sequence=0), None)
        # Given a state machine that does not apply entries
        apply, may_apply = leader.machine.apply, trio.Event()

        async def apply_later(first: Index, entries: tuple[Entry, ...]) -> None:
            await may_apply.wait()
            await apply(first, entries)

        await leader.server.wait_applied(written.base_offset + 1)
        monkeypatch.setattr(leader.machine, "apply", apply_later)
        # When a batch is acknowledged, and then sent again
        first = await leader.topic.append(batch(b"b", producer=producer, sequence=1), None)
        answers: list[Produced] = []

        async def repeat() -> None:
            answers.append(await leader.topic.append(batch(b"b", producer=producer, sequence=1), None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            may_apply.set()
        # Then the repetition gets the first offset
        assert answers == [first]
        assert await values_of(leader, first.base_offset + 1) == [b"a", b"b"]


async def test_batch_repeated_after_client_timeout_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repetition waits for the outcome of the first batch, whose client waits no longer."""
    async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
        leader = await quorum.leader()
        producer = (await leader.topic.new_producer_id(None)).producer_id
        # Given a leader whose commits are delayed
        pending: list[tuple[tuple[bytes, ...], Callable[[ProposalResolved], None]]] = []
        submit = leader.server.submit

        def delay(commands: tuple[bytes, ...], on_reply: Callable[[ProposalResolved], None], **_: bool) -> None:
            pending.append((commands, on_reply))

        monkeypatch.setattr(leader.server, "submit", delay)
        answers: list[Produced] = []

        async def produce(*, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                answers.append(await leader.topic.append(batch(b"a", producer=producer, sequence=0), None))

        async with trio.open_nursery() as nursery:
            # When a client's request times out, and the client sends the batch again
            first = await nursery.start(produce)
            await trio.testing.wait_all_tasks_blocked()
            first.cancel()
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            assert len(pending) == 1
            # and the first batch is committed later
            submit(*pending[0])
        # Then the log has the batch once, and the repetition gets its offset
        assert len(pending) == 1
        (again,) = answers
        assert await values_of(leader, again.base_offset + 1) == [b"a"]


async def test_producer_id_of_other_user_is_refused(tmp_path: Path) -> None:
    """Given one id requested by Alice and one id requested without a user, then Bob cannot use Alice's ids."""
    alice, bob = "User:alice", "User:bob"

    async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
        leader = await quorum.leader()
        producers = [(await leader.topic.new_producer_id(user)).producer_id for user in (alice, None)]
        for producer in producers:
            await leader.topic.append(batch(b"a", producer=producer, sequence=0), alice)
            with pytest.raises(ProduceRefusedError, match="belongs to another user") as refused:
                await leader.topic.append(batch(b"stolen", producer=producer, sequence=1), bob)
            assert refused.value.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            own = await leader.topic.append(batch(b"b", producer=producer, sequence=1), alice)
        assert await values_of(leader, own.base_offset + 1) == [b"a", b"b"] * 2
        # And by the next leader
        await quorum.end(leader.key.id)
        successor = await quorum.leader()
        for producer in producers:
            with pytest.raises(ProduceRefusedError, match="belongs to another user"):
                await successor.topic.append(batch(b"stolen", producer=producer, sequence=2), bob)


async def test_future_record_does_not_expire_other_producers(tmp_path: Path) -> None:
    alice, bob = "User:alice", "User:bob"

    async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
        topic = (await quorum.leader()).topic
        ours, theirs = [(await topic.new_producer_id(user)).producer_id for user in (alice, bob)]
        await topic.append(batch(b"a", producer=ours, sequence=0), alice)
        future = replace(batch(b"x", producer=theirs, sequence=0), records=(Record(2**62, None, b"x"),))
        with suppress(ProduceRefusedError):
            await topic.append(future, bob)
        await topic.append(batch(b"y", producer=theirs, sequence=0), bob)
        await topic.append(batch(b"b", producer=ours, sequence=1), alice)
        with pytest.raises(ProduceRefusedError, match="more than an hour after") as refused:
            await topic.append(future, bob)
        assert refused.value.error_code == ErrorCode.INVALID_TIMESTAMP


async def test_truncated_batch_does_not_absorb_next_batch() -> None:
    """The records of the next batch are not counted as the missing records of the truncated one."""
    machine = QuorumLog(1_000_000)
    cut_off, *_ = data_of(batch(b"a", b"b", producer=1, sequence=0))
    other = data_of(batch(b"c", b"d", producer=2, sequence=5))
    await machine.apply(1, tuple(Entry.command(1, data) for data in (cut_off, *other)))
    assert machine.producers[1].batches == [WrittenBatch(0, 0, 0)]
    assert machine.producers[2].batches == [WrittenBatch(5, 6, 1)]


async def test_batch_larger_than_reply_is_refused(tmp_path: Path) -> None:
    """A follower would receive it in parts. Kafka's producer splits the batch when it receives the error."""
    # A large batch delays the heartbeats of all three servers.
    settings = [replace(each, election_timeout_ms=2_000) for each in formatted(tmp_path, 3, dynamic=False)]
    async with opened(settings) as quorum:
        leader = await quorum.leader()
        for values in ([b""] * 16_385, [bytes(1024 * 1024)] * 8):
            with pytest.raises(ProduceRefusedError) as refused:
                await leader.topic.append(batch(*values), None)
            assert refused.value.error_code == ErrorCode.MESSAGE_TOO_LARGE
        leader, produced = await quorum.append(batch(*[b"x"] * 16_384))
        for voter in quorum.running.values():
            await voter.server.wait_commit(produced.base_offset + 16_384)
            assert (await voter.server.read(1, 20_000, 10**7)) == (await leader.server.read(1, 20_000, 10**7))


async def request_to_leader(quorum: Quorum, message: object) -> object:
    """Return the reply of the leader's listener."""
    leader = await quorum.leader()
    async with open_connection(LOOPBACK, leader.listener.port) as connection:
        return await connection.ask(message, wait_ms=10_000)


async def test_reported_follower_times_do_not_go_back(tmp_path: Path) -> None:
    """The test repeats DescribeQuorum while the followers fetch, as a monitoring tool would."""
    topic = admin.DescribeQuorumRequestTopic(
        topic_name="__cluster_metadata", partitions=(admin.DescribeQuorumRequestPartition(partition_index=0),)
    )

    async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
        leader = await quorum.leader()
        reported: dict[int, tuple[int, int]] = {}
        requests = 0
        with trio.fail_after(60):
            async with open_connection(LOOPBACK, leader.listener.port) as connection:
                # On a busy machine a follower may fetch for the first time after hundreds of requests.
                while requests < 150 or len(reported) < 3 or min(min(times) for times in reported.values()) <= 0:
                    requests += 1
                    answer = await connection.ask(admin.DescribeQuorumRequest(topics=(topic,)))
                    for row in answer.topics[0].partitions[0].current_voters:
                        times = row.last_fetch_timestamp, row.last_caught_up_timestamp
                        before = reported.get(row.replica_id, (-1, -1))
                        assert all(map(ge, times, before)), f"{row.replica_id}: {before}, then {times}"
                        reported[row.replica_id] = times


async def test_observer_becomes_voter_by_add_raft_voter(tmp_path: Path) -> None:
    """RemoveRaftVoter then removes a voter, and the others remain."""
    settings = formatted(tmp_path, 4, dynamic=True)
    async with opened(settings[:3]) as quorum:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"one"), None)
        fourth = await quorum.start(settings[3])
        port = settings[3].listeners[0].port
        listener = admin.AddRaftVoterRequestListener(name="CONTROLLER", host=LOOPBACK, port=port)
        directory = UUID(bytes=fourth.key.directory)
        added = await request_to_leader(
            quorum,
            admin.AddRaftVoterRequest(
                timeout_ms=10_000, voter_id=4, voter_directory_id=directory, listeners=(listener,)
            ),
        )
        assert added == admin.AddRaftVoterResponse()
        leaving = next(voter for voter in quorum.running.values() if voter.key not in (leader.key, fourth.key))
        removed = await request_to_leader(
            quorum,
            admin.RemoveRaftVoterRequest(voter_id=leaving.key.id, voter_directory_id=UUID(bytes=leaving.key.directory)),
        )
        assert removed == admin.RemoveRaftVoterResponse()
        produced = await leader.topic.append(batch(b"two"), None)
        assert await values_of(fourth, produced.base_offset + 1) == [b"one", b"two"]
        voters = leader.server.describe().raft.configuration.voter_ids
        assert {key.id for key in voters if isinstance(key, ReplicaKey)} == {1, 2, 3, 4} - {leaving.key.id}


async def test_added_voter_keeps_changes_during_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another voter moves while the leader tests the address of the new voter."""
    old, moved = (
        server_of(ReplicaKey(1, b"\x01" * 16), (Endpoint("CONTROLLER", LOOPBACK, port),)) for port in (9093, 9094)
    )
    voters, changes = [old], list[tuple[Server, ...]]()

    async def change(target: tuple[Server, ...], head: bytes) -> ConfigurationResolved:
        del head
        await trio.lowlevel.checkpoint()
        changes.append(target)
        return ConfigurationResolved(change_id=1, outcome=ChangeOutcome.COMMITTED)

    async def test_place(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        voters[:] = [moved]

    server = Mock(change_configuration=change)
    server.describe.side_effect = lambda: Mock(raft=Mock(configuration=Configuration(tuple(voters))))
    monkeypatch.setattr(AdminService, "refusal_of_place", test_place)
    service = AdminService(server, Mock(), CLUSTER, lambda: 0, bytes, DialOptions(), is_dynamic=True)
    request = admin.AddRaftVoterRequest(
        timeout_ms=10_000,
        voter_id=2,
        voter_directory_id=UUID(int=2),
        listeners=(admin.AddRaftVoterRequestListener(name="CONTROLLER", host=LOOPBACK, port=9095),),
    )
    assert (await service._add(request))[0] == ErrorCode.NONE
    assert [target[0] for target in changes] == [moved]


async def test_unreadable_listeners_of_voter_are_refused(tmp_path: Path) -> None:
    """Followers would stop permanently at such a record, so the leader would lose all of them."""
    async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
        leader = await quorum.leader()
        for listeners in ([f"C{number}" for number in range(17)], ["C" * 256]):
            port, before = leader.listener.port, leader.server.describe().raft.configuration
            updated = await request_to_leader(
                quorum,
                admin.UpdateRaftVoterRequest(
                    current_leader_epoch=leader.server.role.term,
                    voter_id=leader.key.id,
                    voter_directory_id=UUID(bytes=leader.key.directory),
                    listeners=tuple(
                        admin.UpdateRaftVoterRequestListener(name=name, host=LOOPBACK, port=port) for name in listeners
                    ),
                    k_raft_version_feature=admin.UpdateRaftVoterRequestKRaftVersion(
                        min_supported_version=0, max_supported_version=1
                    ),
                ),
            )
            assert isinstance(updated, admin.UpdateRaftVoterResponse)
            assert updated.error_code == ErrorCode.INVALID_REQUEST
            added = await request_to_leader(
                quorum,
                admin.AddRaftVoterRequest(
                    timeout_ms=1_000,
                    voter_id=9,
                    voter_directory_id=UUID(int=9),
                    listeners=tuple(
                        admin.AddRaftVoterRequestListener(name=name, host=LOOPBACK, port=port) for name in listeners
                    ),
                ),
            )
            assert isinstance(added, admin.AddRaftVoterResponse)
            assert (added.error_code, leader.server.describe().raft.configuration) == (
                ErrorCode.INVALID_REQUEST,
                before,
            )


async def test_added_voter_restarts_without_leader(tmp_path: Path) -> None:
    """The voter's log names the voters. If it requested them first, a quorum of such voters could never restart."""
    settings = formatted(tmp_path, 2, dynamic=True, initial=1)
    async with opened(settings) as quorum:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"one"), None)
        joined = quorum.running[2]
        listener = admin.AddRaftVoterRequestListener(
            name="CONTROLLER", host=LOOPBACK, port=settings[1].listeners[0].port
        )
        added = await request_to_leader(
            quorum,
            admin.AddRaftVoterRequest(
                timeout_ms=10_000,
                voter_id=2,
                voter_directory_id=UUID(bytes=joined.key.directory),
                listeners=(listener,),
            ),
        )
        assert added == admin.AddRaftVoterResponse()
        for node_id in (1, 2):
            await quorum.end(node_id)
        # The first server alone is not a majority, so the second is started before the first has a leader.
        await quorum.start(settings[1])
        await quorum.start(settings[0])
        await (await quorum.leader()).topic.append(batch(b"two"), None)


async def test_returning_observer_uses_bootstrap_servers(tmp_path: Path) -> None:
    """The voters changed while it was stopped, and the server in its log no longer listens."""
    settings = formatted(tmp_path, 3, dynamic=True, initial=1)
    async with opened(settings) as quorum:
        first = await quorum.leader()
        produced = await first.topic.append(batch(b"one"), None)
        assert await values_of(quorum.running[3], produced.base_offset + 1) == [b"one"]
        await quorum.end(3)
        second = quorum.running[2]
        listener = admin.AddRaftVoterRequestListener(
            name="CONTROLLER", host=LOOPBACK, port=settings[1].listeners[0].port
        )
        directory = UUID(bytes=second.key.directory)
        added = await request_to_leader(
            quorum,
            admin.AddRaftVoterRequest(
                timeout_ms=10_000, voter_id=2, voter_directory_id=directory, listeners=(listener,)
            ),
        )
        removed = await request_to_leader(
            quorum, admin.RemoveRaftVoterRequest(voter_id=1, voter_directory_id=UUID(bytes=first.key.directory))
        )
        assert (added, removed) == (admin.AddRaftVoterResponse(), admin.RemoveRaftVoterResponse())
        await quorum.end(1)
        assert (await quorum.leader()).key.id == 2
        produced = await second.topic.append(batch(b"two"), None)
        returned = await quorum.start(settings[2])
        assert await values_of(returned, produced.base_offset + 1) == [b"one", b"two"]


async def test_removed_leader_leads_until_removal_is_committed(tmp_path: Path) -> None:
    """The other voters fetch the removal from this leader, although the new configuration does not contain it."""
    async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"one"), None)
        directory = UUID(bytes=leader.key.directory)
        removed = await request_to_leader(
            quorum, admin.RemoveRaftVoterRequest(voter_id=leader.key.id, voter_directory_id=directory)
        )
        assert removed == admin.RemoveRaftVoterResponse()
        await quorum.end(leader.key.id)
        successor = await quorum.leader()
        produced = await successor.topic.append(batch(b"two"), None)
        assert await values_of(successor, produced.base_offset + 1) == [b"one", b"two"]


async def test_removal_of_negative_voter_id_is_invalid(tmp_path: Path) -> None:
    async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
        directory = UUID(bytes=(await quorum.leader()).key.directory)
        removed = await request_to_leader(
            quorum, admin.RemoveRaftVoterRequest(voter_id=-1, voter_directory_id=directory)
        )
    refusal = "-1 is not an id of a voter"
    assert removed == admin.RemoveRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=refusal)


async def test_restarted_voter_starts_from_snapshot(tmp_path: Path) -> None:
    """A snapshot has the records and the producers."""
    settings = formatted(tmp_path, 3, dynamic=True)
    async with opened(settings) as quorum:
        leader = await quorum.leader()
        producer = (await leader.topic.new_producer_id(None)).producer_id
        first = await leader.topic.append(batch(b"a", producer=producer, sequence=0), None)
        assert await leader.server.take_snapshot() is not None
        await quorum.end(leader.key.id)
        returned = await quorum.start(settings[leader.key.id - 1])
        await returned.server.wait_applied(first.base_offset + 1)
        assert returned.machine.producers[producer].batches[-1].base_offset == first.base_offset


async def test_wildcard_of_own_static_voter_is_not_sent_to_clients(tmp_path: Path) -> None:
    [settings] = formatted(tmp_path, 1, dynamic=False)
    [voter] = settings.voters
    async with opened([replace(settings, voters=(replace(voter, host="0.0.0.0"),))]) as quorum:  # noqa: S104 - not bound
        [broker] = (await quorum.leader()).topic.state().brokers
    assert (broker.host, broker.port) == (LOOPBACK, voter.port)
