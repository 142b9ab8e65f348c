"""Exactly-once execution of commands for clients of real servers on loopback, even if a server is killed."""

import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from consensus.core.effects import Outcome
from consensus.core.model import Entry, LogId
from consensus.core.options import Options
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient, read_barrier_anywhere
from consensus.server.errors import NotLeaderError
from consensus.sessions.client import ExactlyOnceClient, SessionExpiredError, Submission
from consensus.sessions.dedup_state_machine import OPENING_ENTRY, DedupStateMachine, clock_entry, request_entry
from consensus.sessions.table import CLIENT_BYTES_MAX, DEFAULT_LIMITS, RequestId, SessionLimits, SessionTableError
from tests.node.loopback_group import CALM, PATIENT, LoopbackGroup

LONG_S = 120


@asynccontextmanager
async def group(
    path: Path, limits: SessionLimits = DEFAULT_LIMITS, options: Options = CALM
) -> AsyncIterator[LoopbackGroup]:
    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            servers = LoopbackGroup(path, nursery, limits, options=options, eager=True)
            for server_id in servers.ids:
                await servers.start(server_id)
            yield servers
            nursery.cancel_scope.cancel()


def exactly_once(client: GarlicFarmClient, name: str) -> ExactlyOnceClient:
    return ExactlyOnceClient(client, name, request_entry, OPENING_ENTRY)


async def test_commands_execute_once_despite_kill_of_leader(tmp_path: Path) -> None:
    commands = [b"client %d command %d" % (client, number) for client in range(4) for number in range(20)]
    async with group(tmp_path, options=PATIENT) as servers, trio.open_nursery() as nursery:
        plain = servers.client()
        await nursery.start(plain.run)
        done = trio.Event()
        answers: list[Submission] = []

        async def stream(name: int) -> None:
            client = exactly_once(plain, f"client-{name}")
            for command in commands[name * 20 : name * 20 + 20]:
                answers.append(await client.submit(command, timeout_s=60))
                if len(answers) == len(commands) // 3:
                    done.set()

        async with trio.open_nursery() as streams:
            for name in range(4):
                streams.start_soon(stream, name)
            await done.wait()
            killed = await servers.leader()
            await servers.kill(killed)
        assert {answer.outcome for answer in answers} == {Outcome.COMMITTED}
        await servers.start(killed)
        last = max(answer.position.index for answer in answers if answer.position is not None)
        for run in servers.runs.values():
            await run.server.wait_applied(last)
            assert Counter(run.executed) == Counter(commands)
            in_order = [command for command in run.executed if command.startswith(b"client 2")]
            assert in_order == commands[40:60], "a client that waits for replies keeps its order"
        nursery.cancel_scope.cancel()


async def test_reads_on_leader_see_acknowledged_writes(tmp_path: Path) -> None:
    async with group(tmp_path) as servers:
        leader = await servers.leader()
        found = await servers.runs[leader].server.propose((b"x",))
        assert found.outcome is Outcome.COMMITTED
        assert found.position is not None
        assert await servers.runs[leader].server.read_barrier() >= found.position.index
        assert servers.runs[leader].executed == [b"x"]
        other = next(server_id for server_id in servers.ids if server_id != leader)
        await servers.runs[other].server.wait_applied(1)
        with pytest.raises(NotLeaderError) as refusal:
            await servers.runs[other].server.read_barrier()
        assert refusal.value.leader == leader


async def test_follower_reads_linearizably_with_index_of_leader(tmp_path: Path) -> None:
    async with group(tmp_path) as servers, trio.open_nursery() as nursery:
        client = servers.client()
        await nursery.start(client.run)
        leader = await servers.leader()
        others = [servers.runs[server_id] for server_id in servers.ids if server_id != leader]
        for number in range(5):
            found = await servers.runs[leader].server.propose((b"%d" % number,))
            assert found.position is not None
            for run in others:
                assert await read_barrier_anywhere(run.server, client) >= found.position.index
                assert run.executed[-1] == b"%d" % number, "every later read must see an acknowledged write"
        nursery.cancel_scope.cancel()


