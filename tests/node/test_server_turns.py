"""Which task takes the owner's turn: the one that brings an event, at once, and never two at a time."""

from random import Random

import pytest
import trio
import trio.testing

from consensus.core.effects import Effect, Outcome, ProposalResolved, ReadReady, ReadRefused, Role
from consensus.core.events import DeadlineReached, Event, Received, SnapshotWanted
from consensus.core.features import GARLIC_FARM
from consensus.core.messages import Reply, RequestVote, VoteReply
from consensus.core.model import LogId
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.net.memory import MemoryNetwork
from consensus.server.errors import ServerStoppedError
from consensus.server.event_loop import now_ms
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Owner, recover
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import ONE, SMALL, MemoryDisk, parts_around, until, voters

TWO = 2
OUT_OF_DATE = RequestVote(term=0, candidate=TWO, last=LogId(0, 0), correlation=7)


class WatchedCore(Raft):
    """A core that counts steps within steps, and fails where a test wants it to."""

    breaks_at: type[object] | None = None
    breaks_at_deadline: bool = False
    breaks_at_snapshots: bool = False
    depth: int = 0
    deepest: int = 0

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take one event, or fail."""
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        try:
            if self.breaks_at is not None and isinstance(event, Received) and isinstance(event.message, self.breaks_at):
                raise RuntimeError("the core contradicts itself")
            if self.breaks_at_deadline and isinstance(event, DeadlineReached):
                raise RuntimeError("the core contradicts itself")
            if self.breaks_at_snapshots and isinstance(event, SnapshotWanted):
                raise RuntimeError("the core contradicts itself")
            return super().step(event, now)
        finally:
            self.depth -= 1


def make_server(options: ServerOptions | None = None) -> tuple[ConsensusServer, WatchedCore]:
    disk = MemoryDisk()
    recovery = recover(disk, Owner(b"node-001", 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    core = WatchedCore(ONE, voters(1), recovery.hard_state, recovery.log, lan(), GARLIC_FARM, Random(1), now_ms())
    parts = parts_around(MemoryNetwork().transport(ONE), KeptEntries(), options=options)
    return ConsensusServer(core, recovery.storage, disk, parts), core


async def test_a_request_is_answered_within_the_call_that_brought_it(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    server, _ = make_server()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: server.role.role is Role.LEADER)
        answers: list[Reply | None] = []
        server.ask(TWO, OUT_OF_DATE, answers.append)
        assert [type(answer) for answer in answers] == [VoteReply], "no task had to wake up for it"
        assert answers[0] is not None
        assert answers[0].correlation == OUT_OF_DATE.correlation
        nursery.cancel_scope.cancel()


def fail(*_: object) -> None:
    raise RuntimeError("a callback fails")


async def test_server_whose_callbacks_raise_continues(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    server, _ = make_server()
    monkeypatch.setattr(server, "_observer", fail)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: server.role.role is Role.LEADER)
        server.submit((b"entry",), fail, fail)
        server.ask(TWO, OUT_OF_DATE, fail)
        assert (await server.propose((b"another",))).outcome is Outcome.COMMITTED
        nursery.cancel_scope.cancel()
    # The observer of two changes of the role, and the three callbacks.
    assert caplog.text.count("RuntimeError: a callback fails") >= 4


async def test_a_record_that_the_log_cannot_have_is_refused_where_it_is_submitted_and_the_server_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, _ = make_server()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: server.role.role is Role.LEADER)
        ends: list[ProposalResolved] = []
        with pytest.raises(ValueError, match="does not support control records"):
            server.submit((b"record",), ends.append, control=True)
        with pytest.raises(ValueError, match="10485761 bytes; at most 10485760 can be stored"):
            server.submit((bytes(10 * 2**20 + 1),), ends.append)
        assert ends == []
        assert (await server.propose((b"command",))).outcome is Outcome.COMMITTED
        nursery.cancel_scope.cancel()


async def test_before_the_server_runs_a_request_waits_for_its_first_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, _ = make_server()
    answers: list[Reply | None] = []
    server.ask(TWO, OUT_OF_DATE, answers.append)
    assert answers == []
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: len(answers) == 1)
        nursery.cancel_scope.cancel()


async def test_what_an_answer_brings_up_waits_until_the_turn_is_over(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    server, core = make_server()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: server.role.role is Role.LEADER)
        # given a caller that asks again from within its answer, and a client that submits again from within its own
        answers: list[Reply | None] = []
        ends: list[ProposalResolved] = []

        def ask_again(answer: Reply | None) -> None:
            answers.append(answer)
            count = len(answers)
            if count < 5:
                server.ask(TWO, OUT_OF_DATE, ask_again)
            assert len(answers) == count, "a turn within a turn"

        def submit_again(end: ProposalResolved) -> None:
            ends.append(end)
            if len(ends) < 5:
                server.submit((b"next",), submit_again)

        # when both begin
        server.ask(TWO, OUT_OF_DATE, ask_again)
        server.submit((b"first",), submit_again)
        # then all of it happens, one step after the other
        await until(lambda: len(answers) == len(ends) == 5)
        assert {end.outcome for end in ends} == {Outcome.COMMITTED}
        assert core.deepest == 1
        nursery.cancel_scope.cancel()


async def test_a_question_asked_from_within_an_answer_does_not_change_the_number_of_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, _ = make_server()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        # given a server that does not lead yet, and so answers at once
        answers: list[ReadReady | ReadRefused | None] = []
        seconds: list[int] = []

        def ask_again(answer: ReadReady | ReadRefused | None) -> None:
            answers.append(answer)
            seconds.append(server.ask_read(answers.append))

        # when a read is asked for, and in its answer another
        first = server.ask_read(ask_again)
        assert [type(answer) for answer in answers] == [ReadRefused]
        # then to forget the first is not to forget the second
        server.forget(first)
        await until(lambda: len(answers) == 2)
        assert seconds != [first]
        nursery.cancel_scope.cancel()


async def test_a_core_that_fails_ends_the_server_and_not_the_task_that_brought_the_event(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, core = make_server()
    answers: list[Reply | None] = []

    async def bring_it() -> None:
        await until(lambda: server.role.role is Role.LEADER)
        core.breaks_at = RequestVote
        server.ask(TWO, OUT_OF_DATE, answers.append)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            nursery.start_soon(bring_it)
    assert answers == [None], "who asked is told that there will be no answer"


async def test_a_core_that_fails_at_its_deadline_ends_the_server_too(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    server, core = make_server()
    core.breaks_at_deadline = True
    with (
        pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True),
        trio.fail_after(60),
    ):
        await server.run()


async def test_a_core_that_fails_over_a_snapshot_ends_the_server_and_not_the_caller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, core = make_server()
    core.breaks_at_snapshots = True
    told: list[ServerStoppedError] = []

    async def take_one() -> None:
        await until(lambda: server.role.role is Role.LEADER)
        await server.propose((b"entry",))
        try:
            await server.take_snapshot()
        except ServerStoppedError as error:
            told.append(error)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            nursery.start_soon(take_one)
    assert len(told) == 1


async def test_a_core_that_fails_over_a_snapshot_by_age_is_told_of_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, core = make_server(ServerOptions(snapshot_age_ms=2_000))
    core.breaks_at_snapshots = True
    with (
        pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="contradicts itself"), flatten_subgroups=True),
        trio.fail_after(60),
    ):
        await server.run()


async def test_a_lone_client_does_not_wait_for_a_turn_and_a_crowd_shares_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    server, _ = make_server()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await until(lambda: server.role.role is Role.LEADER)
        before = server.describe().raft.last.index
        # given a client alone, when it submits, then the core has the entry at once
        ends: list[ProposalResolved] = []
        server.submit((b"alone",), ends.append)
        assert server.describe().raft.last.index == before + 1
        await until(lambda: len(ends) == 1)
        # given that a batch of eight was the last, when the next come, the first does not go alone
        for _ in range(8):
            server.submit((b"one of eight",), ends.append)
        await until(lambda: len(ends) == 9)
        reached = server.describe().raft.last.index
        server.submit((b"first of the next",), ends.append)
        assert server.describe().raft.last.index == reached
        await until(lambda: len(ends) == 10)
        nursery.cancel_scope.cancel()
