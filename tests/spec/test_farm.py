"""The farm's state machine: a function of the log alone. It refuses deposed publishers, and its tables are bounded."""

import math

from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from bridge.core.farm.state_machine import (
    ClockOff,
    PublicationAccepted,
    PublicationRefused,
    RequestRefused,
    ServerForgotten,
)
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    Clock,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    Foreign,
    LeafStatus,
    MetaStatus,
    Publication,
    PublishConfig,
    Record,
    Removal,
    Report,
)
from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.publishing.publisher_election import PublisherChanged
from bridge.core.state.farm_state import LOG_TIME_LIMIT_MS, MASTERS_MAX, SERVERS_MAX, SESSION_LIMITS
from tests.authored import AuthoredFarm
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, report

BASE_S = BASE_MS // 1000


def publication(server_id: int, published_s: int, master: str = MASTER) -> Publication:
    return Publication(master, server_id, published_s, "content")


def test_log_time_is_greatest_clock_entry_from_base() -> None:
    log = Log()
    assert log.farm.state.log_time_ms == BASE_MS
    log.clock(5_000)
    log.clock(4_000)
    assert log.farm.state.log_time_ms == BASE_MS + 5_000


def test_clock_entry_beyond_lease_set_range_ignored() -> None:
    log = Log(Clock(LOG_TIME_LIMIT_MS + 1, 1))
    assert log.farm.state.log_time_ms == BASE_MS


def test_latest_report_of_server_counts() -> None:
    log = Log(report(1, job_lag_ms=500), report(2), report(1, job_lag_ms=7))
    assert log.farm.state.servers[1].report.router.job_lag_ms == 7
    assert sorted(log.farm.state.servers) == [1, 2]


def test_report_repeated_under_its_request_ignored() -> None:
    log = Log(report(1, job_lag_ms=500, request="one-3-0-1"), report(1, job_lag_ms=7, request="one-3-0-2"))
    log.append(report(1, job_lag_ms=500, request="one-3-0-1"))
    assert log.farm.state.servers[1].report.router.job_lag_ms == 7


def test_report_of_expired_session_refused() -> None:
    log = Log(report(1, job_lag_ms=500, request="one-3-0-1"))
    log.clock(SESSION_LIMITS.expiry_ms + PERIOD_MS)
    assert log.append(report(1, request="one-3-0-1")) == [RequestRefused("one-3-0-1")]
    assert 1 not in log.farm.state.servers
    session_start = log.farm.state.applied_index
    log.append(report(1, job_lag_ms=9, request=f"one-3-{session_start}-1"))
    assert log.farm.state.servers[1].report.router.job_lag_ms == 9


def test_report_without_request_applied_each_time() -> None:
    log = Log()
    for lag_ms in (500, 7):
        log.append(report(1, job_lag_ms=lag_ms, request="theirs"))
    assert log.farm.state.servers[1].report.router.job_lag_ms == 7


def test_entries_up_to_applied_index_are_ignored() -> None:
    farm = AuthoredFarm(BASE_MS, TUNING)
    farm.apply(5, 2, report(1))
    before = farm.state
    assert farm.apply(5, 2, report(2)) == ()
    assert farm.apply(4, 2, Clock(BASE_MS + 9_000, 1)) == ()
    assert farm.state is before
    assert (before.applied_index, before.applied_term) == (5, 2)


def test_report_with_wrong_date_kept_and_marked() -> None:
    log = Log()
    # Log time moves once per period, so a correct clock may show up to one period more.
    assert log.append(report(1, BASE_MS + PERIOD_MS + 30_000), report(2, BASE_MS - 30_000))[1:] == []
    assert ClockOff(3, 30_001) in log.append(report(3, BASE_MS + PERIOD_MS + 30_001))
    assert ClockOff(4, -30_001) in log.append(report(4, BASE_MS - 30_001))
    marks = {server_id: server.clock_off for server_id, server in log.farm.state.servers.items()}
    assert marks == {1: False, 2: False, 3: True, 4: True}


