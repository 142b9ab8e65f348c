"""What waits for the owner: the two lanes, how proposals become batches, and the table of calls."""

import pytest
import trio
import trio.testing

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Outcome, ProposalResolved
from consensus.core.events import DiskSpace, PeerExtensions, Proposed
from consensus.core.features import NO_EXTENSIONS
from consensus.server.batching import Batches, Proposal, ProposalLimit
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import next_call
from consensus.server.mailbox import Mailbox
from consensus.server.options import ServerOptions
from consensus.server.pending_calls import PendingCalls


def make(
    batch_commands: int = 10,
    batch_bytes: int = 1_000,
    in_flight_ms: int = 1_000,
    idle_ms: int = 0,
    max_urgent: int = 10,
) -> tuple[Mailbox, Batches, PendingCalls]:
    options = ServerOptions(
        batch_commands=batch_commands,
        batch_bytes=batch_bytes,
        linger_in_flight_ms=in_flight_ms,
        linger_idle_ms=idle_ms,
    )
    calls = PendingCalls(options)
    batches = Batches(calls, options)
    return Mailbox(max_urgent, batches), batches, calls


def submit(batches: Batches) -> Proposed:
    """Hand a batch to the core, which answers it later."""
    batch = batches.submit()
    assert batch is not None
    return batch


def commit(calls: PendingCalls, batch: Proposed) -> None:
    """The core answers."""
    calls.answer(batch.proposal_id, ProposalResolved(proposal_id=batch.proposal_id, outcome=Outcome.COMMITTED))


async def test_a_full_lane_still_takes_what_the_disk_says() -> None:
    mailbox, _, _ = make(max_urgent=1)
    assert mailbox.put(PeerExtensions(2, NO_EXTENSIONS))
    assert not mailbox.put(PeerExtensions(3, NO_EXTENSIONS))
    assert mailbox.put(DiskSpace(full=True))
    assert len(list(mailbox.take_urgent())) == 2


async def test_an_answer_counts_although_the_server_stops_before_it_is_taken() -> None:
    calls = PendingCalls(ServerOptions())
    numbers: list[int] = []
    answers: list[ConfigurationResolved] = []

    def put(number: int) -> bool:
        numbers.append(number)
        return True

    async def ask() -> None:
        answers.append(await calls.ask(calls.changes, put))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        # as when the change is the removal of the very server that was asked
        committed = ConfigurationResolved(change_id=numbers[0], outcome=ChangeOutcome.COMMITTED)
        calls.answer(numbers[0], committed)
        calls.end()
    assert answers == [committed]


async def test_each_kind_of_call_has_room_of_its_own_and_a_caller_that_goes_away_frees_it() -> None:
    calls = PendingCalls(ServerOptions(max_requests=2))
    answers: list[object] = []
    # given as many requests of peers as are taken
    first, second, third = next_call(), next_call(), next_call()
    calls.begin(calls.requests, first, answers.append)
    calls.begin(calls.requests, second, answers.append)
    with pytest.raises(ServerBusyError, match="2 requests are under way"):
        calls.begin(calls.requests, third, answers.append)
    # then a client may still read, and one that went away has left its place
    calls.begin(calls.reads, next_call(), answers.append)
    calls.forget(first)
    calls.begin(calls.requests, third, answers.append)
    # and an answer that comes too late for it is dropped
    calls.answer(first, "late")
    assert answers == []


async def test_when_the_server_stops_waiting_callers_are_told_and_new_calls_refused() -> None:
    calls = PendingCalls(ServerOptions())
    told: list[object] = []

    def ask_again(answer: object) -> None:
        told.append(answer)
        with pytest.raises(ServerStoppedError):
            calls.begin(calls.requests, next_call(), told.append)

    calls.begin(calls.requests, next_call(), ask_again)
    calls.begin(calls.reads, next_call(), told.append)
    calls.end()
    assert told == [None, None]
    assert calls.requests.waiting == calls.reads.waiting == 0


