"""Voters of a KRaft quorum on loopback: they elect, replicate, lose their leader, and change their voters."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import ge
from pathlib import Path
from uuid import UUID

import pytest
import trio
import trio.testing

from consensus.core.effects import ProposalResolved, Role
from consensus.core.model import Entry, EntryKind, Index, ReplicaKey
from consensus.protocols.kafka.connections.connection import open_connection
from consensus.protocols.kafka.topic.served_topic import Produced, ProduceRefusedError
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.limits import uuid_text
from consensus.protocols.kafka.wire.record_batches import decode_tail
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.operators.quorum_directory import format_directory, new_uuid, parse_initial_voters
from consensus.protocols.kraft.operators.settings import Endpoint, StaticVoter, VoterSettings
from consensus.protocols.kraft.replica.open_voter import KraftVoter, VoterOptions, open_voter
from consensus.protocols.kraft.replica.state_machine import QuorumLog, WrittenBatch
from consensus.protocols.kraft.wire.entries import data_of, entry_tail

CLUSTER = uuid_text(b"\x00" * 15 + b"\x01")
LOOPBACK = "127.0.0.1"


def batch(*values: bytes, producer: int = -1, sequence: int = -1) -> RecordBatch:
    """A batch as a client sends it."""
    records = tuple(Record(1_000, None, value) for value in values)
    epoch = 0 if producer >= 0 else -1
    return RecordBatch(0, -1, records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with_sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_sockets]
    for each in with_sockets:
        each.close()
    return ports


def settings_of(path: Path, node_id: int, ports: list[int], *, dynamic: bool) -> VoterSettings:
    """The settings of voter `node_id`, whose port is the one at its number."""
    voters = tuple(StaticVoter(number, LOOPBACK, port) for number, port in enumerate(ports[:3], 1))
    return VoterSettings(
        node_id,
        path / str(node_id),
        voters=() if dynamic else voters,
        bootstrap_servers=tuple((LOOPBACK, port) for port in ports[:3]) if dynamic else (),
        listeners=(Endpoint("CONTROLLER", LOOPBACK, ports[node_id - 1]),),
        append_linger_ms=0,
        election_timeout_ms=300,
        fetch_timeout_ms=600,
        election_backoff_max_ms=300,
    )


def formatted(path: Path, count: int, *, dynamic: bool, initial: int = 3) -> list[VoterSettings]:
    """So many servers; the first ones, three unless it is said, are the voters of the new quorum."""
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
        """Run a server."""
        await self._nursery.start(self._run, settings)
        return self.running[settings.node_id]

    async def end(self, node_id: int) -> None:
        """Cut a server off in the midst of what it does; returns when it has let go of its directory."""
        del self.running[node_id]
        scope, ended = self._ends.pop(node_id)
        scope.cancel()
        await ended.wait()

    async def leader(self) -> KraftVoter:
        """The leader, when there is one that has committed."""
        while True:
            for voter in self.running.values():
                if voter.server.role.role is Role.LEADER:
                    return voter
            await trio.sleep(0.01)

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
    """These servers, running; at most 30 s."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            quorum = Quorum(nursery, options)
            for each in settings:
                await quorum.start(each)
            yield quorum
            nursery.cancel_scope.cancel()


def values(entries: tuple[Entry, ...]) -> list[bytes | None]:
    """The values of the clients' records."""
    return [decode_tail(entry_tail(entry.data))[1] for entry in entries if entry.kind is EntryKind.COMMAND]


async def values_of(voter: KraftVoter, index: Index) -> list[bytes | None]:
    """What a server has committed up to an index."""
    await voter.server.wait_commit(index)
    first = voter.server.describe().raft.log_start.index + 1
    return values(await voter.server.read(first, 10_000, 10**7))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_three_voters_elect_and_replicate_what_is_acknowledged(tmp_path: Path, *, dynamic: bool) -> None:
    """A record that was acknowledged is on every voter."""

    async def run() -> None:
        async with opened(formatted(tmp_path, 3, dynamic=dynamic)) as quorum:
            leader = await quorum.leader()
            produced = await leader.topic.append(batch(b"one", b"two"), None)
            for voter in quorum.running.values():
                assert await values_of(voter, produced.base_offset + 2) == [b"one", b"two"]
            # Byte for byte, also what the leader wrote by itself
            logs = [await voter.server.read(1, 100, 10**6) for voter in quorum.running.values()]
            assert logs[0] == logs[1] == logs[2]
            assert len(logs[0]) == produced.base_offset + 2

    trio.run(run)


