"""Section 5.4 of the Raft paper (safety), sentence by sentence.

The steps of the proof that are about whole histories are checked after every simulated step, by the judge of
`tests/simulation/consensus`; here is what a single server contributes to them.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consensus.core.effects import Apply, Role, Send
from consensus.core.messages import AppendEntries
from consensus.core.model import LogId
from consensus.core.options import lan
from tests.spec.raft_bench import TWO, Bench, entries_of

AT = LogId
ONE_BY_ONE = replace(lan(), max_entries_per_append=1, in_flight=1)


# -- 5.4.1 election restriction ----------------------------------------------------------------------------------------


def test_of_two_logs_that_end_in_different_terms_the_one_with_the_later_term_is_more_up_to_date() -> None:
    """If the logs have last entries with different terms, then the log with the later term is more up-to-date."""
    assert Bench(1, 1, 1, 1, term=4).ask(5, AT(2, 3)).granted, "shorter, and later"
    assert not Bench(1, 3, term=4).ask(5, AT(9, 2)).granted, "longer, and older"


def test_of_two_logs_that_end_in_the_same_term_the_longer_one_is_more_up_to_date() -> None:
    """If the logs end with the same term, then whichever log is longer is more up-to-date."""
    assert not Bench(1, 2, 2).ask(5, AT(2, 2)).granted
    assert Bench(1, 2, 2).ask(5, AT(3, 2)).granted, "as long: at least as up-to-date"
    assert Bench(1, 2, 2).ask(5, AT(4, 2)).granted


@st.composite
def a_committed_log_and_one_that_lacks_its_last_entry(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The second shares a part with the first and goes on with entries of older terms, or ends there."""
    committed = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6).map(sorted))
    shared = committed[: draw(st.integers(0, len(committed) - 1))]
    older = range(shared[-1] if shared else 1, committed[-1])
    more = draw(st.lists(st.sampled_from(older), max_size=8).map(sorted)) if older else []
    return committed, shared + more


@given(a_committed_log_and_one_that_lacks_its_last_entry(), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_no_candidate_wins_that_lacks_what_a_majority_holds(
    logs: tuple[list[int], list[int]], beyond: list[int]
) -> None:
    """Raft prevents a candidate from winning an election unless its log contains all committed entries.

    Three of five hold the entry, and perhaps more of its term behind it: none of them votes for who lacks it.
    """
    committed, candidate = logs
    last = AT(len(candidate), candidate[-1] if candidate else 0)
    for more in beyond:
        assert not Bench(*committed, *[committed[-1]] * more, voters=5).ask(9, last).granted


# -- 5.4.2 committing entries from previous terms ----------------------------------------------------------------------


def test_a_new_leader_finishes_the_replication_of_what_it_found() -> None:
    """If a leader crashes before committing an entry, future leaders will attempt to finish replicating the entry."""
    bench = Bench(1, 1, 2)
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.refused(TWO, append, hint=2)
    (again,) = bench.appends(TWO)
    assert again.entries[:2] == entries_of(1, 1, 2)[1:]


def test_a_leader_cannot_conclude_that_an_older_entry_is_committed_when_a_majority_stores_it() -> None:
    """... an entry from a previous term is committed once it is stored on a majority of servers (it is not)."""
    bench = Bench(1, 1, options=ONE_BY_ONE)
    bench.lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=1)
    for _ in range(2):
        bench.matched(TWO, bench.appends(TWO)[0])
    assert (bench.about.followers[0].match, bench.about.commit_index) == (2, 0)


def test_only_entries_of_the_current_term_are_committed_by_counting_and_those_before_with_them() -> None:
    """Raft never commits log entries from previous terms by counting replicas.

    Only log entries from the leader's current term are committed by counting replicas; once an entry from the current
    term has been committed in this way, then all prior entries are committed indirectly because of the Log Matching
    Property.
    """
    bench = Bench(1, 1, options=ONE_BY_ONE)
    bench.lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=1)
    for _ in range(3):
        bench.matched(TWO, bench.appends(TWO)[0])
    assert bench.about.commit_index == 3
    applied = [entry.term for apply in bench.all(Apply) for entry in apply.entries]
    assert applied == [1, 1, 2]


# -- 5.4.3 safety argument ---------------------------------------------------------------------------------------------


def test_a_server_that_has_voted_in_a_later_term_takes_nothing_from_the_leader_before() -> None:
    """It would have rejected the AppendEntries request (its current term would have been higher than T)."""
    bench = Bench(1)
    assert bench.ask(7, AT(1, 1)).granted
    assert not bench.append(6, AT(1, 1), entries_of(1, 6)[1:]).success
    assert bench.terms == [1]


def test_a_follower_removes_an_entry_only_if_it_conflicts_with_the_leader() -> None:
    """Leaders never remove entries, and followers only remove entries if they conflict with the leader."""
    bench = Bench(1, 1, 2, 2)
    bench.append(3, AT(1, 1), entries_of(1, 1)[1:])
    assert bench.terms == [1, 1, 2, 2]
    bench.append(3, AT(2, 1), entries_of(1, 1, 3)[2:])
    assert bench.terms == [1, 1, 3]


def test_a_leader_never_overwrites_its_own_log() -> None:
    """Leader Append-Only: a leader never overwrites or deletes entries in its log; it only appends new entries."""
    bench = Bench(1, 1)
    bench.lead()
    bench.receive(
        TWO, AppendEntries(term=2, leader=TWO, previous=AT(0, 0), entries=entries_of(2), commit=0, correlation=5)
    )
    assert bench.is_(Role.LEADER)
    assert bench.terms == [1, 1, 2]


def test_entries_are_applied_in_the_order_of_the_log_and_none_is_left_out() -> None:
    """Raft requires servers to apply entries in log index order."""
    bench = Bench(1, 1, 2, term=2)
    applied: list[int] = []
    for commit in (2, 1, 3):
        bench.append(2, AT(3, 2), commit=commit)
        for apply in bench.all(Apply):
            applied += range(apply.first, apply.first + len(apply.entries))
    assert applied == [1, 2, 3]


# -- 5.5 and 5.6 -------------------------------------------------------------------------------------------------------


def test_a_request_whose_answer_was_lost_is_answered_again_after_a_restart() -> None:
    """If a server crashes after completing an RPC but before responding, then it will receive the same RPC again."""
    before = Bench(1)
    first = before.append(2, AT(1, 1), entries_of(1, 2)[1:])
    after = Bench(1, 2, term=2)
    again = after.append(2, AT(1, 1), entries_of(1, 2)[1:])
    assert (again.success, again.next_index) == (first.success, first.next_index)
    assert after.terms == [1, 2]


def test_a_slow_clock_makes_no_server_do_anything_wrong_only_later() -> None:
    """Safety must not depend on timing.

    A leader that slept through an election learns of it by the answers that it gets, whatever its clock says.
    """
    bench = Bench(1)
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.now += 10_000_000
    bench.refused(TWO, append, hint=1, term=5)
    assert (bench.about.role, bench.about.term, bench.about.commit_index) == (Role.FOLLOWER, 5, 0)
    assert bench.all(Send) == []
