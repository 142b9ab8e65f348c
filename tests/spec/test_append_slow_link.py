"""Appends over a slow link: requests are smaller after an overdue reply, and entries in transfer are not sent again."""

import pytest
from msgspec.structs import replace

from consensus.core.effects import Outcome, ProposalResolved, Role
from consensus.core.events import DeadlineReached, PeerExtensions
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Extensions, Features
from consensus.core.messages import AppendEntries
from consensus.core.options import lan
from consensus.core.replication.progress import LEAST_REQUEST_BYTES, MAX_HALVINGS, Progress, ProgressState
from consensus.core.slow_link import SLOWEST_LINK_BYTES_PER_S
from tests.spec.raft_bench import TWO, Bench

RETRY_MS = lan().retry_ms
FULL = 256 * 1024


@pytest.mark.parametrize(("overdue", "part"), [(0, FULL), (1, FULL // 2), (4, FULL // 16), (99, LEAST_REQUEST_BYTES)])
def test_overdue_replies_halve_request_size(overdue: int, part: int) -> None:
    progress = Progress(1)
    for _ in range(overdue):
        progress.was_overdue()
    assert progress.part_of(FULL, LEAST_REQUEST_BYTES) == part
    assert progress.part_of(16) == max(1, 16 >> min(overdue, MAX_HALVINGS))


def test_quick_replies_double_request_size() -> None:
    progress = Progress(1)
    progress.was_overdue()
    progress.took(RETRY_MS, RETRY_MS)
    assert progress.part_of(FULL) == FULL // 2
    progress.took(RETRY_MS // 4, RETRY_MS)
    assert progress.part_of(FULL) == FULL


def test_heartbeat_overtaking_entries_resends_none() -> None:
    """The refusal of the heartbeat only means that the entries are still in transfer."""
    progress = Progress(3, match=2, state=ProgressState.REPLICATING)
    progress.sent(1, 2, 9, 0, 0, 1_000_000)
    progress.sent(2, 9, 9, 100)
    heartbeat = progress.pop_request(2)
    assert heartbeat is not None
    assert progress.overtook(heartbeat, 100)
    progress.pop_request(1)
    assert not progress.overtook(heartbeat, 100)


def test_acknowledged_bytes_do_not_extend_later_deadlines() -> None:
    """Under load one request is always unanswered. Its deadline must not grow with the total of all sent bytes."""
    progress = Progress(1, state=ProgressState.REPLICATING)
    progress.sent(0, 0, 1, 0, 0, FULL)
    first = progress.oldest_sent_ms()
    for number in range(1, 1_000):
        progress.sent(number, number, number + 1, 0, 0, FULL)
        progress.pop_request(number - 1)
    assert progress.bytes_under_way == FULL
    assert (first or 0) < (progress.oldest_sent_ms() or 0) < 3 * (first or 0)


@pytest.mark.parametrize(("size_bytes", "now"), [(1_000, 100), (1_000_000, 60_000)])
def test_refused_heartbeat_after_lost_entries_counts(size_bytes: int, now: int) -> None:
    """Small entries, or large entries after a long time, can no longer be in transfer, so they are lost."""
    progress = Progress(3, match=2, state=ProgressState.REPLICATING)
    progress.sent(1, 2, 9, 0, 0, size_bytes)
    progress.sent(2, 9, 9, now)
    heartbeat = progress.pop_request(2)
    assert heartbeat is not None
    assert not progress.overtook(heartbeat, now)


def test_entries_slow_in_transfer_not_treated_as_lost() -> None:
    """The time permitted for the entries includes all bytes sent before them."""
    progress = Progress(1, state=ProgressState.REPLICATING)
    progress.sent(1, 0, 1, 0, 0, 1_000_000)
    progress.sent(2, 1, 2, 0, 0, 1_000_000)
    first, second = progress.in_flight.values()
    assert first.transfer_ms > 30_000
    assert second.transfer_ms > 60_000


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=["broken-connection", "undetected-loss"])
def test_lost_large_append_repeated_within_second(features: Features) -> None:
    """The size does not extend the time after a broken connection, nor in a protocol that does not detect a loss."""
    bench = Bench(1, voters=2, features=features, options=replace(lan(), check_invariants=False)).lead()
    for each in bench.appends(TWO):
        bench.matched(TWO, each)
    stored = bench.about.last.index
    bench.propose(bytes(FULL))
    assert [len(each.entries) for each in bench.appends(TWO)] == [1]
    lost_ms = bench.now
    if features is GARLIC_FARM:
        bench.step(PeerExtensions(TWO, Extensions()), after_ms=200)
    repeated = False
    while not repeated and bench.now < lost_ms + 10_000:
        bench.step(DeadlineReached(), after_ms=10)
        for each in bench.appends(TWO):
            bench.refused(TWO, each, stored + 1) if each.previous.index > stored else bench.matched(TWO, each)
            repeated |= any(again.entries for again in (each, *bench.appends(TWO)))
    assert bench.now - lost_ms <= 1_000


def test_append_after_idle_time_small_if_heartbeats_queue() -> None:
    """Heartbeats queue after an append, so the follower would campaign during a full append."""
    bench = Bench(1, voters=2, features=ZMQ_RAFT, options=replace(lan(), check_invariants=False)).lead()
    for each in bench.appends(TWO):
        bench.matched(TWO, each)
    heartbeats: list[AppendEntries] = []
    while len(heartbeats) < 3:
        bench.step(DeadlineReached(), after_ms=50)
        heartbeats += bench.appends(TWO)
    bench.matched(TWO, heartbeats[-1])
    bench.propose(*(bytes(10_000) for _ in range(20)))
    (append,) = bench.appends(TWO)
    assert sum(len(entry.data) for entry in append.entries) <= 2 * 10_000


def test_leader_keeps_role_during_large_command() -> None:
    """The follower replies to heartbeats while it receives the command."""
    bench = Bench(1, voters=2, options=replace(lan(), check_invariants=False)).lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    resolved = []
    stored = bench.about.last.index
    bench.propose(bytes(8_000_000), proposal_id=7)
    until_ms = bench.now + 8_000_000 * 1000 // SLOWEST_LINK_BYTES_PER_S // 2
    while bench.now < until_ms and bench.is_(Role.LEADER):
        effects = bench.step(DeadlineReached(), after_ms=100)
        resolved += [effect for effect in effects if isinstance(effect, ProposalResolved)]
        for each in bench.appends(TWO):
            bench.matched(TWO, each, min(stored, each.previous.index + len(each.entries)))
    assert bench.is_(Role.LEADER)
    assert [each for each in resolved if each.outcome is not Outcome.COMMITTED] == []
