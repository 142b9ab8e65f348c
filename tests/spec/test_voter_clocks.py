"""Bound of log time: no single machine can move it. An operator can move it back."""

import pytest
from msgspec.structs import replace

from bridge.core.farm.log_time_correction import LogTimeCorrected, SecondForgotten
from bridge.core.farm.state_machine import Change, ClockBounded, ClockOff
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.records import Clock, Correction, CostFactor, Factors, Publication, Record, Removal
from bridge.core.log.voter_clocks import ALLOWANCE_MS, ALLOWANCE_PERIOD_MAX_MS, READING_CLOCK_ENTRIES, allowance_ms
from bridge.core.log.weights import CommandRefused, PipelineFactor
from bridge.core.state.farm_state import FarmTuning
from bridge.core.state.reqids import AHEAD_S, REQIDS_OF_AUTHOR_MAX, Reqids, ReqidStatus, Update
from tests.authored import AuthoredFarm
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, report

ALLOWED_MS = allowance_ms(PERIOD_MS)
JUMP_MS = 1_000_000
BASE_S = BASE_MS // 1000


class Voters:
    """A farm of founders that all vote, and its log. Times are milliseconds after the base."""

    def __init__(self, voters: int = 3) -> None:
        self.farm = AuthoredFarm(BASE_MS, TUNING, tuple(each.to_bytes(8) for each in range(1, voters + 1)))
        self.farm.state = replace(self.farm.state, level=2)
        self.index, self.term = 0, 1

    def append(self, *records: Record) -> list[Change]:
        """Apply records, each at the next index of the term."""
        changes: list[Change] = []
        for record in records:
            self.index += 1
            changes += self.farm.apply(self.index, self.term, record)
        return changes

    def reports(self, clocks: dict[int, int]) -> list[Change]:
        return self.append(*(report(each, BASE_MS + ms) for each, ms in clocks.items()))

    def clock(self, ms: int, leader: int = 1) -> list[Change]:
        return self.append(Clock(BASE_MS + ms, leader, PERIOD_MS))

    def configure(self, *majorities: tuple[int, ...]) -> None:
        self.index += 1
        self.farm.configure(self.index, self.term, majorities)

    @property
    def log_time(self) -> int:
        """Return log time in milliseconds after the base."""
        return self.farm.state.log_time_ms - BASE_MS


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_allowance_below_tolerance_of_report_dates() -> None:
    assert FarmTuning().clock_tolerance_ms > ALLOWANCE_PERIOD_MAX_MS + ALLOWANCE_MS
    for period_ms in (500, 2_000, 30_000, 600_000):
        assert allowance_ms(period_ms) < FarmTuning().clock_tolerance_ms


def test_log_time_follows_majority_plus_allowance() -> None:
    farm = Voters()
    farm.reports({1: JUMP_MS, 2: 60_000, 3: 59_000})
    assert farm.clock(60_000) == []
    assert farm.log_time == 60_000
    changes = farm.clock(JUMP_MS)
    assert farm.log_time == 60_000 + ALLOWED_MS
    assert changes == [ClockBounded(1, JUMP_MS - 60_000 - ALLOWED_MS)]


def test_entries_without_majority_share_one_allowance() -> None:
    farm = Voters()
    farm.reports({1: JUMP_MS})
    for step in range(1, 200):
        farm.clock(step * 5_000)
    assert farm.log_time == ALLOWED_MS


def test_readings_before_election_do_not_count() -> None:
    farm = Voters()
    farm.reports({1: JUMP_MS, 2: JUMP_MS, 3: JUMP_MS})
    farm.term = 2
    farm.clock(JUMP_MS)
    assert farm.log_time == ALLOWED_MS
    farm.reports({1: 40_000, 2: 40_000})
    farm.clock(JUMP_MS)
    assert farm.log_time == 40_000 + ALLOWED_MS


def test_latest_report_replaces_earlier_reading() -> None:
    farm = Voters()
    farm.reports({1: JUMP_MS, 2: JUMP_MS})
    farm.reports({2: 30_000})
    farm.clock(JUMP_MS)
    assert farm.log_time == 30_000 + ALLOWED_MS


