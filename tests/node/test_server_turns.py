"""Turns of the server's owner: the task that delivers an event also processes it, and turns never overlap."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from consensus.core.effects import Effect, Outcome, ProposalResolved, ReadReady, ReadRefused, Role
from consensus.core.events import DeadlineReached, Event, Received, SnapshotWanted
from consensus.core.features import GARLIC_FARM
from consensus.core.messages import Reply, RequestVote, VoteReply
from consensus.core.model import LogId
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.net.memory import MemoryNetwork
from consensus.server.errors import ServerStoppedError
from consensus.server.event_loop import next_tick_s, now_ms, sleep_to_tick
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Owner, recover
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import ONE, SMALL, MemoryDisk, parts_around, until, voters

TWO = 2
OUT_OF_DATE = RequestVote(term=0, candidate=TWO, last=LogId(0, 0), correlation=7)


class CountingCore(Raft):
    """A core that counts nested steps, and fails at a configurable point."""

    fails_at: type[object] | None = None
    fails_at_deadline: bool = False
    fails_at_snapshots: bool = False
    depth: int = 0
    deepest: int = 0

    def step(self, event: Event, now: int) -> list[Effect]:
        """Process one event, or fail as configured."""
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        try:
            if self.fails_at is not None and isinstance(event, Received) and isinstance(event.message, self.fails_at):
                raise RuntimeError("the core contradicts itself")
            if self.fails_at_deadline and isinstance(event, DeadlineReached):
                raise RuntimeError("the core contradicts itself")
            if self.fails_at_snapshots and isinstance(event, SnapshotWanted):
                raise RuntimeError("the core contradicts itself")
            return super().step(event, now)
        finally:
            self.depth -= 1


def make_server(options: ServerOptions | None = None) -> tuple[ConsensusServer, CountingCore]:
    disk = MemoryDisk()
    recovery = recover(disk, Owner(b"node-001", 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    core = CountingCore(ONE, voters(1), recovery.hard_state, recovery.log, lan(), GARLIC_FARM, Random(1), now_ms())
    parts = parts_around(MemoryNetwork().transport(ONE), KeptEntries(), options=options)
    return ConsensusServer(core, recovery.storage, disk, parts), core


async def test_request_is_answered_within_the_call(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server, _ = make_server()
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    answers: list[Reply | None] = []
    server.ask(TWO, OUT_OF_DATE, answers.append)
    assert [type(answer) for answer in answers] == [VoteReply], "without waking another task"
    assert answers[0] is not None
    assert answers[0].correlation == OUT_OF_DATE.correlation


def fail(*_: object) -> None:
    raise RuntimeError("a callback fails")


async def test_server_continues_after_failing_callbacks(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    server, _ = make_server()
    monkeypatch.setattr(server, "_observer", fail)
    monkeypatch.setattr(server._transport, "connect", fail)
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    server.submit((b"entry",), fail, fail)
    server.ask(TWO, OUT_OF_DATE, fail)
    server.applying.when_applied(server.applied_index + 1, fail)
    assert (await server.propose((b"another",))).outcome is Outcome.COMMITTED
    assert await server.read_barrier() == server.applied_index
    # Failures: the observer at two role changes, the transport's `connect` at the start, and four callbacks.
    assert caplog.text.count("RuntimeError: a callback fails") >= 6


async def test_invalid_record_is_refused_at_submit(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server, _ = make_server()
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    ends: list[ProposalResolved] = []
    with pytest.raises(ValueError, match="does not support control records"):
        server.submit((b"record",), ends.append, control=True)
    with pytest.raises(ValueError, match="10485761 bytes; at most 10485760 can be stored"):
        server.submit((bytes(10 * 2**20 + 1),), ends.append)
    assert ends == []
    assert (await server.propose((b"command",))).outcome is Outcome.COMMITTED


async def test_request_before_start_waits_for_first_turn(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server, _ = make_server()
    answers: list[Reply | None] = []
    server.ask(TWO, OUT_OF_DATE, answers.append)
    assert answers == []
    await nursery.start(server.run)
    await until(lambda: len(answers) == 1)


async def test_calls_from_a_reply_callback_run_in_later_turns(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server, core = make_server()
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    # given a caller that sends again from within its reply callback, and a client that submits again from within
    # its own
    answers: list[Reply | None] = []
    ends: list[ProposalResolved] = []

    def repeat_request(answer: Reply | None) -> None:
        answers.append(answer)
        count = len(answers)
        if count < 5:
            server.ask(TWO, OUT_OF_DATE, repeat_request)
        assert len(answers) == count, "nested turns"

    def submit_again(end: ProposalResolved) -> None:
        ends.append(end)
        if len(ends) < 5:
            server.submit((b"next",), submit_again)

    # when both start
    server.ask(TWO, OUT_OF_DATE, repeat_request)
    server.submit((b"first",), submit_again)
    # then all calls run, one turn after the other
    await until(lambda: len(answers) == len(ends) == 5)
    assert {end.outcome for end in ends} == {Outcome.COMMITTED}
    assert core.deepest == 1


async def test_read_from_reply_callback_keeps_number_of_first_read(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, _ = make_server()
    await nursery.start(server.run)
    # given a server that does not lead yet, and therefore replies immediately
    answers: list[ReadReady | ReadRefused | None] = []
    seconds: list[int] = []

    def repeat_request(answer: ReadReady | ReadRefused | None) -> None:
        answers.append(answer)
        seconds.append(server.request_read(answers.append))

    # when a read is requested, and another one in its callback
    first = server.request_read(repeat_request)
    assert [type(answer) for answer in answers] == [ReadRefused]
    # then canceling the first does not cancel the second
    server.forget(first)
    await until(lambda: len(answers) == 2)
    assert seconds != [first]


async def test_failing_core_ends_server_not_calling_task(autojump_clock: MockClock) -> None:
    server, core = make_server()
    answers: list[Reply | None] = []

    async def send_request() -> None:
        await until(lambda: server.role.role is Role.LEADER)
        core.fails_at = RequestVote
        server.ask(TWO, OUT_OF_DATE, answers.append)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            nursery.start_soon(send_request)
    assert answers == [None], "the caller gets None"


async def test_core_failing_at_deadline_ends_server(autojump_clock: MockClock) -> None:
    server, core = make_server()
    core.fails_at_deadline = True
    with (
        pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True),
        trio.fail_after(60),
    ):
        await server.run()


async def test_core_failing_in_snapshot_ends_server_not_caller(autojump_clock: MockClock) -> None:
    server, core = make_server()
    core.fails_at_snapshots = True
    errors: list[ServerStoppedError] = []

    async def take_snapshot() -> None:
        await until(lambda: server.role.role is Role.LEADER)
        await server.propose((b"entry",))
        try:
            await server.take_snapshot()
        except ServerStoppedError as error:
            errors.append(error)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            nursery.start_soon(take_snapshot)
    assert len(errors) == 1


async def test_core_failing_in_snapshot_by_age_raises_one_error(autojump_clock: MockClock) -> None:
    server, core = make_server(ServerOptions(snapshot_age_ms=2_000))
    core.fails_at_snapshots = True
    with (
        pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True),
        trio.fail_after(60),
    ):
        await server.run()


async def test_single_client_takes_turn_but_many_share_one(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server, _ = make_server()
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    before = server.describe().raft.last.index
    # given a single client, when it submits, then the core has the entry immediately
    ends: list[ProposalResolved] = []
    server.submit((b"alone",), ends.append)
    assert server.describe().raft.last.index == before + 1
    await until(lambda: len(ends) == 1)
    # given that the last batch had eight entries, when new ones arrive, then the first waits for the batch
    for _ in range(8):
        server.submit((b"one of eight",), ends.append)
    await until(lambda: len(ends) == 9)
    reached = server.describe().raft.last.index
    server.submit((b"first of the next",), ends.append)
    assert server.describe().raft.last.index == reached
    await until(lambda: len(ends) == 10)


async def test_periodic_checks_share_moments(autojump_clock: MockClock) -> None:
    moments: list[float] = []

    async def check(first_s: float, period_s: float) -> None:
        await trio.sleep(first_s)
        while True:
            await sleep_to_tick(period_s)
            moments.append(trio.current_time())

    with trio.move_on_after(6.2):
        async with trio.open_nursery() as nursery:
            for first_s, period_s in ((0.1, 1.0), (0.37, 1.0), (0.8, 2.0), (0.05, 0.5)):
                nursery.start_soon(check, first_s, period_s)
    assert sorted(set(moments)) == [0.5 * half for half in range(1, 13)]
    assert len(moments) == 6 + 6 + 3 + 12


@pytest.mark.parametrize("period_s", [0.1, 0.24, 1 / 3, 1.0, 5.0])
async def test_next_tick_is_after_now_and_pause(autojump_clock: MockClock, period_s: float) -> None:
    for pause_s in (0.0, 0.7 * period_s, 3 * period_s):
        for step in range(200):
            autojump_clock.jump(step % 7 * period_s / 3)
            earliest_s = trio.current_time() + pause_s
            assert earliest_s < next_tick_s(period_s, pause_s) <= earliest_s + period_s * (1 + 1e-9)
            autojump_clock.jump(next_tick_s(period_s) - trio.current_time())
