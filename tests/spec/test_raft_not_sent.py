"""The report of a held-back append changes only the leader's record of the peer's progress: it is not a reply.

A link may hold back an append that would leave a gap in the log of a joining peer. If the leader counted this report as
a reply, it would remain the leader of unreachable peers, and serve reads without confirmation by a majority.
"""

from consensus.core.effects import ReadReady, Role, Send
from consensus.core.events import AppendNotSent, ReadRequested
from consensus.core.messages import AppendEntries
from tests.spec.raft_bench import TWO, Bench


def sent(bench: Bench) -> list[AppendEntries]:
    """Return all appends to server 2 in the latest step."""
    return bench.appends(TWO)


def test_leader_whose_appends_are_never_sent_resigns() -> None:
    bench = Bench(1, 1, voters=2).lead()
    began_ms, under_way = bench.now, sent(bench)
    while bench.is_(Role.LEADER):
        for append in under_way:
            bench.step(AppendNotSent(TWO, append.correlation, 1))
        bench.expire()
        under_way = sent(bench)
        assert bench.now <= began_ms + 1_000, "still the leader after the minimum election timeout"
    assert bench.now == began_ms + 1_000


def test_unsent_append_does_not_confirm_read() -> None:
    bench = Bench(1, voters=2).lead()
    (first,) = sent(bench)
    bench.matched(TWO, first)
    bench.step(ReadRequested(1))
    (append,) = sent(bench)
    bench.step(AppendNotSent(TWO, append.correlation, 1))
    assert bench.all(ReadReady) == []
    # The next heartbeat belongs to the same round, and its reply confirms the read.
    bench.expire()
    (heartbeat,) = sent(bench)
    bench.matched(TWO, heartbeat)
    assert [ready.read_id for ready in bench.all(ReadReady)] == [1]


def test_unsent_append_makes_leader_go_back_to_missing_entries() -> None:
    bench = Bench(1, 1, 1, voters=2).lead()
    (first,) = sent(bench)
    assert first.previous.index == 3
    bench.step(AppendNotSent(TWO, first.correlation, 1))
    (again,) = sent(bench)
    assert (again.previous.index, len(again.entries)) == (0, 4)
    # If the link holds the append back again, or the append is no longer in flight, the leader does not resend it
    # immediately. Otherwise it would send in an endless loop.
    bench.step(AppendNotSent(TWO, again.correlation, 1))
    assert bench.all(Send) == []
    bench.step(AppendNotSent(TWO, again.correlation, 1))
    assert bench.all(Send) == []


def test_unsent_append_below_match_ends_acknowledgment() -> None:
    """A joining peer reports the loss of its log only in its join reply. Then its link withholds even heartbeats."""
    bench = Bench(1, 1, voters=2).lead()
    (first,) = sent(bench)
    bench.matched(TWO, first)
    bench.expire()
    (heartbeat,) = sent(bench)
    bench.step(AppendNotSent(TWO, heartbeat.correlation, 1))
    (again,) = sent(bench)
    assert (again.previous.index, len(again.entries)) == (0, 3)
    assert bench.about.followers[0].match == 0