def test_reading_of_unresponsive_server_expires() -> None:
    farm = Voters()
    farm.reports({2: JUMP_MS})
    for entry in range(READING_CLOCK_ENTRIES + 1):
        farm.clock(entry)
    farm.reports({1: JUMP_MS})
    farm.clock(JUMP_MS)
    assert farm.log_time == ALLOWED_MS


def test_server_without_vote_does_not_move_log_time() -> None:
    farm = Voters(5)
    farm.configure((1, 2, 3))
    farm.reports({1: 0, 3: JUMP_MS, 4: JUMP_MS, 5: JUMP_MS})
    farm.clock(JUMP_MS)
    assert farm.log_time == ALLOWED_MS
    farm.configure((3, 4, 5))
    farm.reports({4: JUMP_MS, 5: JUMP_MS})
    farm.clock(JUMP_MS)
    assert farm.log_time == JUMP_MS


def test_removed_server_counts_while_it_votes() -> None:
    """One wrong clock and one removed server of four voters do not stop Raft, so they must not stop log time."""
    farm = Voters(4)
    farm.append(Removal(4, removed=True))
    farm.reports({1: JUMP_MS, 2: JUMP_MS, 4: JUMP_MS})
    assert 4 not in farm.farm.state.servers, "its report does not count otherwise"
    farm.clock(JUMP_MS)
    assert farm.log_time == JUMP_MS
    farm.configure((1, 2, 3))
    farm.reports({4: 2 * JUMP_MS})
    assert 4 not in farm.farm.state.clocks.readings


def test_joint_configuration_needs_both_majorities() -> None:
    farm = Voters(5)
    farm.configure((1, 2, 3), (3, 4, 5))
    farm.reports({1: 0, 2: 0, 3: JUMP_MS, 4: JUMP_MS, 5: JUMP_MS})
    farm.clock(JUMP_MS)
    assert farm.log_time == ALLOWED_MS


