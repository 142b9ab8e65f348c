"""Operators decide which nodes are out: evictions, approvals, and the level that says what the log may hold."""

from dataclasses import replace

import pytest

from bridge.core.farm.state_machine import EntryTooEarly, LevelRaised, LevelRefused
from bridge.core.log.feature_level import FIRST_LEVEL, SUPPORTED_LEVEL, next_level
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import (
    Admission,
    Approval,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Foreign,
    KeyReplacement,
    Level,
    Record,
    Removal,
)
from bridge.core.membership.admission import (
    ADMITTED_MAX,
    AdmissionRefused,
    Admitted,
    ServerAdmitted,
    ServerRetired,
    Standing,
)
from bridge.core.membership.eviction import (
    EvictionRefused,
    KeysNotReplaced,
    NewEra,
    ServerEvicted,
    evict,
    majority_lost,
    sponsors_needed,
    vote_goes_first,
)
from bridge.core.state.recovery import recovered
from tests.authored import AuthoredFarm

BASE_MS = 1_700_000_000_000
A, B, C, D = (bytes([number]) * 8 for number in (1, 2, 3, 4))
BOX = b"a box"


def founded() -> AuthoredFarm:
    """Founded by A and B, and nothing has happened yet."""
    return AuthoredFarm(BASE_MS, founders=(A, B))


def farm() -> AuthoredFarm:
    """Founded by A and B, whose names are recorded; its level is what this version supports."""
    made = founded()
    made.state = replace(made.state, level=SUPPORTED_LEVEL)
    made.apply(1, 1, Admission(A, "a"))
    made.apply(2, 1, Admission(B, "b"))
    return made


def test_an_approved_identity_takes_the_name_and_a_raft_id_of_its_own() -> None:
    story = farm()
    assert story.apply(3, 1, Approval(C, "b", B)) == (ServerRetired(2, B, "b", C), ServerAdmitted(3, C, "b"))
    assert story.state.admitted[2] == Admitted(B, "b", standing=Standing.RETIRED)
    assert story.state.admitted[3] == Admitted(C, "b", unseen_since_ms=BASE_MS)


def test_a_retired_identity_never_comes_back_under_any_name() -> None:
    story = farm()
    story.apply(3, 1, Approval(C, "b", B))
    for index, name in enumerate(("b", "fresh"), start=4):
        [refused] = story.apply(index, 1, Admission(B, name))
        assert isinstance(refused, AdmissionRefused)
        assert "has given its name b to another identity, and is never admitted again" in refused.reason
    [refused] = story.apply(9, 1, Approval(B, "b", C))
    assert isinstance(refused, AdmissionRefused)


def test_of_two_decisions_about_one_name_the_second_changes_nothing() -> None:
    story = farm()
    story.apply(3, 1, Approval(C, "b", B))
    before = story.state.admitted
    [refused] = story.apply(4, 1, Approval(D, "b", B))
    assert isinstance(refused, AdmissionRefused)
    assert "another operator has approved it" in refused.reason
    assert story.state.admitted == before


def test_a_name_that_no_node_has_needs_no_approval() -> None:
    [refused] = farm().apply(3, 1, Approval(C, "new", B))
    assert isinstance(refused, AdmissionRefused)
    assert "no member has the name new" in refused.reason


def test_a_public_key_is_recorded_with_the_first_admission_that_has_it_and_stays() -> None:
    story = farm()
    assert story.apply(3, 1, Admission(B, "b", b"key")) == ()
    assert story.state.admitted[2] == Admitted(B, "b", b"key")
    story.apply(4, 1, Admission(B, "renamed"))
    assert story.state.admitted[2] == Admitted(B, "renamed", b"key")


