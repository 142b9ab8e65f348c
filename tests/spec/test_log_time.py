"""Log time as one server reckons it: what a leader writes, whose clocks it follows, and whose it says are off."""

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


def heard(offsets_ms: dict[int, int], now: int = 10_000) -> LogTime:
    """A reckoning that has just heard of the clocks of others, which differ by so much from the true time."""
    reckoning = log_time()
    for server_id, offset_ms in offsets_ms.items():
        reckoning.report_applied(server_id, BASE_MS + now + offset_ms, now)
    return reckoning


def test_between_clock_entries_log_time_runs_on_with_the_monotonic_clock() -> None:
    reckoning = log_time()
    assert reckoning.paced(12_345) == BASE_MS + 12_345
    reckoning.clock_applied(BASE_MS + 30_000, now=31_000)
    assert reckoning.paced(32_000) == BASE_MS + 31_000


def test_a_leader_writes_what_the_clocks_of_a_majority_have_reached() -> None:
    reckoning = heard({2: 300, 3: -400})
    assert reckoning.next_entry(12_000, BASE_MS + 12_000, 1, THREE, None) == BASE_MS + 12_000
    assert reckoning.next_entry(12_000, BASE_MS + 12_900, 1, THREE, None) == BASE_MS + 12_300


def test_a_leader_whose_own_clock_is_off_follows_the_others() -> None:
    for wrong_ms in (1_000_000, -1_000_000):
        reckoning = heard({2: 0, 3: 50})
        written_ms = reckoning.next_entry(12_000, BASE_MS + 12_000 + wrong_ms, 1, THREE, None)
        assert abs(written_ms - BASE_MS - 12_000) <= 50


def test_a_leader_writes_no_more_than_the_log_allows() -> None:
    assert heard({2: 0, 3: 0}).next_entry(12_000, BASE_MS, 1, THREE, BASE_MS + 7_000) == BASE_MS + 7_000


def test_without_recent_reports_of_a_majority_a_leader_goes_on_at_its_own_pace() -> None:
    assert log_time().next_entry(12_000, BASE_MS + 900_000, 1, THREE, None) == BASE_MS + 12_000
    late = 10_000 + 2 * PERIOD_MS + 1
    assert heard({2: 500_000, 3: 500_000}).next_entry(late, BASE_MS, 1, THREE, None) == BASE_MS + late


def test_log_time_never_goes_back_to_clocks_that_are_behind() -> None:
    reckoning = heard({2: -90_000, 3: -90_000})
    reckoning.clock_applied(BASE_MS + 9_000, now=10_000)
    assert reckoning.next_entry(12_000, BASE_MS - 90_000, 1, THREE, None) == BASE_MS + 9_000


def test_a_single_box_follows_its_own_clock() -> None:
    assert log_time().next_entry(1_000, BASE_MS + 36_000_000, 1, voters(1), None) == BASE_MS + 36_000_000


def test_while_the_group_changes_both_majorities_must_have_reached_the_time() -> None:
    joint = VoterClocks(BASE_MS, ((1, 2, 3), (3, 4, 5)))
    reckoning = heard({2: 0, 3: 0, 4: -20_000, 5: -20_000})
    assert reckoning.next_entry(10_000, BASE_MS + 10_000, 1, joint, None) == BASE_MS
    reckoning = heard({2: 0, 3: 0, 4: -5_000})
    assert reckoning.next_entry(10_000, BASE_MS + 10_000, 1, joint, None) == BASE_MS + 5_000


def test_a_step_is_due_once_the_reports_of_a_majority_are_there_and_only_then() -> None:
    day_ms = 86_400_000
    reckoning = log_time()
    own = (1_000, BASE_MS + day_ms, 1, THREE)
    assert not reckoning.step_due(*own, BASE_MS + 25_000)
    reckoning.report_applied(2, BASE_MS + day_ms, 1_000)
    assert not reckoning.step_due(*own, BASE_MS + 5_000)
    assert reckoning.step_due(*own, BASE_MS + day_ms + 25_000)
    reckoning.clock_applied(BASE_MS + day_ms, 1_000)
    assert not reckoning.step_due(*own, BASE_MS + day_ms + 25_000)


def test_the_time_that_a_leader_needs_to_commit_is_not_lost_from_log_time() -> None:
    reckoning = log_time()
    written_ms = reckoning.next_entry(30_000, BASE_MS + 30_000, 1, voters(1), None)
    reckoning.clock_applied(written_ms, now=30_900)
    assert reckoning.paced(31_000) == BASE_MS + 31_000


# -- whose clock is off ------------------------------------------------------------------------------------------------


