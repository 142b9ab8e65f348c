"""Section 5.4 of the Raft paper (safety), by its sentences.

Some steps of the proof concern whole histories of a group; the judge of `tests/simulation/consensus` checks them after
every simulated step. This file tests the part of a single server.
"""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consensus.core.effects import Apply, Role, Send
from consensus.core.model import LogId
from consensus.core.options import lan
from tests.spec.raft_bench import TWO, Bench

AT = LogId
ONE_BY_ONE = replace(lan(), max_entries_per_append=1, in_flight=1)


# -- 5.4.1 election restriction ----------------------------------------------------------------------------------------


@st.composite
def committed_log_and_log_without_its_last_entry(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw a committed log, and a log that shares a prefix with it and may continue with entries of older terms."""
    committed = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6).map(sorted))
    shared = committed[: draw(st.integers(0, len(committed) - 1))]
    older = range(shared[-1] if shared else 1, committed[-1])
    more = draw(st.lists(st.sampled_from(older), max_size=8).map(sorted)) if older else []
    return committed, shared + more


@given(committed_log_and_log_without_its_last_entry(), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_candidate_without_committed_entry_loses(logs: tuple[list[int], list[int]], beyond: list[int]) -> None:
    """Quote: "… prevent a candidate from winning an election unless its log contains all committed entries".

    Three of five servers have the entry, and perhaps later entries of its term; none of them votes for this candidate.
    """
    committed, candidate = logs
    last = AT(len(candidate), candidate[-1] if candidate else 0)
    for more in beyond:
        assert not Bench(*committed, *[committed[-1]] * more, voters=5).request_vote(9, last).granted


# -- 5.4.2 committing entries from previous terms ----------------------------------------------------------------------


def test_entries_of_current_term_commit_earlier_ones() -> None:
    """Quote: "Raft never commits log entries from previous terms by counting replicas".

    Quote: "once an entry from the current term has been committed in this way, then all prior entries are committed
    indirectly".
    """
    bench = Bench(1, 1, options=ONE_BY_ONE).lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=1)
    for _ in range(3):
        bench.matched(TWO, bench.appends(TWO)[0])
    assert bench.about.commit_index == 3
    applied = [entry.term for apply in bench.all(Apply) for entry in apply.entries]
    assert applied == [1, 1, 2]


# -- 5.4.3 safety argument ---------------------------------------------------------------------------------------------


# -- 5.5 and 5.6 -------------------------------------------------------------------------------------------------------


def test_late_clock_does_not_break_safety() -> None:
    """Safety must not depend on timing.

    A leader suspended during an election receives the new term with the replies, at any reading of its clock.
    """
    bench = Bench(1).lead()
    (append,) = bench.appends(TWO)
    bench.now += 10_000_000
    bench.refused(TWO, append, hint=1, term=5)
    assert (bench.about.role, bench.about.term, bench.about.commit_index) == (Role.FOLLOWER, 5, 0)
    assert bench.all(Send) == []