def test_an_evicted_identity_is_out_for_ever_and_its_own_box_is_not_kept() -> None:
    story = farm()
    assert story.apply(3, 1, Eviction(B, 1, ((A, BOX), (B, BOX)))) == (ServerEvicted(2, B, 1),)
    assert story.state.admitted[2].standing is Standing.EVICTED
    assert (story.state.rekeying.era, dict(story.state.rekeying.boxes)) == (1, {A.hex(): BOX})
    [refused] = story.apply(4, 1, Admission(B, "b"))
    assert isinstance(refused, AdmissionRefused)
    assert "was evicted" in refused.reason
    assert story.apply(5, 1, Admission(C, "b")) == (ServerAdmitted(3, C, "b"),), "a person has freed the name"


def test_an_identity_that_was_never_admitted_can_be_evicted_beforehand() -> None:
    story = farm()
    assert story.apply(3, 1, Eviction(C, 1, ())) == (ServerEvicted(3, C, 1),)
    [refused] = story.apply(4, 1, Admission(C, "c"))
    assert isinstance(refused, AdmissionRefused)


def test_of_two_evictions_that_begin_one_era_the_second_changes_nothing() -> None:
    story = farm()
    story.apply(3, 1, Eviction(B, 1, ((A, BOX),)))
    before = story.state
    [refused] = story.apply(4, 1, Eviction(A, 1, ()))
    assert isinstance(refused, EvictionRefused)
    assert "another operator replaced them at the same time" in refused.reason
    assert replace(story.state, applied_index=3, numbers=before.numbers) == before


def test_a_replacement_of_the_keys_begins_an_era_and_takes_no_members_rights() -> None:
    story = farm()
    before = story.state.admitted
    assert story.apply(3, 1, KeyReplacement(1, ((A, BOX), (B, BOX)))) == (NewEra(1, 2),)
    assert story.state.admitted == before
    assert (story.state.rekeying.era, dict(story.state.rekeying.boxes)) == (1, {A.hex(): BOX, B.hex(): BOX})


@pytest.mark.parametrize("first", [Eviction(B, 1, ((A, BOX),)), KeyReplacement(1, ((A, BOX),))])
def test_of_two_entries_that_begin_one_era_the_second_changes_no_keys(first: Eviction | KeyReplacement) -> None:
    story = farm()
    story.apply(3, 1, first)
    before = story.state.rekeying
    [refused] = story.apply(4, 1, KeyReplacement(1, ((A, b"another"),)))
    assert isinstance(refused, KeysNotReplaced)
    assert "another operator replaced them at the same time" in refused.reason
    assert story.state.rekeying == before


def test_the_table_of_identities_is_bounded_for_evictions_too() -> None:
    full = {number: Admitted(number.to_bytes(8, "big")) for number in range(ADMITTED_MAX)}
    table, _, refused = evict(full, farm().state.rekeying, Eviction(b"\xff" * 8, 1, ()))
    assert isinstance(refused, EvictionRefused)
    assert table == full


def test_the_level_rises_and_never_falls() -> None:
    story = founded()
    assert story.state.level == FIRST_LEVEL
    assert story.apply(1, 1, Level(2, "x")) == (LevelRaised(2),)
    assert story.apply(2, 1, Level(1, "x")) == story.apply(3, 1, Level(2, "x")) == ()
    assert story.apply(4, 1, Level(65535, "x")) == (LevelRefused(65535, 2),)
    assert story.state.level == 2


LEAF = hash_of("leaf")


@pytest.mark.parametrize(
    "record",
    [
        Eviction(B, 1, ((A, BOX),)),
        Approval(C, "b", B),
        Exclusion(LEAF, excluded=True),
        CostFactor(LEAF, 2.0),
        Factors(0, "f", {LEAF: 1.5}),
        Removal(2, removed=True),
        Force("master"),
    ],
)
def test_an_entry_that_comes_before_its_level_is_applied_by_no_server(record: Record) -> None:
    story = founded()
    before = story.state
    assert story.apply(1, 1, record) == (EntryTooEarly(type(record).__name__, 2),)
    assert replace(story.state, applied_index=0, applied_term=0) == before
    story.apply(2, 1, Level(2, "x"))
    assert not any(isinstance(each, EntryTooEarly) for each in story.apply(3, 1, record))


