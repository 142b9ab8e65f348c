"""Evictions and approvals by operators, and the feature level that limits the log's entries."""

import pytest
from msgspec.structs import replace

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
from tests.effort import each_case

BASE_MS = 1_700_000_000_000
A, B, C, D = (bytes([number]) * 8 for number in (1, 2, 3, 4))
BOX = b"a box"


def new_farm() -> AuthoredFarm:
    return AuthoredFarm(BASE_MS, founders=(A, B))


def farm() -> AuthoredFarm:
    """Return a farm created by A and B with recorded names, at the supported feature level."""
    made = new_farm()
    made.state = replace(made.state, level=SUPPORTED_LEVEL)
    made.apply(1, 1, Admission(A, "a"))
    made.apply(2, 1, Admission(B, "b"))
    return made


def test_approved_identity_gets_name_and_new_raft_id() -> None:
    story = farm()
    assert story.apply(3, 1, Approval(C, "b", B)) == (ServerRetired(2, B, "b", C), ServerAdmitted(3, C, "b"))
    assert story.state.admitted[2] == Admitted(B, "b", standing=Standing.RETIRED)
    assert story.state.admitted[3] == Admitted(C, "b", unseen_since_ms=BASE_MS)


def test_retired_identity_never_admitted_again() -> None:
    story = farm()
    story.apply(3, 1, Approval(C, "b", B))
    for index, name in enumerate(("b", "fresh"), start=4):
        [refused] = story.apply(index, 1, Admission(B, name))
        assert isinstance(refused, AdmissionRefused)
        assert "has given its name b to another identity, and is never admitted again" in refused.reason
    [refused] = story.apply(9, 1, Approval(B, "b", C))
    assert isinstance(refused, AdmissionRefused)


def test_second_approval_of_same_name_refused() -> None:
    story = farm()
    story.apply(3, 1, Approval(C, "b", B))
    before = story.state.admitted
    [refused] = story.apply(4, 1, Approval(D, "b", B))
    assert isinstance(refused, AdmissionRefused)
    assert "another operator has approved it" in refused.reason
    assert story.state.admitted == before


def test_approval_of_unused_name_refused() -> None:
    [refused] = farm().apply(3, 1, Approval(C, "new", B))
    assert isinstance(refused, AdmissionRefused)
    assert "no member has the name new" in refused.reason


def test_first_public_key_is_kept() -> None:
    story = farm()
    assert story.apply(3, 1, Admission(B, "b", b"key")) == ()
    assert story.state.admitted[2] == Admitted(B, "b", b"key")
    story.apply(4, 1, Admission(B, "renamed"))
    assert story.state.admitted[2] == Admitted(B, "renamed", b"key")


def test_evicted_identity_stays_out_and_its_key_box_is_dropped() -> None:
    story = farm()
    assert story.apply(3, 1, Eviction(B, 1, ((A, BOX), (B, BOX)))) == (ServerEvicted(2, B, 1),)
    assert story.state.admitted[2].standing is Standing.EVICTED
    assert (story.state.rekeying.era, dict(story.state.rekeying.boxes)) == (1, {A.hex(): BOX})
    [refused] = story.apply(4, 1, Admission(B, "b"))
    assert isinstance(refused, AdmissionRefused)
    assert "was evicted" in refused.reason
    assert story.apply(5, 1, Admission(C, "b")) == (ServerAdmitted(3, C, "b"),), "the eviction has freed the name"


def test_unadmitted_identity_can_be_evicted() -> None:
    story = farm()
    assert story.apply(3, 1, Eviction(C, 1, ())) == (ServerEvicted(3, C, 1),)
    [refused] = story.apply(4, 1, Admission(C, "c"))
    assert isinstance(refused, AdmissionRefused)


def test_second_eviction_of_same_era_refused() -> None:
    story = farm()
    story.apply(3, 1, Eviction(B, 1, ((A, BOX),)))
    before = story.state
    [refused] = story.apply(4, 1, Eviction(A, 1, ()))
    assert isinstance(refused, EvictionRefused)
    assert "another operator replaced them at the same time" in refused.reason
    assert replace(story.state, applied_index=3, numbers=before.numbers) == before


def test_key_replacement_begins_era_and_keeps_members() -> None:
    story = farm()
    before = story.state.admitted
    assert story.apply(3, 1, KeyReplacement(1, ((A, BOX), (B, BOX)))) == (NewEra(1, 2),)
    assert story.state.admitted == before
    assert (story.state.rekeying.era, dict(story.state.rekeying.boxes)) == (1, {A.hex(): BOX, B.hex(): BOX})


