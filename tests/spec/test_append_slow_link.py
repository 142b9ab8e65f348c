"""Appends and chunks over a slow link: smaller requests after an overdue answer, and late answers still count."""

from dataclasses import replace

import pytest

from consensus.core.effects import Outcome, ProposalResolved, ReadSnapshot, Role, Send
from consensus.core.events import DeadlineReached, SnapshotRead, SnapshotTaken
from consensus.core.leader import SLOWEST_LINK_BYTES_PER_S
from consensus.core.messages import InstallSnapshot, SnapshotReply
from consensus.core.model import SnapshotDescription
from consensus.core.options import lan
from consensus.core.replication.progress import LEAST_REQUEST_BYTES, MAX_HALVINGS, Progress
from tests.spec.raft_bench import TWO, Bench, group

RETRY_MS = lan().retry_ms
FULL = 256 * 1024


@pytest.mark.parametrize(("overdue", "part"), [(0, FULL), (1, FULL // 2), (4, FULL // 16), (99, LEAST_REQUEST_BYTES)])
def test_overdue_answers_halve_what_is_sent(overdue: int, part: int) -> None:
    progress = Progress(1)
    for _ in range(overdue):
        progress.was_overdue()
    assert progress.part_of(FULL, LEAST_REQUEST_BYTES) == part
    assert progress.part_of(16) == max(1, 16 >> min(overdue, MAX_HALVINGS))


def test_answers_that_come_soon_double_what_is_sent() -> None:
    progress = Progress(1)
    progress.was_overdue()
    progress.took(RETRY_MS, RETRY_MS)
    assert progress.part_of(FULL) == FULL // 2
    progress.took(RETRY_MS // 4, RETRY_MS)
    assert progress.part_of(FULL) == FULL


def test_late_answer_to_a_chunk_moves_the_transfer_on() -> None:
    """Each chunk takes longer than the retry time; without its late answer the transfer would begin again for ever."""
    bench = Bench(1, voters=2)
    bench.lead()
    last = bench.about.last
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    bench.step(SnapshotTaken(SnapshotDescription(last, group(2), 1_000_000, 0), last.index + 1))
    bench.propose(b"x")
    (refused,) = bench.appends(TWO)
    bench.refused(TWO, refused, 1)
    (read,) = bench.all(ReadSnapshot)
    bench.step(SnapshotRead(read.request_id, read.last, 0, bytes(read.limit_bytes), done=False))
    (chunk,) = (send.message for send in bench.all(Send) if isinstance(send.message, InstallSnapshot))
    assert isinstance(chunk, InstallSnapshot)
    bench.step(DeadlineReached(), after_ms=RETRY_MS)
    late = SnapshotReply(bench.about.term, True, len(chunk.data), False, chunk.correlation)  # noqa: FBT003
    bench.receive(TWO, late)
    reads = list(bench.all(ReadSnapshot))
    for _ in range(10):
        if reads:
            break
        bench.step(DeadlineReached(), after_ms=lan().heartbeat_ms)
        reads = list(bench.all(ReadSnapshot))
    assert reads[0].offset == len(chunk.data)


def test_leader_stays_for_the_time_of_a_large_command() -> None:
    """Its follower answers heartbeats, and receives the command meanwhile."""
    bench = Bench(1, voters=2, options=replace(lan(), check_invariants=False))
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    told = []
    stored = bench.about.last.index
    bench.propose(bytes(8_000_000), proposal_id=7)
    until_ms = bench.now + 8_000_000 * 1000 // SLOWEST_LINK_BYTES_PER_S // 2
    while bench.now < until_ms and bench.is_(Role.LEADER):
        effects = bench.step(DeadlineReached(), after_ms=100)
        told += [effect for effect in effects if isinstance(effect, ProposalResolved)]
        for each in bench.appends(TWO):
            bench.matched(TWO, each, min(stored, each.previous.index + len(each.entries)))
    assert bench.is_(Role.LEADER)
    assert [answer for answer in told if answer.outcome is not Outcome.COMMITTED] == []
