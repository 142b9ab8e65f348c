"""Results of votes and majorities, compared with the definition: a majority of each set agrees."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from consensus.core.model import Configuration, Server, ServerId, possible_configuration
from consensus.core.quorum import VoteResult, tally, value_of_majorities

ids = st.integers(1, 8)
majorities = st.lists(st.frozensets(ids, min_size=1, max_size=6), min_size=1, max_size=2)
Sets = list[frozenset[ServerId]]


def servers(*numbers: int) -> tuple[Server, ...]:
    return tuple(Server(number, f"tcp://{number}") for number in numbers)


def holds(sets: Sets, agreeing: set[ServerId]) -> bool:
    """Return True if each set has a majority among the agreeing servers, by enumeration."""
    return all(
        any(set(chosen) <= agreeing for chosen in combinations(sorted(voters), len(voters) // 2 + 1)) for voters in sets
    )


@given(majorities, st.dictionaries(ids, st.integers(0, 6)))
def test_index_held_when_majority_of_each_set_has_it(sets: Sets, values: dict[ServerId, int]) -> None:
    all_ids = set(range(1, 9))
    reached = [
        value for value in range(7) if holds(sets, {voter for voter in all_ids if values.get(voter, 0) >= value})
    ]
    assert value_of_majorities(values, sets) == max(reached)


@given(majorities, st.dictionaries(ids, st.booleans()))
def test_vote_won_by_all_majorities_lost_without_one(sets: Sets, votes: dict[ServerId, bool]) -> None:
    granted = {voter for voter, vote in votes.items() if vote}
    not_denied: set[ServerId] = {voter for voter in range(1, 9) if votes.get(voter) is not False}
    expected = VoteResult.OPEN
    if holds(sets, granted):
        expected = VoteResult.WON
    elif not holds(sets, not_denied):
        expected = VoteResult.LOST
    assert tally(votes, sets) is expected


def test_vote_needs_both_joint_majorities() -> None:
    """With the sets (1,2) and (3,4), the refusal of server 3 loses the vote. A majority of one set leaves it open."""
    one, two, three, four = range(1, 5)
    joint = Configuration(servers(3, 4), old_voters=servers(1, 2)).majorities
    assert tally({one: True, two: True, three: False}, joint) is VoteResult.LOST
    assert tally({one: True, two: True, three: True}, joint) is VoteResult.OPEN
    assert tally({one: True, two: True, three: True, four: True}, joint) is VoteResult.WON


def test_disjoint_majorities_cannot_both_win() -> None:
    """Quote: "there is no time when C_old and C_new can both make unilateral decisions".

    For each split of the servers of C_old,new into two groups, at most one group wins.
    """
    joint = Configuration(servers(3, 4, 5), old_voters=servers(1, 2)).majorities
    for size in range(6):
        for camp in combinations(range(1, 6), size):
            votes: dict[ServerId, bool] = {number: number in camp for number in range(1, 6)}
            against = {voter: not vote for voter, vote in votes.items()}
            assert (tally(votes, joint), tally(against, joint)) != (VoteResult.WON, VoteResult.WON)


def test_members_of_both_lists_safe_if_one_server_is_replaced() -> None:
    """A snapshot of ØMQ Raft may come with the union of both lists instead of C_old,new."""
    for size in range(1, 6):
        for removed, added in ((0, 1), (1, 0), (1, 1)):
            old = range(1, size + 1)
            new = range(1 + removed, size + 1 + added)
            assert not new or not _may_both_win({*old}, {*new}), (old, new)
    assert _may_both_win({1, 2, 3}, {3, 4, 5})


def _may_both_win(old: set[ServerId], new: set[ServerId]) -> bool:
    """Return True if a majority of the union is disjoint from a majority of the old, or of the new members."""
    union = old | new
    return any(
        holds([frozenset(union)], union - against) and holds([frozenset(members)], against)
        for members in (old, new)
        for count in range(len(members) + 1)
        for against in map(set, combinations(sorted(members), count))
    )


def test_configuration_lists_voters_and_learners() -> None:
    """A voter that becomes a learner keeps its vote until C_new."""
    joint = Configuration(servers(1, 4), old_voters=servers(1, 2, 3), learners=servers(3, 5))
    assert joint.is_joint
    assert [sorted(voters) for voters in joint.majorities] == [[1, 4], [1, 2, 3]]
    assert sorted(joint.voter_ids) == [1, 2, 3, 4]
    assert sorted(joint.learner_ids) == [5]
    assert sorted(joint.member_ids) == [1, 2, 3, 4, 5]
    assert [server.server_id for server in joint.servers] == [1, 2, 3, 4, 5]
    assert possible_configuration(joint)


def test_configuration_without_valid_voters_invalid() -> None:
    assert not possible_configuration(Configuration(()))
    assert not possible_configuration(Configuration((), old_voters=servers(1)))
    assert not possible_configuration(Configuration(servers(1, 1)))
    assert not possible_configuration(Configuration(servers(1), old_voters=servers(2, 2)))
    assert not possible_configuration(Configuration(servers(1), learners=servers(1)))
    assert not possible_configuration(Configuration(servers(0)))