@pytest.mark.parametrize("first", [Eviction(B, 1, ((A, BOX),)), KeyReplacement(1, ((A, BOX),))])
def test_second_key_replacement_of_same_era_refused(first: Eviction | KeyReplacement) -> None:
    story = farm()
    story.apply(3, 1, first)
    before = story.state.rekeying
    [refused] = story.apply(4, 1, KeyReplacement(1, ((A, b"another"),)))
    assert isinstance(refused, KeysNotReplaced)
    assert "another operator replaced them at the same time" in refused.reason
    assert story.state.rekeying == before


def test_full_identity_table_refuses_eviction() -> None:
    full = {number: Admitted(number.to_bytes(8, "big")) for number in range(ADMITTED_MAX)}
    table, _, refused = evict(full, farm().state.rekeying, Eviction(b"\xff" * 8, 1, ()))
    assert isinstance(refused, EvictionRefused)
    assert table == full


def test_level_never_falls() -> None:
    story = new_farm()
    assert story.state.level == FIRST_LEVEL
    assert story.apply(1, 1, Level(2, "x")) == (LevelRaised(2),)
    assert story.apply(2, 1, Level(1, "x")) == story.apply(3, 1, Level(2, "x")) == ()
    assert story.apply(4, 1, Level(65535, "x")) == (LevelRefused(65535, 2),)
    assert story.state.level == 2


LEAF = hash_of("leaf")


@each_case(
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
def test_entry_before_its_level_ignored(record: Record) -> None:
    story = new_farm()
    before = story.state
    assert story.apply(1, 1, record) == (EntryTooEarly(type(record).__name__, 2),)
    assert replace(story.state, applied_index=0, applied_term=0) == before
    story.apply(2, 1, Level(2, "x"))
    assert not any(isinstance(each, EntryTooEarly) for each in story.apply(3, 1, record))


@each_case(
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
def test_leader_raises_level_when_all_voters_support_it(
    current: int, voters: tuple[int | None, ...], proposed: int | None
) -> None:
    level = next_level(current, voters)
    assert (None if level is None else level.number) == proposed
    assert level is None or level.version


def test_identity_entries_need_level_foreign_objects_do_not() -> None:
    assert kind_of(Eviction(A, 1, ())).level == kind_of(Approval(A, "a", B)).level == 2
    assert kind_of(Admission(A, "a")).level == kind_of(Foreign("an application's")).level == FIRST_LEVEL


@each_case(("voters", "needed"), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 3), (8, 5)])
def test_sponsors_needed_are_more_than_one_member(voters: int, needed: int) -> None:
    assert sponsors_needed(voters) == needed


@each_case(
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
def test_eviction_without_majority_needs_force(
    voters: set[int], well: set[int], evicted: int | None, expect: int, *, lost: bool
) -> None:
    reason = majority_lost(voters, well, evicted, expect)
    assert (reason is not None) is lost
    assert reason is None or "less than a majority: the farm could not commit anything" in reason


def test_refused_eviction_names_deciding_voters() -> None:
    of_five = majority_lost({1, 2, 3, 4, 5}, {1, 2, 5}, 5, expect=3)
    assert of_five is not None
    assert of_five.startswith("after the eviction only 2 of 4 voters could be reached")
    of_three = majority_lost({1, 2, 3}, {1, 3}, 3, expect=3)
    assert of_three is not None
    assert of_three.startswith(
        "after the eviction only 1 of 3 voters (a farm of 3 does not get fewer voters by an eviction)"
    )


def test_spare_vote_removed_before_eviction() -> None:
    assert vote_goes_first({1, 2, 3, 4}, 4, expect=3)
    assert not vote_goes_first({1, 2, 3}, 3, expect=3), "the farm would have fewer voters than founders"
    assert not vote_goes_first({1, 2, 3, 4}, 5, expect=3), "a learner does not vote"


def test_evicted_node_stays_out_of_recovered_farm() -> None:
    story = farm()
    story.apply(3, 1, Admission(C, "c"))
    story.apply(4, 1, Eviction(B, 1, ((A, BOX),)))
    after = recovered(story.state, A).admitted
    assert after == {1: Admitted(A, "a"), 2: Admitted(B, "b", standing=Standing.EVICTED)}