def test_nothing_acknowledged_is_lost_with_the_leader(tmp_path: Path) -> None:
    """The voters that are left elect another, which has every acknowledged record, and a returned one catches up."""

    async def run() -> None:
        settings = formatted(tmp_path, 3, dynamic=True)
        async with opened(settings) as quorum:
            leader = await quorum.leader()
            await leader.topic.append(batch(b"before"), None)
            await quorum.end(leader.key.id)
            successor = await quorum.leader()
            produced = await successor.topic.append(batch(b"after"), None)
            returned = await quorum.start(settings[leader.key.id - 1])
            assert await values_of(returned, produced.base_offset + 1) == [b"before", b"after"]

    trio.run(run)


def test_a_batch_that_comes_again_is_written_once(tmp_path: Path) -> None:
    """An idempotent producer's repetition gets the offset of the first time, also from another leader."""

    async def run() -> None:
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
            following = await successor.topic.append(batch(b"c", producer=producer, sequence=2), None)
            assert await values_of(successor, following.base_offset + 1) == [b"a", b"b", b"c"]

    trio.run(run)


def test_a_batch_that_comes_again_before_it_is_applied_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed is acknowledged; the repetition waits for the table that knows it."""

    async def run() -> None:
        async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
            leader = await quorum.leader()
            producer = (await leader.topic.new_producer_id(None)).producer_id
            written = await leader.topic.append(batch(b"a", producer=producer, sequence=0), None)
            # Given a state machine that stands still
            apply, may_apply = leader.machine.apply, trio.Event()

            async def apply_later(first: Index, entries: tuple[Entry, ...]) -> None:
                await may_apply.wait()
                await apply(first, entries)

            await leader.server.wait_applied(written.base_offset + 1)
            monkeypatch.setattr(leader.machine, "apply", apply_later)
            # When a batch is acknowledged, and comes again
            first = await leader.topic.append(batch(b"b", producer=producer, sequence=1), None)
            answers: list[Produced] = []

            async def repeat() -> None:
                answers.append(await leader.topic.append(batch(b"b", producer=producer, sequence=1), None))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                may_apply.set()
            # Then it has the place that it got first
            assert answers == [first]
            assert await values_of(leader, first.base_offset + 1) == [b"a", b"b"]

    trio.run(run)


def test_a_batch_that_comes_again_after_its_client_gave_up_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repetition waits until it is known what became of the first, whose client waits no more."""

    async def run() -> None:
        async with opened(formatted(tmp_path, 1, dynamic=True)) as quorum:
            leader = await quorum.leader()
            producer = (await leader.topic.new_producer_id(None)).producer_id
            # Given a leader that commits nothing for a while
            held: list[tuple[tuple[bytes, ...], Callable[[ProposalResolved], None]]] = []
            submit = leader.server.submit

            def hold(commands: tuple[bytes, ...], answered: Callable[[ProposalResolved], None], **_: bool) -> None:
                held.append((commands, answered))

            monkeypatch.setattr(leader.server, "submit", hold)
            answers: list[Produced] = []

            async def produce(*, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
                with trio.CancelScope() as scope:
                    task_status.started(scope)
                    answers.append(await leader.topic.append(batch(b"a", producer=producer, sequence=0), None))

            async with trio.open_nursery() as nursery:
                # When a client's time for its batch is over, and it sends the batch again
                first = await nursery.start(produce)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
                nursery.start_soon(produce)
                await trio.testing.wait_all_tasks_blocked()
                assert len(held) == 1
                # and the first is committed after all
                submit(*held[0])
            # Then the log has it once, and the repetition its place
            assert len(held) == 1
            (again,) = answers
            assert await values_of(leader, again.base_offset + 1) == [b"a"]

    trio.run(run)


@pytest.mark.parametrize("asked_here", [True, False], ids=["of the leader", "through another server"])
def test_another_user_cannot_write_under_a_producer_id(tmp_path: Path, *, asked_here: bool) -> None:
    alice, bob = "User:alice", "User:bob"

    async def run() -> None:
        async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
            leader = await quorum.leader()
            producer = (await leader.topic.new_producer_id(alice if asked_here else None)).producer_id
            await leader.topic.append(batch(b"a", producer=producer, sequence=0), alice)
            with pytest.raises(ProduceRefusedError, match="belongs to another user") as refused:
                await leader.topic.append(batch(b"stolen", producer=producer, sequence=1), bob)
            assert refused.value.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            own = await leader.topic.append(batch(b"b", producer=producer, sequence=1), alice)
            assert await values_of(leader, own.base_offset + 1) == [b"a", b"b"]
            if not asked_here:
                return
            # And at the next leader
            await quorum.end(leader.key.id)
            successor = await quorum.leader()
            with pytest.raises(ProduceRefusedError, match="belongs to another user"):
                await successor.topic.append(batch(b"stolen", producer=producer, sequence=2), bob)

    trio.run(run)


def test_a_batch_whose_end_was_lost_with_its_leader_takes_in_no_other() -> None:
    """Records of another batch that follow it are not taken for its own."""

    async def run() -> None:
        machine = QuorumLog(1_000_000)
        cut_off, *_ = data_of(batch(b"a", b"b", producer=1, sequence=0))
        other = data_of(batch(b"c", b"d", producer=2, sequence=5))
        await machine.apply(1, tuple(Entry.command(1, data) for data in (cut_off, *other)))
        assert machine.producers[1].batches == [WrittenBatch(0, 0, 0)]
        assert machine.producers[2].batches == [WrittenBatch(5, 6, 1)]

    trio.run(run)


def test_a_batch_that_no_answer_has_room_for_is_refused(tmp_path: Path) -> None:
    """A follower would get it in parts; Kafka's producer makes smaller ones when it hears so."""

    async def run() -> None:
        # All three share this process and its processor, so that a large batch keeps them from their timeouts.
        patient = [
            replace(each, election_timeout_ms=2_000, fetch_timeout_ms=2_000)
            for each in formatted(tmp_path, 3, dynamic=False)
        ]
        async with opened(patient) as quorum:
            leader = await quorum.leader()
            for values in ([b""] * 16_385, [bytes(1024 * 1024)] * 8):
                with pytest.raises(ProduceRefusedError) as refused:
                    await leader.topic.append(batch(*values), None)
                assert refused.value.error_code == ErrorCode.MESSAGE_TOO_LARGE
            produced = await leader.topic.append(batch(*[b"x"] * 16_384), None)
            for voter in quorum.running.values():
                await voter.server.wait_commit(produced.base_offset + 16_384)
                assert (await voter.server.read(1, 20_000, 10**7)) == (await leader.server.read(1, 20_000, 10**7))

    trio.run(run)


async def ask_leader(quorum: Quorum, message: object) -> object:
    """What the leader's listener answers."""
    leader = await quorum.leader()
    async with open_connection(LOOPBACK, leader.listener.port) as connection:
        return await connection.ask(message, wait_ms=10_000)


def test_the_times_that_a_leader_tells_of_its_followers_never_go_back(tmp_path: Path) -> None:
    """Asked again and again while they fetch, as by one who watches the quorum."""
    topic = admin.DescribeQuorumRequestTopic(
        topic_name="__cluster_metadata", partitions=(admin.DescribeQuorumRequestPartition(partition_index=0),)
    )

    async def run() -> None:
        async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
            leader = await quorum.leader()
            told: dict[int, tuple[int, int]] = {}
            asked = 0
            with trio.fail_after(60):
                async with open_connection(LOOPBACK, leader.listener.port) as connection:
                    # On a busy machine a follower may fetch for the first time after hundreds of questions.
                    while asked < 500 or len(told) < 3 or min(min(times) for times in told.values()) <= 0:
                        asked += 1
                        answer = await connection.ask(admin.DescribeQuorumRequest(topics=(topic,)))
                        for row in answer.topics[0].partitions[0].current_voters:
                            times = row.last_fetch_timestamp, row.last_caught_up_timestamp
                            before = told.get(row.replica_id, (-1, -1))
                            assert all(map(ge, times, before)), f"{row.replica_id}: {before}, then {times}"
                            told[row.replica_id] = times

    trio.run(run)


def test_an_observer_becomes_a_voter_and_a_voter_leaves(tmp_path: Path) -> None:
    """AddRaftVoter makes an observer that has caught up a voter; RemoveRaftVoter leaves the others."""

    async def run() -> None:
        settings = formatted(tmp_path, 4, dynamic=True)
        async with opened(settings[:3]) as quorum:
            leader = await quorum.leader()
            await leader.topic.append(batch(b"one"), None)
            fourth = await quorum.start(settings[3])
            port = settings[3].listeners[0].port
            listener = admin.AddRaftVoterRequestListener(name="CONTROLLER", host=LOOPBACK, port=port)
            directory = UUID(bytes=fourth.key.directory)
            added = await ask_leader(
                quorum,
                admin.AddRaftVoterRequest(
                    timeout_ms=10_000, voter_id=4, voter_directory_id=directory, listeners=(listener,)
                ),
            )
            assert added == admin.AddRaftVoterResponse()
            gone = next(voter for voter in quorum.running.values() if voter.key not in (leader.key, fourth.key))
            removed = await ask_leader(
                quorum,
                admin.RemoveRaftVoterRequest(voter_id=gone.key.id, voter_directory_id=UUID(bytes=gone.key.directory)),
            )
            assert removed == admin.RemoveRaftVoterResponse()
            produced = await leader.topic.append(batch(b"two"), None)
            assert await values_of(fourth, produced.base_offset + 1) == [b"one", b"two"]
            voters = leader.server.describe().raft.configuration.voter_ids
            assert {key.id for key in voters if isinstance(key, ReplicaKey)} == {1, 2, 3, 4} - {gone.key.id}

    trio.run(run)


@pytest.mark.parametrize(
    "listeners",
    [[f"C{number}" for number in range(17)], ["C" * 256]],
    ids=["seventeen", "long-name"],
)
def test_a_voter_is_given_no_listeners_that_the_other_servers_could_not_read(
    tmp_path: Path, listeners: list[str]
) -> None:
    """They would stop at the record for good: a leader that wrote it would lose all its followers."""

    async def run() -> None:
        async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
            leader = await quorum.leader()
            port, before = leader.listener.port, leader.server.describe().raft.configuration
            updated = await ask_leader(
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
            added = await ask_leader(
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

    trio.run(run)


def test_a_voter_that_joined_later_starts_again_without_a_leader_to_ask(tmp_path: Path) -> None:
    """Its log names the voters: if it asked for them first, a quorum of such voters could never start again."""

    async def run() -> None:
        settings = formatted(tmp_path, 2, dynamic=True, initial=1)
        async with opened(settings) as quorum:
            leader = await quorum.leader()
            await leader.topic.append(batch(b"one"), None)
            joined = quorum.running[2]
            listener = admin.AddRaftVoterRequestListener(
                name="CONTROLLER", host=LOOPBACK, port=settings[1].listeners[0].port
            )
            added = await ask_leader(
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
            # The first alone has no majority, so it must not be waited for by the second.
            await quorum.start(settings[1])
            await quorum.start(settings[0])
            await (await quorum.leader()).topic.append(batch(b"two"), None)

    trio.run(run)


def test_an_observer_finds_the_quorum_by_its_bootstrap_servers_when_all_voters_that_it_knows_are_gone(
    tmp_path: Path,
) -> None:
    """It was away while the voters changed, and the server that its log names listens no more."""

    async def run() -> None:
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
            added = await ask_leader(
                quorum,
                admin.AddRaftVoterRequest(
                    timeout_ms=10_000, voter_id=2, voter_directory_id=directory, listeners=(listener,)
                ),
            )
            removed = await ask_leader(
                quorum, admin.RemoveRaftVoterRequest(voter_id=1, voter_directory_id=UUID(bytes=first.key.directory))
            )
            assert (added, removed) == (admin.AddRaftVoterResponse(), admin.RemoveRaftVoterResponse())
            await quorum.end(1)
            assert (await quorum.leader()).key.id == 2
            produced = await second.topic.append(batch(b"two"), None)
            returned = await quorum.start(settings[2])
            assert await values_of(returned, produced.base_offset + 1) == [b"one", b"two"]

    trio.run(run)


def test_a_leader_that_is_removed_leads_until_that_is_committed(tmp_path: Path) -> None:
    """The others fetch its removal from it, although their configuration no longer has it when they have it."""

    async def run() -> None:
        async with opened(formatted(tmp_path, 3, dynamic=True)) as quorum:
            leader = await quorum.leader()
            await leader.topic.append(batch(b"one"), None)
            directory = UUID(bytes=leader.key.directory)
            removed = await ask_leader(
                quorum, admin.RemoveRaftVoterRequest(voter_id=leader.key.id, voter_directory_id=directory)
            )
            assert removed == admin.RemoveRaftVoterResponse()
            await quorum.end(leader.key.id)
            successor = await quorum.leader()
            produced = await successor.topic.append(batch(b"two"), None)
            assert await values_of(successor, produced.base_offset + 1) == [b"one", b"two"]

    trio.run(run)


def test_a_server_that_joins_late_begins_with_a_snapshot(tmp_path: Path) -> None:
    """A snapshot has the records and the producers: a voter that comes back reads on from it."""

    async def run() -> None:
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

    trio.run(run)