def test_leader_clock_far_ahead_marks_no_correct_clock_wrong() -> None:
    farm = Voters()
    changes: list[Change] = []
    for true_ms in range(0, 40 * PERIOD_MS, PERIOD_MS // 3):
        changes += farm.reports({2: true_ms, 3: true_ms})
        changes += farm.clock(10**9, leader=1)
        assert farm.log_time <= true_ms + ALLOWED_MS
    assert not [each for each in changes if isinstance(each, ClockOff)]
    assert farm.farm.state.masters[MASTER].choice.server_id in {2, 3}


def test_farm_off_for_ninety_days_has_correct_time_quickly() -> None:
    farm = Voters()
    days_ms = 90 * 86_400_000
    farm.term = 2
    farm.clock(days_ms)
    farm.reports({1: days_ms, 2: days_ms + 100, 3: days_ms + 200})
    farm.clock(days_ms + 1_000)
    assert farm.log_time == days_ms + 1_000
    farm.reports({1: days_ms + PERIOD_MS, 2: days_ms + PERIOD_MS, 3: days_ms + PERIOD_MS})
    assert farm.farm.state.masters[MASTER].choice.server_id is not None


@pytest.mark.parametrize("others", [(2, 3), (2,), (3,)], ids=["both report", "one reports", "the other reports"])
@pytest.mark.parametrize("jump_ms", [JUMP_MS, -JUMP_MS, 90 * 86_400_000], ids=["ahead", "behind", "ninety days"])
def test_jump_of_leader_clock_does_not_stop_publishing(jump_ms: int, others: tuple[int, ...]) -> None:
    """Older readings of the other clocks do not permit the time of the jumped clock."""
    farm = Voters()
    farm.reports({1: 0, 2: 0, 3: 0})
    second = 0
    for period in range(1, 31):
        true_ms = period * PERIOD_MS
        jumped = 5 <= period < 20
        own_ms = true_ms + (jump_ms if jumped else 0)
        farm.reports(dict.fromkeys(others, true_ms) | {1: own_ms})
        farm.clock(own_ms)
        assert farm.log_time <= true_ms + ALLOWED_MS
        assert len(others) == 1 or not jumped or farm.log_time >= 5 * PERIOD_MS - PERIOD_MS
        publisher = farm.farm.state.masters[MASTER].choice.server_id
        second = max(second + 1, BASE_S + max(0, farm.log_time) // 1000)
        if publisher is not None:
            farm.append(Publication(MASTER, publisher, second, f"{period}"))
    assert abs(farm.log_time - 30 * PERIOD_MS) <= ALLOWED_MS
    publication = farm.farm.state.masters[MASTER].publication
    assert publication is not None
    assert publication.content_hash == "30"


# -- corrections of log time -------------------------------------------------------------------------------------------


def far_ahead(ms: int = JUMP_MS) -> Voters:
    """Return a farm whose log time is ahead, after a majority of its clocks was corrected."""
    farm = Voters()
    farm.reports({1: 0, 2: 0, 3: 0})
    farm.reports({1: ms, 2: ms, 3: ms})
    farm.clock(ms)
    farm.reports({1: ms, 2: ms, 3: ms})
    assert farm.log_time == ms
    return farm


def test_correction_moves_log_time_back_and_keeps_ages() -> None:
    farm = far_ahead()
    farm.append(CostFactor("a" * 52, 2.0), Factors(farm.index, "f", {"b" * 52: 1.05}))
    ages = {each: farm.farm.state.log_time_ms - server.reported_ms for each, server in farm.farm.state.servers.items()}
    farm.reports({1: 60_000, 2: 60_000})
    ages |= {each: farm.farm.state.log_time_ms - farm.farm.state.servers[each].reported_ms for each in (1, 2)}
    changes = farm.append(Correction(BASE_MS + 60_000))
    assert changes[0] == LogTimeCorrected(BASE_MS + JUMP_MS, BASE_MS + 60_000)
    state = farm.farm.state
    assert farm.log_time == 60_000
    assert {each: state.log_time_ms - server.reported_ms for each, server in state.servers.items()} == ages
    assert state.weights.factors["b" * 52] == PipelineFactor(1_050, state.log_time_ms)
    farm.reports({1: 90_000, 2: 90_000, 3: 90_000})
    farm.clock(90_000)
    assert farm.log_time == 90_000
    assert not any(server.clock_off for server in farm.farm.state.servers.values())


def test_correction_refused_if_needless_or_out_of_range() -> None:
    farm = far_ahead()
    [refused] = Voters().append(Correction(BASE_MS))
    assert isinstance(refused, CommandRefused)
    assert "no majority of the voters has reported" in refused.reason
    [needless] = farm.append(Correction(BASE_MS))
    assert isinstance(needless, CommandRefused)
    assert "log time is 0.0 s ahead of the last reported clocks of a majority" in needless.reason
    farm.reports({1: 60_000, 2: 60_000, 3: 60_000})
    for ms in (0, 59_999, 60_000 + ALLOWED_MS + 1, JUMP_MS):
        [elsewhere] = farm.append(Correction(BASE_MS + ms))
        assert isinstance(elsewhere, CommandRefused)
        assert f"is not between {BASE_MS + 60_000} and {BASE_MS + 60_000 + ALLOWED_MS}" in elsewhere.reason
    assert farm.log_time == JUMP_MS


def test_single_slow_clock_cannot_move_log_time_back() -> None:
    farm = far_ahead()
    farm.reports({3: 0})
    [refused] = farm.append(Correction(BASE_MS))
    assert isinstance(refused, CommandRefused)
    assert farm.log_time == JUMP_MS


def test_correction_drops_readings_far_ahead() -> None:
    farm = far_ahead()
    farm.reports({1: 60_000, 2: 60_000})
    farm.append(Correction(BASE_MS + 60_000))
    farm.term = 2
    farm.clock(JUMP_MS)
    assert farm.log_time == 60_000 + ALLOWED_MS


def test_correction_drops_published_second_in_future() -> None:
    farm = far_ahead()
    publisher = farm.farm.state.masters[MASTER].choice.server_id or 0
    ahead = Publication(MASTER, publisher, BASE_S + JUMP_MS // 1000, "before")
    farm.append(ahead)
    farm.reports({1: 60_000, 2: 60_000, 3: 60_000})
    changes = farm.append(Correction(BASE_MS + 60_000))
    [dropped] = [each for each in changes if isinstance(each, SecondForgotten)]
    assert dropped.publication == ahead
    assert dropped.refused_until_s > BASE_S + 60
    farm.reports({1: 61_000, 2: 61_000, 3: 61_000})
    publisher = farm.farm.state.masters[MASTER].choice.server_id or 0
    farm.append(Publication(MASTER, publisher, BASE_S + 61, "after"))
    publication = farm.farm.state.masters[MASTER].publication
    assert publication is not None
    assert publication.published_s == BASE_S + 61


def test_sessions_keep_their_age_over_correction() -> None:
    farm = far_ahead(40 * 86_400_000)
    farm.append(replace(report(1, BASE_MS + 60_000), request=f"client-{farm.index}-1"))
    farm.reports({2: 60_000})
    farm.append(Correction(BASE_MS + 60_000))
    assert len(farm.farm.sessions) == 1
    for ms in range(60_000, 60_000 + 3_700_000, 1_800_000):
        farm.reports({1: ms, 2: ms, 3: ms})
        farm.clock(ms)
    later = 60_000 + 3_700_000
    farm.reports({1: later, 2: later, 3: later})
    farm.clock(later)
    farm.append(replace(report(2, BASE_MS + later), request=f"other-{farm.index}-1"))
    assert len(farm.farm.sessions) == 1


def update_at(ms: int, counter: int = 0) -> Update:
    return Update((BASE_S + ms // 1000).to_bytes(4) + counter.to_bytes(8), proven=True)


@pytest.mark.parametrize(
    ("days", "level", "status"),
    [
        (40, BOUNDS_LEVEL, ReqidStatus.NEW),
        (0.3, BOUNDS_LEVEL, ReqidStatus.EXPIRED),
        (40, BOUNDS_LEVEL - 1, ReqidStatus.EXPIRED),
    ],
)
def test_correction_lets_new_reqids_count_again(days: float, level: int, status: ReqidStatus) -> None:
    """After a small correction, clients may still repeat updates with reqids of the wrong time."""
    ahead_ms = round(days * 86_400) * 1000
    farm = far_ahead(ahead_ms)
    farm.farm.state = replace(farm.farm.state, level=level)
    reqids = farm.farm.reqids = Reqids(limit=2)
    farm.farm.reqids.admit(update_at(0, 7), 1, BASE_MS)
    for counter in (1, 2, 3):
        assert reqids.admit(update_at(ahead_ms, counter), counter, BASE_MS + ahead_ms) is ReqidStatus.NEW
    farm.reports({1: 60_000, 2: 60_000, 3: 60_000})
    assert isinstance(farm.append(Correction(BASE_MS + 60_000))[0], LogTimeCorrected)
    later_ms = 120_000 + AHEAD_S * 1000
    for repeated in (update_at(0, 7), update_at(60_000 + AHEAD_S * 1000)):
        assert reqids.judge(repeated, BASE_MS + later_ms) is ReqidStatus.EXPIRED, "it may have been applied and dropped"
    assert Reqids.load(reqids.dump(), limit=2).judge(update_at(later_ms), BASE_MS + later_ms) is status


def test_correction_frees_the_share_of_an_author() -> None:
    farm = far_ahead(40 * 86_400_000)
    farm.farm.state = replace(farm.farm.state, level=BOUNDS_LEVEL)
    reqids, author = farm.farm.reqids, b"a-member"
    for counter in range(REQIDS_OF_AUTHOR_MAX):
        ahead = replace(update_at(40 * 86_400_000, counter), author=author)
        assert reqids.admit(ahead, counter, BASE_MS + 40 * 86_400_000) is ReqidStatus.NEW
    farm.reports({1: 60_000, 2: 60_000, 3: 60_000})
    farm.append(Correction(BASE_MS + 60_000))
    # Only a table with a reqid is loaded from its dump.
    reqids.admit(replace(update_at(60_000), proven=False), farm.index, BASE_MS + 60_000)
    later = replace(update_at(61_000), author=author)
    assert Reqids.load(reqids.dump()).judge(later, BASE_MS + 61_000) is ReqidStatus.NEW