@pytest.mark.parametrize(
    ("current", "voters", "proposed"),
    [
        (1, (2, 2, 2), 2),
        (1, (2, 1, 2), None),
        (1, (2, None, 2), None),
        (1, (), None),
        (2, (2, 2), None),
        (1, (99, 99), 2),
        (SUPPORTED_LEVEL - 1, (99, 99), SUPPORTED_LEVEL),
        (SUPPORTED_LEVEL, (99, 99), None),
        (3, (2, 2), None),
    ],
)
def test_the_leader_raises_the_level_once_every_voter_supports_it(
    current: int, voters: tuple[int | None, ...], proposed: int | None
) -> None:
    level = next_level(current, voters)
    assert (None if level is None else level.number) == proposed
    assert level is None or level.version


def test_entries_about_identities_wait_for_the_level_and_foreign_objects_do_not() -> None:
    assert kind_of(Eviction(A, 1, ())).level == kind_of(Approval(A, "a", B)).level == 2
    assert kind_of(Admission(A, "a")).level == kind_of(Foreign("an application's")).level == FIRST_LEVEL


@pytest.mark.parametrize(("voters", "needed"), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 3), (8, 5)])
def test_single_member_never_vouches_for_a_key(voters: int, needed: int) -> None:
    assert sponsors_needed(voters) == needed


@pytest.mark.parametrize(
    ("voters", "well", "evicted", "expect", "lost"),
    [
        ({1, 2, 3}, {1, 2, 3}, 3, 3, False),
        ({1, 2, 3}, {1, 3}, 3, 3, True),
        ({1, 2, 3}, {1, 2}, 3, 3, False),
        ({1, 2, 3, 4}, {1, 2, 4}, 4, 3, False),
        ({1, 2, 3, 4}, {1, 2, 4}, 4, 4, True),
        ({1, 2, 3, 4, 5}, {1, 2, 5}, 5, 3, True),
        ({1, 2}, {1, 2}, 2, 2, True),
        ({1, 2, 3}, {1}, 9, 3, False),
        ({1, 2, 3}, {1}, None, 3, False),
    ],
)
def test_an_eviction_that_would_leave_no_majority_has_to_be_forced(
    voters: set[int], well: set[int], evicted: int | None, expect: int, *, lost: bool
) -> None:
    reason = majority_lost(voters, well, evicted, expect)
    assert (reason is not None) is lost
    assert reason is None or "less than a majority: the farm could not commit anything" in reason


def test_a_refused_eviction_says_which_voters_would_decide() -> None:
    of_five = majority_lost({1, 2, 3, 4, 5}, {1, 2, 5}, 5, expect=3)
    assert of_five is not None
    assert of_five.startswith("after the eviction only 2 of 4 voters could be reached")
    of_three = majority_lost({1, 2, 3}, {1, 3}, 3, expect=3)
    assert of_three is not None
    assert of_three.startswith(
        "after the eviction only 1 of 3 voters (a farm of 3 counts the empty seat of the evicted server)"
    )


def test_a_voter_loses_its_vote_before_its_eviction_where_the_farm_has_one_to_spare() -> None:
    assert vote_goes_first({1, 2, 3, 4}, 4, expect=3)
    assert not vote_goes_first({1, 2, 3}, 3, expect=3), "the farm would have fewer voters than founded it"
    assert not vote_goes_first({1, 2, 3, 4}, 5, expect=3), "a learner has none"


def test_an_expelled_node_stays_out_of_a_recovered_farm() -> None:
    story = farm()
    story.apply(3, 1, Admission(C, "c"))
    story.apply(4, 1, Eviction(B, 1, ((A, BOX),)))
    after = recovered(story.state, A).admitted
    assert after == {1: Admitted(A, "a"), 2: Admitted(B, "b", standing=Standing.EVICTED)}
