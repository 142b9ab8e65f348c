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
from tests.spec.raft_bench import TWO, Bench, entries_of

AT = LogId
ONE_BY_ONE = replace(lan(), max_entries_per_append=1, in_flight=1)


# -- 5.4.1 election restriction ----------------------------------------------------------------------------------------


def test_log_with_later_last_term_is_more_up_to_date() -> None:
    """Quote: "… last entries with different terms, then the log with the later term is more up-to-date"."""
    assert Bench(1, 1, 1, 1, term=4).request_vote(5, AT(2, 3)).granted, "shorter, and later"
    assert not Bench(1, 3, term=4).request_vote(5, AT(9, 2)).granted, "longer, and older"


def test_longer_log_with_same_last_term_is_more_up_to_date() -> None:
    """Quote: "If the logs end with the same term, then whichever log is longer is more up-to-date"."""
    assert not Bench(1, 2, 2).request_vote(5, AT(2, 2)).granted
    assert Bench(1, 2, 2).request_vote(5, AT(3, 2)).granted, "equal length: at least as up-to-date"
    assert Bench(1, 2, 2).request_vote(5, AT(4, 2)).granted


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


def test_new_leader_continues_replication_of_its_log() -> None:
    """Quote: "… before committing an entry, future leaders will attempt to finish replicating the entry"."""
    bench = Bench(1, 1, 2).lead()
    (append,) = bench.appends(TWO)
    bench.refused(TWO, append, hint=2)
    (again,) = bench.appends(TWO)
    assert again.entries[:2] == entries_of(1, 1, 2)[1:]


def test_older_entry_on_majority_not_committed() -> None:
    """Quote: "… cannot immediately conclude that an entry from a previous term is committed …"."""
    bench = Bench(1, 1, options=ONE_BY_ONE).lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=1)
    for _ in range(2):
        bench.matched(TWO, bench.appends(TWO)[0])
    assert (bench.about.followers[0].match, bench.about.commit_index) == (2, 0)


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


def test_voter_of_later_term_refuses_earlier_leader() -> None:
    """Quote: "It would have rejected the AppendEntries request (its current term would have been higher than T)"."""
    bench = Bench(1)
    assert bench.request_vote(7, AT(1, 1)).granted
    assert not bench.append(6, AT(1, 1), entries_of(1, 6)[1:]).success
    assert bench.terms == [1]


def test_follower_removes_only_conflicting_entries() -> None:
    """Quote: "Leaders never remove entries, and followers only remove entries if they conflict with the leader"."""
    bench = Bench(1, 1, 2, 2)
    bench.append(3, AT(1, 1), entries_of(1, 1)[1:])
    assert bench.terms == [1, 1, 2, 2]
    bench.append(3, AT(2, 1), entries_of(1, 1, 3)[2:])
    assert bench.terms == [1, 1, 3]


def test_entries_applied_in_log_order_without_gaps() -> None:
    """Quote: "Raft requires servers to apply entries in log index order"."""
    bench = Bench(1, 1, 2, term=2)
    applied: list[int] = []
    for commit in (2, 1, 3):
        bench.append(2, AT(3, 2), commit=commit)
        for apply in bench.all(Apply):
            applied += range(apply.first, apply.first + len(apply.entries))
    assert applied == [1, 2, 3]


# -- 5.5 and 5.6 -------------------------------------------------------------------------------------------------------


def test_repeated_request_after_restart_gets_same_reply() -> None:
    """Quote: "… after completing an RPC but before responding, then it will receive the same RPC again …"."""
    before = Bench(1)
    first = before.append(2, AT(1, 1), entries_of(1, 2)[1:])
    after = Bench(1, 2, term=2)
    again = after.append(2, AT(1, 1), entries_of(1, 2)[1:])
    assert (again.success, again.next_index) == (first.success, first.next_index)
    assert after.terms == [1, 2]


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