def test_report_stale_after_one_and_half_periods() -> None:
    log = Log(report(1, BASE_MS + 10_000))
    log.clock(10_000 + PERIOD_MS * 3 // 2)
    assert not log.farm.state.stale(log.farm.state.servers[1], TUNING)
    log.clock(10_001 + PERIOD_MS * 3 // 2)
    assert log.farm.state.stale(log.farm.state.servers[1], TUNING)


def test_reports_around_clock_entries_stay_fresh() -> None:
    """A server reports just before one clock entry and just after the next, so two entries pass between."""
    log = Log(report(1, BASE_MS + PERIOD_MS - 100))
    log.clock(PERIOD_MS)
    log.clock(2 * PERIOD_MS)
    assert not log.farm.state.stale(log.farm.state.servers[1], TUNING)


def test_future_report_date_capped_by_log_time() -> None:
    log = Log(report(1, BASE_MS + PERIOD_MS + 29_000))
    assert log.farm.state.servers[1].reported_ms == BASE_MS + PERIOD_MS


def test_slow_clock_within_tolerance_keeps_reports_fresh() -> None:
    log = Log()
    for number in range(1, 5):
        # The reports alternate just before and just after a clock entry, by a clock that is 25 s slow.
        made_ms = number * PERIOD_MS + (100 if number % 2 else -100)
        log.append(*([report(1, BASE_MS + made_ms - 25_000)] if number % 2 == 0 else []))
        log.clock(number * PERIOD_MS)
        log.append(*([report(1, BASE_MS + made_ms - 25_000)] if number % 2 else []))
        assert not log.farm.state.stale(log.farm.state.servers[1], TUNING), f"period {number}"
    assert log.farm.state.servers[1].lag_ms == 24_900


def test_server_without_reports_dropped_after_hour() -> None:
    log = Log(report(1))
    assert log.clock(TUNING.forget_after_ms)[-1] != ServerForgotten(1)
    assert ServerForgotten(1) in log.clock(TUNING.forget_after_ms + 1)
    assert log.farm.state.servers == {}


def test_first_able_server_publishes_immediately() -> None:
    assert Log().append(report(2)) == [PublisherChanged(MASTER, 2, None)]


def test_publication_of_publisher_accepted_and_stored() -> None:
    log = Log(report(1))
    assert log.append(publication(1, BASE_S)) == [PublicationAccepted(publication(1, BASE_S))]
    assert log.master.publication == publication(1, BASE_S)


def test_publication_of_deposed_publisher_refused() -> None:
    log = Log(report(1), report(2, BASE_MS + PERIOD_MS))
    log.clock(2 * PERIOD_MS)
    assert log.publisher == 2
    (refused,) = log.append(publication(1, BASE_S))
    assert isinstance(refused, PublicationRefused)
    assert refused.reason == "server 1 is not the publisher; server 2 is"
    assert log.master.publication is None


def test_publication_must_be_later_than_last_accepted() -> None:
    log = Log(report(1), publication(1, BASE_S))
    for published_s in (BASE_S, BASE_S - 1):
        (refused,) = log.append(publication(1, published_s))
        assert isinstance(refused, PublicationRefused)
        assert "is not after" in refused.reason
    assert isinstance(log.append(publication(1, BASE_S + 1))[0], PublicationAccepted)


def test_publication_second_bounded_by_log_time() -> None:
    """Without the bound, each publication could be one second later: 30,000 entries would move it 8 hours ahead."""
    log = Log(report(1))
    for second in range(BASE_S, BASE_S + 1_000):
        (change,) = log.append(publication(1, second))
        assert isinstance(change, PublicationAccepted) == (second <= BASE_S + 60)
    assert isinstance(change, PublicationRefused)
    assert "too far ahead of log time" in change.reason
    assert log.master.publication is not None
    assert log.master.publication.published_s == BASE_S + 60


def test_publisher_at_second_limit_waits_for_log_time() -> None:
    log = Log(report(1))
    log.append(publication(1, BASE_S + 60))
    seconds = []
    for after_s in range(1, 60):
        if after_s % 30 == 0:
            log.append(report(1, BASE_MS + after_s * 1000))
            log.clock(after_s * 1000)
        plan = plan_publication(log.farm.state, MASTER, 1, Pace(), BASE_MS + after_s * 1000, handed_over=None)
        if plan is not None:
            (change,) = log.append(plan.publication)
            assert isinstance(change, PublicationAccepted)
            seconds.append((after_s, plan.publication.published_s - BASE_S))
    assert seconds[0] == (31, 61)
    assert all(second == after_s + 30 for after_s, second in seconds)


def test_publication_for_unreported_master_refused() -> None:
    log = Log(report(1))
    (refused,) = log.append(publication(1, BASE_S, "another"))
    assert isinstance(refused, PublicationRefused)
    assert refused.reason == "no server reports for this master destination"


def test_second_master_has_own_publisher_and_leaves() -> None:
    log = Log(report(1), report(2, destination="other"))
    other = log.farm.state.masters["other"]
    assert (log.publisher, other.choice.server_id) == (1, 2)
    assert [each.destination for each in other.leaves] == ["leaf02"]


def test_foreign_entries_change_only_applied_index() -> None:
    log = Log(report(1))
    before = log.farm.state
    assert log.append(Foreign("an administrator's note")) == []
    assert log.farm.state == replace(before, applied_index=2)


def test_full_tables_drop_longest_unreported() -> None:
    log = Log()
    for server_id in range(1, SERVERS_MAX + 10):
        log.append(report(server_id, BASE_MS + server_id, destination=f"master {server_id}"))
    assert sorted(log.farm.state.servers) == list(range(10, SERVERS_MAX + 10))
    assert len(log.farm.state.masters) == MASTERS_MAX


wild_numbers = some.one_of(
    some.none(), some.integers(-(2**70), 2**70), some.sampled_from([0, 1, 100, 10**400]), some.integers(0, 1_000)
)
wild_floats = some.one_of(some.none(), some.floats(), some.sampled_from([math.nan, math.inf, -math.inf]))
names = some.sampled_from([f"leaf{number:02}" for number in range(30)] + ["", "\ud800", "λ"])
hashes = names.map(hash_of)
masters = some.sampled_from([MASTER, "other", "\udfff"])
server_ids = some.integers(-1, 6)
times_ms = some.one_of(
    some.integers(BASE_MS - 120_000, BASE_MS + 400_000), some.sampled_from([0, -1, 2**70, LOG_TIME_LIMIT_MS])
)
records = some.one_of(
    some.builds(
        Report,
        cluster=some.just("farm"),
        date_ms=times_ms,
        server_id=server_ids,
        router=some.builds(
            RouterStatus,
            attached=some.booleans(),
            uptime_ms=wild_numbers,
            job_lag_ms=wild_floats,
            configured_bandwidth_bytes_per_s=wild_numbers,
            current_bandwidth_bytes_per_s=wild_numbers,
            cpu_percent=wild_floats,
            memory_percent=wild_floats,
        ),
        masters=some.lists(
            some.builds(
                MetaStatus,
                destination=masters,
                publish_config=some.sampled_from(PublishConfig),
                publishing=some.booleans(),
                last_published_time_ms=times_ms,
                can_sign_until_s=some.sampled_from([None, BASE_S, 2**33]),
            ),
            max_size=3,
            unique_by=lambda part: part.destination,
        ).map(tuple),
        destinations=some.lists(
            some.builds(
                LeafStatus,
                destination=names,
                healthy=some.booleans(),
                master_hash=some.sampled_from([None, None, hash_of(MASTER), hash_of("other")]),
                configured_tunnels=wild_numbers,
                current_tunnels=wild_numbers,
                configured_bandwidth_bytes_per_s=wild_numbers,
                current_bandwidth_bytes_per_s=wild_numbers,
                configured_connections=wild_numbers,
                current_connections=wild_numbers,
            ),
            max_size=12,
        ).map(tuple),
        request=some.one_of(some.none(), some.sampled_from(["a-0-1", "a-0-2", "b-1-1", "a-9-1", "c"])),
    ),
    some.builds(Clock, time_ms=times_ms, server_id=server_ids),
    some.builds(
        Publication,
        master=masters,
        server_id=server_ids,
        published_s=some.integers(BASE_S - 5, BASE_S + 500),
        content_hash=some.just("content"),
    ),
    some.builds(Exclusion, leaf_hash=hashes, excluded=some.booleans()),
    some.builds(CostFactor, leaf_hash=hashes, factor=some.floats()),
    some.builds(Force, master=masters),
    some.builds(
        Factors,
        through_index=some.integers(-1, 30),
        formula=some.text(max_size=3),
        factors=some.dictionaries(hashes, some.one_of(some.floats(0.5, 2), some.floats()), max_size=4),
    ),
    some.builds(Removal, server_id=server_ids, removed=some.booleans()),
    some.builds(Foreign, reason=some.text(max_size=3)),
)


@given(some.lists(records, max_size=25))
def test_same_log_gives_same_bounded_state(log: list[Record]) -> None:
    one, other = AuthoredFarm(BASE_MS, TUNING), AuthoredFarm(BASE_MS, TUNING)
    log_time_ms, seconds = BASE_MS, dict[str, int]()
    for index, record in enumerate(log, start=1):
        changes = one.apply(index, 1, record)
        other.apply(index, 1, record)
        assert repr(one.state) == repr(other.state)
        assert one.sessions.dump() == other.sessions.dump()
        assert one.state.log_time_ms >= log_time_ms
        log_time_ms = one.state.log_time_ms
        for change in changes:
            if isinstance(change, PublicationAccepted):
                accepted = change.publication
                assert one.state.masters[accepted.master].choice.server_id == accepted.server_id
                assert accepted.published_s > seconds.get(accepted.master, 0)
                seconds[accepted.master] = accepted.published_s
        for master in one.state.masters.values():
            assert len(master.leaves) <= LEAVES_MAX
            assert all(0 <= each.cost <= 200 for each in master.leaves)
            assert master.choice.server_id is None or master.choice.server_id in one.state.servers
    assert len(one.state.masters) <= MASTERS_MAX


@given(some.lists(records, max_size=25), some.integers(0, 25))
def test_replay_after_restart_ends_in_same_state(log: list[Record], crash_at: int) -> None:
    through, replayed = AuthoredFarm(BASE_MS, TUNING), AuthoredFarm(BASE_MS, TUNING)
    for index, record in enumerate(log, start=1):
        through.apply(index, 1, record)
    for index, record in [*enumerate(log[:crash_at], start=1), *enumerate(log, start=1)]:
        replayed.apply(index, 1, record)
    assert repr(through.state) == repr(replayed.state)


def test_reporting_period_taken_from_clock_entry() -> None:
    # Given two servers that apply the same log, regardless of their local settings
    first, second = AuthoredFarm(BASE_MS), AuthoredFarm(BASE_MS)
    for farm in (first, second):
        farm.apply(1, 1, Clock(BASE_MS + 1, 1, period_ms=2_000))
        assert farm.tuning.period_ms == 2_000
        # When a clock entry lacks a period, or has an invalid one, then the period does not change
        farm.apply(2, 1, Clock(BASE_MS + 2, 1))
        farm.apply(3, 1, Clock(BASE_MS + 3, 1, period_ms=1))
        assert farm.tuning.period_ms == 2_000
    assert first.state == second.state


def test_time_without_leader_does_not_age_reports() -> None:
    # Given three servers that report; server 1 is the publisher
    log = Log(report(1), report(2), report(3))
    assert log.publisher == 1
    # When the leader is lost for two and a half periods, without committed reports
    log.leap(PERIOD_MS * 5 // 2)
    # Then the new leader's clock entry does not change the publisher and the leaves
    assert log.publisher == 1
    assert log.leaves == {"leaf01": 0, "leaf02": 0, "leaf03": 0}
    # And a server without reports from then on is stale after the usual time
    log.append(report(2, BASE_MS + PERIOD_MS * 5 // 2), report(3, BASE_MS + PERIOD_MS * 5 // 2))
    log.clock(PERIOD_MS * 7 // 2)
    assert log.publisher == 2
