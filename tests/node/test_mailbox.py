"""The mailbox of a server's owner: its two lanes, the batches of proposals, and the table of calls."""

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
        batch_commands=batch_commands, batch_bytes=batch_bytes, linger_in_flight_ms=in_flight_ms, linger_idle_ms=idle_ms
    )
    calls = PendingCalls(options)
    batches = Batches(calls, options)
    return Mailbox(max_urgent, batches), batches, calls


def submit(batches: Batches) -> Proposed:
    """Return the next batch; fail if it is missing. `commit` replies to it."""
    batch = batches.submit()
    assert batch is not None
    return batch


def commit(calls: PendingCalls, batch: Proposed) -> None:
    """Reply to the batch as the core does."""
    calls.answer(batch.proposal_id, ProposalResolved(proposal_id=batch.proposal_id, outcome=Outcome.COMMITTED))


async def test_full_lane_still_accepts_events_of_disk() -> None:
    mailbox, _, _ = make(max_urgent=1)
    assert mailbox.put(PeerExtensions(2, NO_EXTENSIONS))
    assert not mailbox.put(PeerExtensions(3, NO_EXTENSIONS))
    assert mailbox.put(DiskSpace(full=True))
    assert len(list(mailbox.take_urgent())) == 2


async def test_reply_counts_although_server_stops_before_delivery() -> None:
    calls = PendingCalls(ServerOptions())
    numbers: list[int] = []
    answers: list[ConfigurationResolved] = []

    def put(number: int) -> bool:
        numbers.append(number)
        return True

    async def change() -> None:
        answers.append(await calls.ask(calls.changes, put))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        # for example, because the change removes the server that received the request
        committed = ConfigurationResolved(change_id=numbers[0], outcome=ChangeOutcome.COMMITTED)
        calls.answer(numbers[0], committed)
        calls.end()
    assert answers == [committed]


async def test_call_kinds_have_separate_limits_and_canceling_frees() -> None:
    calls = PendingCalls(ServerOptions(max_requests=2))
    answers: list[object] = []
    # given as many peer requests as allowed
    first, second, third = next_call(), next_call(), next_call()
    calls.begin(calls.requests, first, answers.append)
    calls.begin(calls.requests, second, answers.append)
    with pytest.raises(ServerBusyError, match="2 requests are under way"):
        calls.begin(calls.requests, third, answers.append)
    # then a client may still read, and a canceled request frees its place
    calls.begin(calls.reads, next_call(), answers.append)
    calls.forget(first)
    calls.begin(calls.requests, third, answers.append)
    # and a late reply to a canceled request is dropped
    calls.answer(first, "late")
    assert answers == []


async def test_stopping_server_ends_waiting_calls_and_refuses_new() -> None:
    calls = PendingCalls(ServerOptions())
    replies: list[object] = []

    def repeat_call(answer: object) -> None:
        replies.append(answer)
        with pytest.raises(ServerStoppedError):
            calls.begin(calls.requests, next_call(), replies.append)

    calls.begin(calls.requests, next_call(), repeat_call)
    calls.begin(calls.reads, next_call(), replies.append)
    calls.end()
    assert replies == [None, None]
    assert calls.requests.waiting == calls.reads.waiting == 0


async def test_abandoned_proposal_never_takes_effect() -> None:
    (mailbox, batches, _), limit = make(), ProposalLimit(10, 1_000)
    proposal = admitted(b"never", limit)
    mailbox.propose(proposal)
    proposal.abandon()
    assert batches.submit() is None
    assert limit == ProposalLimit(10, 1_000)


async def test_proposals_wait_for_full_batch_or_time_limit(autojump_clock: trio.testing.MockClock) -> None:
    (mailbox, batches, _), limit = make(3, 100, in_flight_ms=500), ProposalLimit(10, 1_000)
    mailbox.propose(admitted(b"first", limit))
    assert batches.is_due, "nothing is in flight, so it does not wait"
    submit(batches)
    mailbox.propose(admitted(b"second", limit))
    assert not batches.is_due
    began = trio.current_time()
    await mailbox.wait(began + 60)
    assert trio.current_time() == began + 0.5
    assert batches.is_due, "its waiting time is over"
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


@pytest.mark.parametrize(("proposals", "wakes_s"), [(0, 1.4), (1, 1.0)])
async def test_extended_deadline_delays_only_idle_owner(
    proposals: int, wakes_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    (mailbox, batches, _), limit = make(in_flight_ms=5_000), ProposalLimit(10, 1_000)
    for _ in range(proposals):
        mailbox.propose(admitted(b"first", limit))
        submit(batches)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait, began + 1)
        await trio.sleep(0.4)
        mailbox.expect(began + 1.4)
    assert trio.current_time() == pytest.approx(began + wakes_s)


async def test_clients_of_answered_batch_share_next_one(autojump_clock: trio.testing.MockClock) -> None:
    (mailbox, batches, calls), limit = make(100, 10_000, 500, idle_ms=100), ProposalLimit(100, 10_000)
    # given a batch of five with a reply
    for _ in range(5):
        mailbox.propose(admitted(b"x", limit))
    commit(calls, submit(batches))
    # when its clients submit again one by one, then no batch is due until the last one has submitted
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(propose_later, mailbox, limit, 0.01 * (number + 1))
        began = trio.current_time()
        while not batches.is_due:
            await mailbox.wait(began + 60)
    assert trio.current_time() == pytest.approx(began + 0.05)
    again = submit(batches)
    assert len(again.commands) == 5

    # and when one client does not submit, the others wait for the idle time and no longer
    commit(calls, again)
    for _ in range(4):
        mailbox.propose(admitted(b"x", limit))
    began = trio.current_time()
    while not batches.is_due:
        await mailbox.wait(began + 60)
    assert trio.current_time() == pytest.approx(began + 0.1)
    assert len(submit(batches).commands) == 4


async def test_control_records_have_separate_batches() -> None:
    """A batch has only control records, or none."""
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


async def test_proposal_of_single_client_is_due_immediately(autojump_clock: trio.testing.MockClock) -> None:
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
