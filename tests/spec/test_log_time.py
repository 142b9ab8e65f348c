"""One server's estimate of log time: the clock entries that it writes as the leader, and its alarms about clocks."""

import pytest

from bridge.core.farm.clock_alarms import founding_clock_text, log_time_text, other_clocks_text, own_clock_text
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.state.farm_state import FarmState
from bridge.core.state.log_time import LogTime

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
NAMES = {1: "oslo", 2: "kyoto", 3: "lima", 4: "quito", 5: "accra"}


def voters(*server_ids: int) -> VoterClocks:
    return VoterClocks(BASE_MS, (server_ids,))


THREE = voters(1, 2, 3)


def log_time(base_ms: int = BASE_MS) -> LogTime:
    return LogTime(base_ms, now=0, period_ms=PERIOD_MS)


def estimate_with(offsets_ms: dict[int, int], now: int = 10_000) -> LogTime:
    """Return an estimate with new reports of other clocks; `offsets_ms` are their differences from the true time."""
    estimate = log_time()
    for server_id, offset_ms in offsets_ms.items():
        estimate.report_applied(server_id, BASE_MS + now + offset_ms, now)
    return estimate


def test_log_time_advances_with_monotonic_clock() -> None:
    estimate = log_time()
    assert estimate.paced(12_345) == BASE_MS + 12_345
    estimate.clock_applied(BASE_MS + 30_000, now=31_000)
    assert estimate.paced(32_000) == BASE_MS + 31_000


def test_leader_writes_time_reached_by_majority() -> None:
    estimate = estimate_with({2: 300, 3: -400})
    assert estimate.next_entry(12_000, BASE_MS + 12_000, 1, THREE, None) == BASE_MS + 12_000
    assert estimate.next_entry(12_000, BASE_MS + 12_900, 1, THREE, None) == BASE_MS + 12_300


def test_leader_with_wrong_clock_follows_majority() -> None:
    for wrong_ms in (1_000_000, -1_000_000):
        estimate = estimate_with({2: 0, 3: 50})
        written_ms = estimate.next_entry(12_000, BASE_MS + 12_000 + wrong_ms, 1, THREE, None)
        assert abs(written_ms - BASE_MS - 12_000) <= 50


def test_leader_time_limited_by_log() -> None:
    assert estimate_with({2: 0, 3: 0}).next_entry(12_000, BASE_MS, 1, THREE, BASE_MS + 7_000) == BASE_MS + 7_000


def test_leader_without_recent_reports_keeps_own_pace() -> None:
    assert log_time().next_entry(12_000, BASE_MS + 900_000, 1, THREE, None) == BASE_MS + 12_000
    late = 10_000 + 2 * PERIOD_MS + 1
    assert estimate_with({2: 500_000, 3: 500_000}).next_entry(late, BASE_MS, 1, THREE, None) == BASE_MS + late


def test_log_time_not_moved_back_to_slow_clocks() -> None:
    estimate = estimate_with({2: -90_000, 3: -90_000})
    estimate.clock_applied(BASE_MS + 9_000, now=10_000)
    assert estimate.next_entry(12_000, BASE_MS - 90_000, 1, THREE, None) == BASE_MS + 9_000


def test_single_server_follows_its_own_clock() -> None:
    assert log_time().next_entry(1_000, BASE_MS + 36_000_000, 1, voters(1), None) == BASE_MS + 36_000_000


def test_joint_configuration_needs_both_majorities() -> None:
    joint = VoterClocks(BASE_MS, ((1, 2, 3), (3, 4, 5)))
    estimate = estimate_with({2: 0, 3: 0, 4: -20_000, 5: -20_000})
    assert estimate.next_entry(10_000, BASE_MS + 10_000, 1, joint, None) == BASE_MS
    estimate = estimate_with({2: 0, 3: 0, 4: -5_000})
    assert estimate.next_entry(10_000, BASE_MS + 10_000, 1, joint, None) == BASE_MS + 5_000


def test_step_due_after_reports_of_majority() -> None:
    day_ms = 86_400_000
    estimate = log_time()
    own = (1_000, BASE_MS + day_ms, 1, THREE)
    assert not estimate.step_due(*own, BASE_MS + 25_000)
    estimate.report_applied(2, BASE_MS + day_ms, 1_000)
    assert not estimate.step_due(*own, BASE_MS + 5_000)
    assert estimate.step_due(*own, BASE_MS + day_ms + 25_000)
    estimate.clock_applied(BASE_MS + day_ms, 1_000)
    assert not estimate.step_due(*own, BASE_MS + day_ms + 25_000)


def test_commit_delay_not_lost_from_log_time() -> None:
    estimate = log_time()
    written_ms = estimate.next_entry(30_000, BASE_MS + 30_000, 1, voters(1), None)
    estimate.clock_applied(written_ms, now=30_900)
    assert estimate.paced(31_000) == BASE_MS + 31_000


