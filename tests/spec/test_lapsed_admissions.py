"""Identities that were admitted and never came: their places are free again, their Raft ids are not."""

from dataclasses import replace

import pytest

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
PHANTOM = b"phantom."


class Story:
    """A farm of two founders whose leader writes a clock entry each period."""

    def __init__(self) -> None:
        self.farm = AuthoredFarm(BASE_MS, founders=(A, B))
        self.farm.state = replace(self.farm.state, level=SUPPORTED_LEVEL)
        self.index = 0

    def apply(self, record: Admission | Clock | Report, by: bytes | None = None) -> tuple[object, ...]:
        """The next entry, of its own author or of `by`."""
        self.index += 1
        if by is None:
            return self.farm.apply(self.index, 1, record)
        if isinstance(record, Admission):
            record = replace(record, server_id=next_raft_id(self.admitted, record.node_id))
        return self.farm.apply(self.index, 1, ProvenRecord(record, Author(by, self.index)))

    def pass_time(self, duration_ms: int) -> list[AdmissionLapsed]:
        """What lapses meanwhile."""
        told: list[AdmissionLapsed] = []
        for _ in range(duration_ms // PERIOD_MS):
            time_ms = self.farm.state.log_time_ms + PERIOD_MS
            self.report(time_ms)
            told += [each for each in self.apply(Clock(time_ms, 1)) if isinstance(each, AdmissionLapsed)]
        return told

    def report(self, time_ms: int) -> None:
        """The founders' clocks have reached this, which lets log time follow."""
        for server_id in (1, 2):
            self.apply(report(server_id, time_ms))

    @property
    def admitted(self) -> dict[int, Admitted]:
        """The table."""
        return dict(self.farm.state.admitted)


def report(server_id: int, date_ms: int = BASE_MS) -> Report:
    return Report("farm", date_ms, server_id, RouterStatus(attached=False))


def test_an_identity_that_never_comes_alive_loses_its_place_after_the_bound_of_log_time() -> None:
    story = Story()
    story.apply(Admission(PHANTOM, "phantom"))
    assert story.pass_time(LAPSE_MS) == []
    assert raft_id_of(story.admitted, PHANTOM) == 3
    assert story.pass_time(PERIOD_MS) == [AdmissionLapsed(3, PHANTOM, "phantom")]
    assert raft_id_of(story.admitted, PHANTOM) is None
    assert is_lapsed(story.admitted, 3)


@pytest.mark.parametrize("sign", ["a report", "an entry of its own", "a place in the configuration"])
def test_an_identity_that_came_alive_keeps_its_place_for_good(sign: str) -> None:
    story = Story()
    story.apply(Admission(PHANTOM, "newcomer"))
    match sign:
        case "a report":
            story.apply(report(3))
        case "an entry of its own":
            story.apply(Admission(B, "b"), by=PHANTOM)
        case _:
            story.index += 1
            story.farm.configure(story.index, 1, (), {1, 2, 3})
    assert story.pass_time(3 * LAPSE_MS) == []
    assert story.admitted[3] == Admitted(PHANTOM, "newcomer")


def test_a_lapsed_raft_id_is_never_given_out_again_and_its_identity_gets_a_new_one() -> None:
    story = Story()
    story.apply(Admission(PHANTOM, "phantom"))
    story.pass_time(LAPSE_MS + PERIOD_MS)
    assert story.admitted[3].standing is Standing.LAPSED, "the highest id is still known to be used up"
    assert next_raft_id(story.admitted, b"another.") == 4
    assert story.apply(Admission(PHANTOM, "phantom")) == (ServerAdmitted(4, PHANTOM, "phantom"),)
    story.apply(report(4))
    story.pass_time(2 * PERIOD_MS)
    assert 3 not in story.admitted
    assert is_lapsed(story.admitted, 3)
    assert not is_lapsed(story.admitted, 4)
    assert not is_lapsed(story.admitted, 5), "it was not given out yet"


def test_what_a_lapsed_identity_signs_has_no_effect() -> None:
    story = Story()
    story.apply(Admission(PHANTOM, "phantom"))
    story.pass_time(LAPSE_MS + PERIOD_MS)
    for record in (report(3), Admission(b"another.", "another")):
        [told] = story.apply(record, by=PHANTOM)
        assert isinstance(told, EntryWithoutEffect)


def test_two_thousand_phantoms_at_the_pace_of_admissions_use_up_no_places() -> None:
    story = Story()
    most = 0
    for number in range(2_000):
        story.apply(Admission(number.to_bytes(8, "big"), f"phantom-{number}"))
        story.pass_time(PERIOD_MS)
        most = max(most, len(story.admitted))
    assert most <= 2 + LAPSE_MS // PERIOD_MS + 2 < ADMITTED_MAX
    assert next_raft_id(story.admitted, b"the next") == 2 + 2_000 + 1


def test_time_without_a_leader_is_no_silence_of_the_newcomer() -> None:
    story = Story()
    story.apply(Admission(PHANTOM, "newcomer"))
    gap = story.farm.state.log_time_ms + 10 * LAPSE_MS
    story.report(gap)
    assert not [each for each in story.apply(Clock(gap, 1)) if isinstance(each, AdmissionLapsed)]
    assert raft_id_of(story.admitted, PHANTOM) == 3


def test_a_founder_never_lapses() -> None:
    story = Story()
    assert story.pass_time(3 * LAPSE_MS) == []
    assert set(story.admitted) == {1, 2}
