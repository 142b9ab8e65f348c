"""Two servers exchange one position per round: the follower cuts its log to the common prefix, in few rounds."""

from hypothesis import given
from hypothesis import strategies as st

from consensus.core.log import Log, describe_entries
from consensus.core.model import LogId
from tests.spec.raft_bench import entries_of, group

COUNTS = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=8)


def two_logs(shared: list[int], runs: list[tuple[int, bool]]) -> tuple[list[int], list[int]]:
    """Return the terms of two logs that begin with `shared`. As log matching requires, they share no later term."""
    one, other = list(shared), list(shared)
    term = shared[-1] if shared else 0
    for count, to_one in runs:
        term += 1
        (one if to_one else other).extend([term] * count)
    return one, other


@given(st.lists(st.integers(1, 3), max_size=10).map(sorted), COUNTS)
def test_diverging_follower_is_cut_to_common_prefix(shared: list[int], runs: list[tuple[int, bool]]) -> None:
    leader_terms, follower_terms = two_logs(shared, runs)
    leader = Log(describe_entries(entries_of(*leader_terms)), group(3))
    follower = Log(describe_entries(entries_of(*follower_terms)), group(3))
    rounds = 0
    while not leader.matches(follower.last):
        before = follower.last
        reply = leader.divergence(before)
        follower.truncate_from(follower.divergence(reply).index + 1)
        assert follower.last_index < before.index, "a round without a cut would repeat forever"
        assert follower.last_index >= len(shared)
        rounds += 1
    assert follower.last_index == len(shared)
    assert rounds <= len({*follower_terms[len(shared) :]}) + 1


@given(st.lists(st.integers(1, 9), max_size=20).map(sorted), st.integers(0, 25), st.integers(0, 10))
def test_divergence_is_last_entry_up_to_index_and_term(terms: list[int], index: int, term: int) -> None:
    log = Log(describe_entries(entries_of(*terms)), group(3))
    reply = log.divergence(LogId(index, term))
    possible = [place for place, own in enumerate([0, *terms]) if place <= index and own <= term]
    assert reply == LogId(max(possible), [0, *terms][max(possible)])