async def test_read_without_known_commit_index_is_refused(tmp_path: Path) -> None:
    async with group(tmp_path) as servers, trio.open_nursery() as nursery:
        client, client_without_extensions = servers.client(), servers.client(offered=())
        await nursery.start(client.run)
        await nursery.start(client_without_extensions.run)
        leader = await servers.leader()
        refused, timeout_s = await client_without_extensions.read_index(timeout_s=0.5), 0.5
        while refused.reason == "the request was not sent to a server yet":  # a busy machine takes longer to connect
            timeout_s *= 2
            refused = await client_without_extensions.read_index(timeout_s=timeout_s)
        assert (refused.outcome, refused.position) == (Outcome.NOT_LEADER, None)
        assert "does not know the extension read-index" in refused.reason
        left = next(server_id for server_id in servers.ids if server_id != leader)
        for server_id in set(servers.ids) - {left}:
            await servers.kill(server_id)
        with pytest.raises(NotLeaderError):
            await read_barrier_anywhere(servers.runs[left].server, client, timeout_s=0.5)
        nursery.cancel_scope.cancel()


async def test_client_with_expired_session_is_refused(tmp_path: Path) -> None:
    async with group(tmp_path, SessionLimits(sessions_max=2)) as servers, trio.open_nursery() as nursery:
        plain, client_without_extensions = servers.client(), servers.client(offered=())
        await nursery.start(plain.run)
        await nursery.start(client_without_extensions.run)
        first, *others = (exactly_once(plain, name) for name in ("first", "second", "third"))
        assert (await first.submit(b"one")).outcome is Outcome.COMMITTED
        for other in others:
            await other.submit(b"push")
        with pytest.raises(SessionExpiredError, match="too many clients were active"):
            await first.submit(b"two")
        old = await client_without_extensions.submit((request_entry(RequestId("first", 1, 2), b"two"),), timeout_s=5)
        assert old.outcome is Outcome.UNKNOWN, "a peer without the extension gets no acknowledgment"
        again = await first.submit(b"three")
        assert again.outcome is Outcome.COMMITTED
        assert again.position is not None
        for run in servers.runs.values():
            await run.server.wait_applied(again.position.index)
            assert run.executed == [b"one", b"push", b"push", b"three"]
        nursery.cancel_scope.cancel()


# -- the client alone --------------------------------------------------------------------------------------------------


