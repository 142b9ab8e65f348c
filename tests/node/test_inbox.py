"""What waits for the owner: the two lanes, and how proposals become batches."""

import pytest
import trio
import trio.testing

from consensus.core.effects import ChangeOutcome, ConfigurationResolved
from consensus.core.events import DiskSpace, PeerExtensions
from consensus.core.features import NO_EXTENSIONS
from consensus.core.model import Configuration, Server
from consensus.server.changes import Changes
from consensus.server.mailbox import Admission, Mailbox, Proposal


async def test_a_full_lane_still_takes_what_the_disk_says() -> None:
    mailbox = Mailbox(1, 10, 1_000, 1.0, 0.0)
    assert mailbox.put(PeerExtensions(2, NO_EXTENSIONS))
    assert not mailbox.put(PeerExtensions(3, NO_EXTENSIONS))
    assert mailbox.put(DiskSpace(full=True))
    assert mailbox.urgent_count == 2


async def test_an_answer_counts_although_the_server_stops_before_it_is_taken() -> None:
    changes, answers = Changes(Mailbox(10, 10, 1_000, 1.0, 0.0)), []

    async def ask() -> None:
        answers.append(await changes.ask(Configuration((Server(2, "tcp://b:1"),))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        # as when the change is the removal of the very server that was asked
        changes.resolve(ConfigurationResolved(1, ChangeOutcome.COMMITTED))
        changes.end()
    assert answers == [ConfigurationResolved(1, ChangeOutcome.COMMITTED)]


async def test_a_proposal_given_up_before_the_core_has_it_never_takes_effect() -> None:
    mailbox, admission = Mailbox(10, 10, 1_000, 1.0, 0.0), Admission(10, 1_000)
    proposal = admitted(b"never", admission)
    mailbox.propose(proposal)
    proposal.abandon()
    assert mailbox.take_batch() == []
    assert admission == Admission(10, 1_000)


async def test_proposals_are_held_for_the_batch_under_way_until_they_fill_one_or_their_time_is_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    mailbox, admission = Mailbox(10, 3, 100, 0.5, 0.0), Admission(10, 1_000)
    mailbox.propose(admitted(b"first", admission))
    assert mailbox.batch_is_due(under_way=False), "nobody waits for company"
    assert not mailbox.batch_is_due(under_way=True)
    began = trio.current_time()
    await mailbox.wait(began + 60, under_way=True)
    assert trio.current_time() == began + 0.5
    assert mailbox.batch_is_due(under_way=True), "held long enough"
    assert len(mailbox.take_batch()) == 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(propose_later, mailbox, admission, 0.1)
        nursery.start_soon(propose_later, mailbox, admission, 0.2)
        nursery.start_soon(propose_later, mailbox, admission, 0.3)
        began = trio.current_time()
        while not mailbox.batch_is_due(under_way=True):
            await mailbox.wait(began + 60, under_way=True)
    assert trio.current_time() == pytest.approx(began + 0.3), "a full batch need not wait"
    assert len(mailbox.take_batch()) == 3

    mailbox.propose(admitted(b"x" * 100, admission))
    assert mailbox.batch_is_due(under_way=True), "full by its bytes"


async def test_the_clients_of_an_answered_batch_are_awaited_for_a_moment_so_that_they_share_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    mailbox, admission = Mailbox(10, 100, 10_000, 0.5, 0.1), Admission(100, 10_000)
    # given a batch of five that was answered
    for _ in range(5):
        mailbox.propose(admitted(b"x", admission))
    assert len(mailbox.take_batch()) == 5
    mailbox.answered()
    # when its clients come back one after the other, then nothing is due until the last of them is there
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(propose_later, mailbox, admission, 0.01 * (number + 1))
        began = trio.current_time()
        while not mailbox.batch_is_due(under_way=False):
            await mailbox.wait(began + 60, under_way=False)
    assert trio.current_time() == pytest.approx(began + 0.05)
    assert len(mailbox.take_batch()) == 5

    # and when one stays away, the others wait for the time of a pause and no longer
    mailbox.answered()
    for _ in range(4):
        mailbox.propose(admitted(b"x", admission))
    began = trio.current_time()
    while not mailbox.batch_is_due(under_way=False):
        await mailbox.wait(began + 60, under_way=False)
    assert trio.current_time() == pytest.approx(began + 0.1)
    assert len(mailbox.take_batch()) == 4


async def test_a_client_alone_never_waits_for_company(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    mailbox, admission = Mailbox(10, 100, 10_000, 0.5, 0.1), Admission(100, 10_000)
    for _ in range(3):
        mailbox.propose(admitted(b"x", admission))
        assert mailbox.batch_is_due(under_way=False)
        mailbox.take_batch()
        mailbox.answered()


def admitted(command: bytes, admission: Admission) -> Proposal:
    proposal = Proposal((command,), admission, lambda _: None)
    proposal.admit()
    return proposal


async def propose_later(mailbox: Mailbox, admission: Admission, delay_s: float) -> None:
    await trio.sleep(delay_s)
    mailbox.propose(admitted(b"later", admission))