def texts(offsets_ms: dict[int, int], clocks: VoterClocks = THREE, own_id: int = 1) -> tuple[str | None, str | None]:
    """What server `own_id` says of its own clock and, as the leader, of the others'."""
    reckoning = heard({each: ms for each, ms in offsets_ms.items() if each != own_id})
    judgment = reckoning.judge(10_000, BASE_MS + 10_000 + offsets_ms[own_id], own_id, clocks)
    told = (judgment, own_id, NAMES.__getitem__)
    return own_clock_text(*told), other_clocks_text(*told)


def test_clocks_that_agree_are_nothing_to_speak_of() -> None:
    assert texts({1: 0, 2: 4_000, 3: -4_000}) == (None, None)


def test_a_leader_whose_clock_is_off_says_that_it_is_its_own() -> None:
    own, others = texts({1: 1_000_000, 2: 0, 3: 0})
    assert others is None
    assert own is not None
    assert own.startswith("the clock of this node, oslo, is 1000 s ahead of the clocks of a majority")
    assert "kyoto, lima" in own


def test_a_leader_whose_clock_is_right_names_the_others_whose_clocks_are_off() -> None:
    assert texts({1: 0, 2: 0, 3: -60_000}) == (
        None,
        "the clock of lima is 60 s behind the clocks of a majority of the voters, which log time follows",
    )
    own, others = texts({1: 0, 2: 20, 3: 0, 4: 1_000_000, 5: -30_000}, voters(1, 2, 3, 4, 5))
    assert own is None
    assert others is not None
    assert "quito is 1000 s ahead of; the clock of accra is 30 s behind" in others


def test_a_leader_between_two_clocks_that_are_off_in_both_directions_does_not_take_the_blame() -> None:
    own, others = texts({1: 0, 2: 1_000_000, 3: -1_000_000})
    assert own is None
    assert others is not None
    assert others.startswith("no majority of the voters' clocks agrees")
    for told in ("oslo +0 s", "kyoto +1000 s", "lima -1000 s"):
        assert told in others


def test_a_follower_says_of_its_own_clock_that_it_is_off() -> None:
    own, _ = texts({1: 0, 2: 0, 3: 40_000}, own_id=3)
    assert own is not None
    assert "lima, is 40 s ahead" in own


def test_log_time_that_waits_for_the_clocks_is_told_with_the_command_that_brings_it_back() -> None:
    judgment = heard({2: 0, 3: 0}).judge(10_000, BASE_MS + 10_000, 1, THREE)
    assert log_time_text(judgment, FarmState(BASE_MS + 40_000), PERIOD_MS) is None
    told = log_time_text(judgment, FarmState(BASE_MS + 1_010_000), PERIOD_MS)
    assert told is not None
    assert "1000 s ahead" in told[0]
    assert "garlicfarm log-time back" in told[1]
    silent = log_time_text(None, FarmState(BASE_MS), PERIOD_MS)
    assert silent is not None
    assert "no majority of the voters has reported" in silent[0]


@pytest.mark.parametrize("own_id", [1, 2])
def test_two_voters_whose_clocks_differ_both_have_the_alarm(own_id: int) -> None:
    own, _ = texts({1: 0, 2: 1_000_000}, voters(1, 2), own_id)
    assert own is not None
    assert own.startswith("no majority of the voters' clocks agrees")


# -- before there is a log ---------------------------------------------------------------------------------------------

YEARS_MS = 14 * 365 * 86_400_000


@pytest.mark.parametrize("wrong_ms", [YEARS_MS, -YEARS_MS, 60_000])
def test_founder_whose_clock_is_off_is_the_one_with_the_alarm(wrong_ms: int) -> None:
    found = founding_clock_text("oslo", {"kyoto": -wrong_ms, "lima": -wrong_ms + 2_000})
    assert found is not None
    assert found.startswith("the clock of this node, oslo, is ")
    assert ("ahead of" if wrong_ms > 0 else "behind") in found
    assert "kyoto, lima" in found
    assert founding_clock_text("kyoto", {"oslo": wrong_ms, "lima": 2_000}) is None


def test_two_founders_whose_clocks_differ_both_have_the_alarm() -> None:
    found = founding_clock_text("oslo", {"kyoto": YEARS_MS})
    assert found is not None
    assert "no majority" in found
    assert f"kyoto +{YEARS_MS // 1000} s" in found


@pytest.mark.parametrize("offsets_ms", [{}, {"kyoto": 3_000}, {"kyoto": -3_000, "lima": YEARS_MS}])
def test_founder_whose_clock_agrees_with_a_majority_has_no_alarm(offsets_ms: dict[str, int]) -> None:
    assert founding_clock_text("oslo", offsets_ms) is None