async def test_a_proposal_given_up_before_the_core_has_it_never_takes_effect() -> None:
    (mailbox, batches, _), limit = make(), ProposalLimit(10, 1_000)
    proposal = admitted(b"never", limit)
    mailbox.propose(proposal)
    proposal.abandon()
    assert batches.submit() is None
    assert limit == ProposalLimit(10, 1_000)


async def test_proposals_linger_while_a_batch_is_in_flight_until_they_fill_one_or_their_time_is_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    (mailbox, batches, _), limit = make(3, 100, in_flight_ms=500), ProposalLimit(10, 1_000)
    mailbox.propose(admitted(b"first", limit))
    assert batches.is_due, "nothing is in flight, so it does not wait"
    submit(batches)
    mailbox.propose(admitted(b"second", limit))
    assert not batches.is_due
    began = trio.current_time()
    await mailbox.wait(began + 60)
    assert trio.current_time() == began + 0.5
    assert batches.is_due, "it has waited long enough"
    assert len(submit(batches).commands) == 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(propose_later, mailbox, limit, 0.1)
        nursery.start_soon(propose_later, mailbox, limit, 0.2)
        nursery.start_soon(propose_later, mailbox, limit, 0.3)
        began = trio.current_time()
        while not batches.is_due:
            await mailbox.wait(began + 60)
    assert trio.current_time() == pytest.approx(began + 0.3), "a full batch need not wait"
    assert len(submit(batches).commands) == 3

    mailbox.propose(admitted(b"x" * 100, limit))
    assert batches.in_flight
    assert batches.is_due, "full by its bytes"


async def test_the_clients_of_an_answered_batch_are_awaited_for_a_moment_so_that_they_share_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    (mailbox, batches, calls), limit = make(100, 10_000, 500, idle_ms=100), ProposalLimit(100, 10_000)
    # given a batch of five that was answered
    for _ in range(5):
        mailbox.propose(admitted(b"x", limit))
    commit(calls, submit(batches))
    # when its clients come back one after the other, then nothing is due until the last of them is there
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(propose_later, mailbox, limit, 0.01 * (number + 1))
        began = trio.current_time()
        while not batches.is_due:
            await mailbox.wait(began + 60)
    assert trio.current_time() == pytest.approx(began + 0.05)
    again = submit(batches)
    assert len(again.commands) == 5

    # and when one stays away, the others wait for the time of a pause and no longer
    commit(calls, again)
    for _ in range(4):
        mailbox.propose(admitted(b"x", limit))
    began = trio.current_time()
    while not batches.is_due:
        await mailbox.wait(began + 60)
    assert trio.current_time() == pytest.approx(began + 0.1)
    assert len(submit(batches).commands) == 4


async def test_control_records_go_in_batches_of_their_own() -> None:
    """A batch becomes entries of one kind."""
    (mailbox, batches, _), limit = make(), ProposalLimit(10, 1_000)
    for number, control in enumerate((False, False, True, True, False)):
        proposal = Proposal((b"%d" % number,), limit, lambda _: None, control=control)
        proposal.admit()
        mailbox.propose(proposal)
    found = [submit(batches) for _ in range(3)]
    assert [(each.commands, each.control) for each in found] == [
        ((b"0", b"1"), False),
        ((b"2", b"3"), True),
        ((b"4",), False),
    ]


async def test_a_client_alone_never_lingers(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    (mailbox, batches, calls), limit = make(100, 10_000, 500, idle_ms=100), ProposalLimit(100, 10_000)
    for _ in range(3):
        mailbox.propose(admitted(b"x", limit))
        assert batches.is_due
        commit(calls, submit(batches))


def admitted(command: bytes, limit: ProposalLimit) -> Proposal:
    proposal = Proposal((command,), limit, lambda _: None)
    proposal.admit()
    return proposal


async def propose_later(mailbox: Mailbox, limit: ProposalLimit, delay_s: float) -> None:
    await trio.sleep(delay_s)
    mailbox.propose(admitted(b"later", limit))