# -- alarms on clocks --------------------------------------------------------------------------------------------------


def texts(offsets_ms: dict[int, int], clocks: VoterClocks = THREE, own_id: int = 1) -> tuple[str | None, str | None]:
    """Return the texts of server `own_id` about its own clock and, as the leader, about the other clocks."""
    estimate = estimate_with({each: ms for each, ms in offsets_ms.items() if each != own_id})
    judgment = estimate.judge(10_000, BASE_MS + 10_000 + offsets_ms[own_id], own_id, clocks)
    arguments = (judgment, own_id, NAMES.__getitem__)
    return own_clock_text(*arguments), other_clocks_text(*arguments)


def test_agreeing_clocks_do_not_raise_alarm() -> None:
    assert texts({1: 0, 2: 4_000, 3: -4_000}) == (None, None)


def test_leader_with_wrong_clock_reports_own_clock() -> None:
    own, others = texts({1: 1_000_000, 2: 0, 3: 0})
    assert others is None
    assert own is not None
    assert own.startswith("the clock of this node, oslo, is 1000 s ahead of the clocks of a majority")
    assert "kyoto, lima" in own


def test_leader_with_correct_clock_names_wrong_clocks() -> None:
    assert texts({1: 0, 2: 0, 3: -60_000}) == (
        None,
        "the clock of lima is 60 s behind the clocks of a majority of the voters, which log time follows",
    )
    own, others = texts({1: 0, 2: 20, 3: 0, 4: 1_000_000, 5: -30_000}, voters(1, 2, 3, 4, 5))
    assert own is None
    assert others is not None
    assert "quito is 1000 s ahead of; the clock of accra is 30 s behind" in others


def test_leader_between_two_wrong_clocks_reports_no_majority() -> None:
    own, others = texts({1: 0, 2: 1_000_000, 3: -1_000_000})
    assert own is None
    assert others is not None
    assert others.startswith("no majority of the voters' clocks agrees")
    for offset in ("oslo +0 s", "kyoto +1000 s", "lima -1000 s"):
        assert offset in others


def test_follower_reports_its_own_wrong_clock() -> None:
    own, _ = texts({1: 0, 2: 0, 3: 40_000}, own_id=3)
    assert own is not None
    assert "lima, is 40 s ahead" in own


def test_waiting_log_time_reported_with_remedy() -> None:
    judgment = estimate_with({2: 0, 3: 0}).judge(10_000, BASE_MS + 10_000, 1, THREE)
    assert log_time_text(judgment, FarmState(BASE_MS + 40_000), PERIOD_MS) is None
    waiting = log_time_text(judgment, FarmState(BASE_MS + 1_010_000), PERIOD_MS)
    assert waiting is not None
    assert "1000 s ahead" in waiting[0]
    assert "garlicfarm log-time back" in waiting[1]
    unreported = log_time_text(None, FarmState(BASE_MS), PERIOD_MS)
    assert unreported is not None
    assert "no majority of the voters has reported" in unreported[0]


@pytest.mark.parametrize("own_id", [1, 2])
def test_voters_with_different_clocks_both_raise_alarm(own_id: int) -> None:
    own, _ = texts({1: 0, 2: 1_000_000}, voters(1, 2), own_id)
    assert own is not None
    assert own.startswith("no majority of the voters' clocks agrees")


# -- founders without a log --------------------------------------------------------------------------------------------

YEARS_MS = 14 * 365 * 86_400_000


@pytest.mark.parametrize("wrong_ms", [YEARS_MS, -YEARS_MS, 60_000])
def test_founder_with_wrong_clock_raises_alarm(wrong_ms: int) -> None:
    found = founding_clock_text("oslo", {"kyoto": -wrong_ms, "lima": -wrong_ms + 2_000})
    assert found is not None
    assert found.startswith("the clock of this node, oslo, is ")
    assert ("ahead of" if wrong_ms > 0 else "behind") in found
    assert "kyoto, lima" in found
    assert founding_clock_text("kyoto", {"oslo": wrong_ms, "lima": 2_000}) is None


def test_founders_with_different_clocks_raise_alarm() -> None:
    found = founding_clock_text("oslo", {"kyoto": YEARS_MS})
    assert found is not None
    assert "no majority" in found
    assert f"kyoto +{YEARS_MS // 1000} s" in found


@pytest.mark.parametrize("offsets_ms", [{}, {"kyoto": 3_000}, {"kyoto": -3_000, "lima": YEARS_MS}])
def test_founder_with_majority_clock_is_not_alarmed(offsets_ms: dict[str, int]) -> None:
    assert founding_clock_text("oslo", offsets_ms) is None