class ScriptedClient(GarlicFarmClient):
    """A client whose submissions commit at the next index after a set delay."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.delays_s: dict[int, float] = {}
        self.unresponsive = False

    async def submit(self, commands: object, *, timeout_s: float = 10.0, repeat_unknown: bool = False) -> Submission:
        """Return a commit, or an unknown outcome after the timeout if `unresponsive` is set."""
        assert isinstance(commands, tuple)
        assert repeat_unknown
        self.sent.append(commands[0])
        index = len(self.sent)
        await trio.sleep(timeout_s if self.unresponsive else self.delays_s.get(index, 0.01))
        if self.unresponsive:
            return Submission(Outcome.UNKNOWN, reason="server 1 has not answered in time")
        return Submission(Outcome.COMMITTED, LogId(index, 1))


async def test_number_stays_within_window_of_oldest_unanswered_one(autojump_clock: MockClock) -> None:
    scripted = ScriptedClient()
    scripted.delays_s[2] = 10.0  # the first command after the opening
    client = ExactlyOnceClient(scripted, "c", request_entry, OPENING_ENTRY, SessionLimits(window=4))
    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(client.submit, b"x")
        await trio.sleep(5)
        assert len(scripted.sent) == 1 + 4
    assert len(scripted.sent) == 1 + 9


async def test_session_restarts_after_long_pause(autojump_clock: MockClock) -> None:
    scripted, limits = ScriptedClient(), SessionLimits(expiry_ms=400_000)
    client = ExactlyOnceClient(scripted, "c", request_entry, OPENING_ENTRY, limits)
    for _ in range(2):
        await client.submit(b"x")
    await trio.sleep(101)
    await client.submit(b"x")
    requests = [request_entry(RequestId("c", born, number), b"x") for born, number in ((1, 1), (1, 2), (4, 1))]
    assert scripted.sent == [OPENING_ENTRY, requests[0], requests[1], OPENING_ENTRY, requests[2]]


async def test_unanswered_submission_reports_known_outcome(autojump_clock: MockClock) -> None:
    scripted = ScriptedClient()
    client = exactly_once(scripted, "c")
    scripted.unresponsive = True
    refused = await client.submit(b"x", timeout_s=5)
    assert refused.outcome is Outcome.NOT_LEADER
    assert "not submitted within 5 s" in refused.reason
    scripted.unresponsive = False
    await client.submit(b"y")
    scripted.unresponsive = True
    unknown = await client.submit(b"z", timeout_s=5)
    assert unknown.outcome is Outcome.UNKNOWN
    with pytest.raises(ValueError, match="may exceed the lifetime of the session"):
        await client.submit(b"z", timeout_s=3_600)


# -- the state machine alone -------------------------------------------------------------------------------------------


def machine(executed: list[bytes], limits: SessionLimits = DEFAULT_LIMITS) -> DedupStateMachine:
    async def execute(_index: int, command: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        executed.append(command)
        return b"result %d" % len(executed)

    return DedupStateMachine(execute, limits)


async def test_repeated_request_is_executed_once() -> None:
    executed: list[bytes] = []
    state, request = machine(executed), RequestId("c", 0, 1)
    log = [request_entry(request, b"x"), b"plain", request_entry(request, b"x"), b"plain", OPENING_ENTRY, b"\xf1short"]
    await state.apply(1, tuple(Entry.command(1, data) for data in log))
    assert executed == [b"x", b"plain", b"plain"]
    assert state.result_of(request) == b"result 1"
    assert state.result_of(RequestId("c", 0, 2)) is None


async def test_sessions_expire_by_clock_entries_of_log() -> None:
    executed: list[bytes] = []
    state = machine(executed, SessionLimits(expiry_ms=1_000))
    entry = request_entry(RequestId("c", 0, 1), b"x")
    log = [entry, clock_entry(1_001), entry, clock_entry(5), b"\xf2"]
    await state.apply(1, tuple(Entry.command(1, data) for data in log))
    assert executed[0] == b"x"
    assert executed[1:] == [b"\xf2"], "a repetition after expiry is refused; other bytes are a command"


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 7):
        yield data[start : start + 7]


async def restore_from(state: DedupStateMachine, data: bytes) -> None:
    async with aclosing(chunks(data)) as parts:  # type: ignore[type-var] # it is a generator
        await state.restore(LogId(6, 1), parts)


async def test_clock_entry_beyond_63_bits_is_ignored() -> None:
    state, restored = machine([]), machine([])
    log = [clock_entry(7), clock_entry(2**63)]
    await state.apply(1, tuple(Entry.command(1, data) for data in log))
    await restore_from(restored, b"".join(state.snapshot()))
    assert restored.log_time_ms == 7


async def test_longest_table_within_limits_is_restored() -> None:
    limits = SessionLimits(sessions_max=2, window=3, result_bytes_max=len(b"result 1"))
    state, restored = machine([], limits), machine([], limits)
    names = [letter * CLIENT_BYTES_MAX for letter in "ab"]
    requests = [RequestId(name, 0, number) for name in names for number in range(1, 4)]
    await state.apply(1, tuple(Entry.command(1, request_entry(each, b"x")) for each in requests))
    data = b"".join(state.snapshot())
    await restore_from(restored, data)
    assert all(restored.result_of(each) == state.result_of(each) for each in requests)
    # A table that is a byte longer is refused before its bytes arrive
    (size,) = struct.unpack_from(">Q", data)
    with pytest.raises(SessionTableError, match=f"the limit is {size}"):
        await restore_from(restored, struct.pack(">QQ", size + 1, 0))


async def test_snapshot_has_session_table_before_inner_state() -> None:
    random = Random(3)
    inner: list[bytes] = []

    async def restore(_last: LogId, state: AsyncIterator[bytes]) -> None:
        inner.append(b"".join([chunk async for chunk in state]))

    async def execute(_index: int, command: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        inner.append(command)
        return b""

    state = DedupStateMachine(execute, snapshot=lambda: iter((b"inner ", b"state")))
    log = [clock_entry(7), *(request_entry(RequestId("c", 0, number), b"x") for number in range(1, 6))]
    await state.apply(1, tuple(Entry.command(1, data) for data in log))
    data = b"".join(state.snapshot())
    inner.clear()
    restored = DedupStateMachine(execute, restore=restore)
    await restored.restore(LogId(6, 1), chunks(data))
    assert inner == [b"inner state"]
    await restored.apply(7, (Entry.command(1, log[3]),))
    assert inner == [b"inner state"]
    for _ in range(50):
        with pytest.raises(SessionTableError):
            await restored.restore(LogId(6, 1), chunks(data[: random.randrange(len(data) - len(b"inner state"))]))
