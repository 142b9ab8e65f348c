"""Admitted identities that never become active: their places are released, their Raft ids are not reused."""

import pytest
from msgspec.structs import replace

from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Admission, Author, Clock, ProvenRecord, Report
from bridge.core.membership.admission import (
    ADMITTED_MAX,
    LAPSE_MS,
    AdmissionLapsed,
    Admitted,
    ServerAdmitted,
    Standing,
    is_lapsed,
    next_raft_id,
    raft_id_of,
)
from bridge.core.membership.authors import EntryWithoutEffect
from tests.authored import AuthoredFarm

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
A, B = (bytes([number]) * 8 for number in (1, 2))
ABSENT = b"absent.."


class Story:
    """A farm of two founders; its leader writes a clock entry each period."""

    def __init__(self) -> None:
        self.farm = AuthoredFarm(BASE_MS, founders=(A, B))
        self.farm.state = replace(self.farm.state, level=SUPPORTED_LEVEL)
        self.index = 0

    def apply(self, record: Admission | Clock | Report, by: bytes | None = None) -> tuple[object, ...]:
        """Apply the next entry, signed by `by`, or without `by` by a member that may write it."""
        self.index += 1
        if by is None:
            return self.farm.apply(self.index, 1, record)
        if isinstance(record, Admission):
            record = replace(record, server_id=next_raft_id(self.admitted, record.node_id))
        return self.farm.apply(self.index, 1, ProvenRecord(record, Author(by, self.index)))

    def pass_time(self, duration_ms: int) -> list[AdmissionLapsed]:
        lapsed: list[AdmissionLapsed] = []
        for _ in range(duration_ms // PERIOD_MS):
            time_ms = self.farm.state.log_time_ms + PERIOD_MS
            self.report(time_ms)
            lapsed += [each for each in self.apply(Clock(time_ms, 1)) if isinstance(each, AdmissionLapsed)]
        return lapsed

    def report(self, time_ms: int) -> None:
        """Report that the founders' clocks have reached this time, so that log time may follow."""
        for server_id in (1, 2):
            self.apply(report(server_id, time_ms))

    @property
    def admitted(self) -> dict[int, Admitted]:
        """Return the table of admitted identities."""
        return dict(self.farm.state.admitted)


def report(server_id: int, date_ms: int = BASE_MS) -> Report:
    return Report("farm", date_ms, server_id, RouterStatus(attached=False))


def test_absent_identity_lapses_after_lapse_time() -> None:
    story = Story()
    story.apply(Admission(ABSENT, "absent"))
    assert story.pass_time(LAPSE_MS) == []
    assert raft_id_of(story.admitted, ABSENT) == 3
    assert story.pass_time(PERIOD_MS) == [AdmissionLapsed(3, ABSENT, "absent")]
    assert raft_id_of(story.admitted, ABSENT) is None
    assert is_lapsed(story.admitted, 3)


@pytest.mark.parametrize("activity", ["report", "own entry", "configuration"])
def test_identity_never_lapses_after_first_activity(activity: str) -> None:
    story = Story()
    story.apply(Admission(ABSENT, "newcomer"))
    match activity:
        case "report":
            story.apply(report(3))
        case "own entry":
            story.apply(Admission(B, "b"), by=ABSENT)
        case _:
            story.index += 1
            story.farm.configure(story.index, 1, (), {1, 2, 3})
    assert story.pass_time(3 * LAPSE_MS) == []
    assert story.admitted[3] == Admitted(ABSENT, "newcomer")


def test_lapsed_raft_id_never_assigned_again() -> None:
    story = Story()
    story.apply(Admission(ABSENT, "absent"))
    story.pass_time(LAPSE_MS + PERIOD_MS)
    assert story.admitted[3].standing is Standing.LAPSED, "the highest id stays assigned"
    assert next_raft_id(story.admitted, b"another.") == 4
    assert story.apply(Admission(ABSENT, "absent")) == (ServerAdmitted(4, ABSENT, "absent"),)
    story.apply(report(4))
    story.pass_time(2 * PERIOD_MS)
    assert 3 not in story.admitted
    assert is_lapsed(story.admitted, 3)
    assert not is_lapsed(story.admitted, 4)
    assert not is_lapsed(story.admitted, 5), "it was not assigned yet"


def test_entries_of_lapsed_identity_ignored() -> None:
    story = Story()
    story.apply(Admission(ABSENT, "absent"))
    story.pass_time(LAPSE_MS + PERIOD_MS)
    for record in (report(3), Admission(b"another.", "another")):
        [lapsed] = story.apply(record, by=ABSENT)
        assert isinstance(lapsed, EntryWithoutEffect)


def test_absent_identities_fill_few_places() -> None:
    story = Story()
    most = 0
    for number in range(300):
        story.apply(Admission(number.to_bytes(8, "big"), f"absent-{number}"))
        story.pass_time(PERIOD_MS)
        most = max(most, len(story.admitted))
    assert most <= 2 + LAPSE_MS // PERIOD_MS + 2 < ADMITTED_MAX
    assert next_raft_id(story.admitted, b"the next") == 2 + 300 + 1


def test_identity_does_not_lapse_in_time_without_leader() -> None:
    story = Story()
    story.apply(Admission(ABSENT, "newcomer"))
    gap = story.farm.state.log_time_ms + 10 * LAPSE_MS
    story.report(gap)
    assert not [each for each in story.apply(Clock(gap, 1)) if isinstance(each, AdmissionLapsed)]
    assert raft_id_of(story.admitted, ABSENT) == 3


def test_founder_never_lapses() -> None:
    story = Story()
    assert story.pass_time(3 * LAPSE_MS) == []
    assert set(story.admitted) == {1, 2}


def test_snapshot_ends_admissions_lapsed_since_own_state() -> None:
    # Given a leader, and a follower that last applied an admission
    leader, follower = Story(), Story()
    for story in (leader, follower):
        story.apply(Admission(ABSENT, "absent"))
    # When the admission lapses, its row is deleted, and the follower gets a snapshot
    leader.pass_time(LAPSE_MS)
    leader.apply(Admission(b"another.", "another"))
    leader.pass_time(PERIOD_MS)
    assert 3 not in leader.admitted
    follower.farm.restore(leader.farm.state, PERIOD_MS, leader.farm.sessions.dump())
    # Then both have the same state
    assert follower.farm.state == leader.farm.state
