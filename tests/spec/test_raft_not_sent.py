"""An append that the transport keeps back says nothing of the peer: it moves the peer's progress and nothing else.

A link that speaks to a joining peer may hold back an append that would leave a gap in its log. If the leader took that
for an answer, it would stay leader of peers that it cannot reach, and serve reads that no majority has confirmed.
"""

from consensus.core.effects import ReadReady, Role, Send
from consensus.core.events import AppendNotSent, ReadRequested
from consensus.core.messages import AppendEntries
from tests.spec.raft_bench import TWO, Bench


def sent(bench: Bench) -> list[AppendEntries]:
    """All appends to server 2 in the latest step."""
    return bench.appends(TWO)


def test_a_leader_whose_only_peer_is_sent_nothing_steps_down_by_check_quorum() -> None:
    bench = Bench(1, 1, voters=2)
    bench.lead()
    began_ms, under_way = bench.now, sent(bench)
    while bench.is_(Role.LEADER):
        for append in under_way:
            bench.step(AppendNotSent(TWO, append.correlation, 1))
        bench.expire()
        under_way = sent(bench)
        assert bench.now <= began_ms + 1_000, "the leader stays beyond the minimum election timeout"
    assert bench.now == began_ms + 1_000


def test_an_append_that_was_not_sent_confirms_no_read() -> None:
    bench = Bench(1, voters=2)
    bench.lead()
    (first,) = sent(bench)
    bench.matched(TWO, first)
    bench.step(ReadRequested(1))
    (asked,) = sent(bench)
    bench.step(AppendNotSent(TWO, asked.correlation, 1))
    assert bench.all(ReadReady) == []
    # The next heartbeat is of the same round, and a peer that answers it confirms the read.
    bench.expire()
    (heartbeat,) = sent(bench)
    bench.matched(TWO, heartbeat)
    assert [ready.read_id for ready in bench.all(ReadReady)] == [1]


def test_an_append_that_was_not_sent_sends_the_leader_back_to_what_the_peer_lacks() -> None:
    bench = Bench(1, 1, 1, voters=2)
    bench.lead()
    (first,) = sent(bench)
    assert first.previous.index == 3
    bench.step(AppendNotSent(TWO, first.correlation, 1))
    (again,) = sent(bench)
    assert (again.previous.index, len(again.entries)) == (0, 4)
    # And what is kept back again, or is not under way, is not repeated at once: that would go on for ever.
    bench.step(AppendNotSent(TWO, again.correlation, 1))
    assert bench.all(Send) == []
    bench.step(AppendNotSent(TWO, again.correlation, 1))
    assert bench.all(Send) == []
