"""The background tasks of a node in a farm: reports, clock entries and publications, in simulated time."""

import math
from itertools import pairwise

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import CLOCK, LOG_TIME, OTHER_CLOCKS, ROUTER, SIGNING_KEY, SLOW_MAJORITY
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.farm.state_machine import PublicationRefused
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, LeafStatus, Publication, PublishConfig, Report
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.state.farm_state import Choice, Leaf, MasterState
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.tasks.publishing import RETRY_FIRST_S, PublishingTask
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from bridge.wire.i2p.meta_lease_set import verify
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import sign_entry
from consensus.core.effects import Outcome, Role, RoleChanged
from consensus.core.model import ServerId
from consensus.server.errors import NotLeaderError
from consensus.server.event_loop import now_ms
from tests.authored import CLUSTER_ID, key_of
from tests.destinations import new_demo_leaf
from tests.node.farm_stage import (
    LEAF,
    MASTER,
    NOW_MS,
    NOW_S,
    OTHER,
    OWN,
    PERIOD_MS,
    Stage,
    clock_now_ms,
    on_duty,
    rival_report,
)

pytestmark = pytest.mark.usefixtures("machine_clock")
DAY_S = 86_400


# -- clock -------------------------------------------------------------------------------------------------------------


async def test_leader_appends_clock_at_election_then_each_period(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(7)
    clocks = stage.records(Clock)
    assert [at_ms for at_ms, _ in clocks] == [0, 2_000, 4_000, 6_000]
    assert [record for _, record in clocks] == [Clock(NOW_MS + at_ms, OWN, PERIOD_MS) for at_ms, _ in clocks]


async def test_follower_appends_clock_only_after_election(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.lead(OTHER)
    async with on_duty(stage):
        await trio.sleep(5)
        assert stage.records(Clock) == []
        stage.lead(OWN)
        await trio.sleep(1)
        assert [at_ms for at_ms, _ in stage.records(Clock)] == [5_000]


def at_log_time(stage: Stage, log_time_ms: int) -> None:
    """Set the log time and this node as publisher, as a snapshot may do."""
    master = MasterState(choice=Choice(OWN), leaves=(Leaf(LEAF.base64, 0),))
    state = replace(stage.applied_state.state, log_time_ms=log_time_ms, masters={MASTER.destination.base64: master})
    stage.applied_state.farm.state = state
    stage.applied_state.log_time.clock_applied(log_time_ms, now_ms())


async def test_leader_with_unencodable_log_time_reports_failure(autojump_clock: MockClock) -> None:
    """Given log time beyond the limit of an entry, then the node reports the failure and its other tasks continue."""
    stage = Stage()
    at_log_time(stage, 2**53)
    async with on_duty(stage):
        await trio.sleep(60)
        assert stage.records(Report), "the other tasks continue"
        assert stage.records(Clock) == []
        assert 1 <= stage.events("clock-failed") <= 3, "reported once, not for each attempt"


async def test_publisher_with_unencodable_second_reports_failure(autojump_clock: MockClock) -> None:
    """Given a second beyond the limit of a structure, then the node reports failures and retries with pauses."""
    stage = Stage()
    at_log_time(stage, (2**32 + 5) * 1000)
    # The log refuses this node's entries: with an accepted report, the farm would prefer another publisher.
    stage.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="busy")
    async with on_duty(stage):
        await trio.sleep(60)
        clocks = len(stage.records(Clock))
        await trio.sleep(10)
        assert len(stage.records(Clock)) > clocks, "the other tasks continue"
        assert 1 <= stage.events("publish-failed") <= 10, "the pauses between attempts grow"


async def test_clock_entry_refused_as_busy_is_retried_soon(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    stage.server.outcome = Outcome.BUSY
    async with on_duty(stage):
        await trio.sleep(2.5)
        stage.server.outcome = Outcome.COMMITTED
        await trio.sleep(2)
    assert [at_ms for at_ms, _ in stage.records(Clock)] == [3_000]


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_clock_off_majority_raises_alarm_under_any_leader(leader: ServerId, autojump_clock: MockClock) -> None:
    stage = Stage()
    state = stage.applied_state.state
    stage.applied_state.farm.state = replace(state, clocks=state.clocks.configured(((1, 2, 3),)))
    stage.lead(leader)
    async with on_duty(stage), trio.open_nursery() as nursery:
        wrong_ms = -40_000

        async def others() -> None:
            for sequence in range(1, 100):
                await stage.append_record(Clock(clock_now_ms() + wrong_ms, OTHER, PERIOD_MS))
                for server_id in (2, 3):
                    report = rival_report(sequence)
                    report = replace(report, date_ms=report.date_ms + wrong_ms, request=f"0{server_id}-1-0-{sequence}")
                    await stage.append_record(replace(report, server_id=server_id))
                await trio.sleep(2)

        nursery.start_soon(others)
        await trio.sleep(2.5)
        assert stage.alarm(CLOCK.kind) is None
        await trio.sleep(6)
        text = stage.alarm(CLOCK.kind)
        assert text is not None
        assert "server 1, is 40 s ahead of the clocks of a majority of the voters (server 2, server 3)" in text
        assert stage.alarm(OTHER_CLOCKS.kind) is None
        wrong_ms = 0
        await trio.sleep(6)
        assert stage.alarm(CLOCK.kind) is None
        nursery.cancel_scope.cancel()


async def test_node_catching_up_does_not_raise_clock_alarm(autojump_clock: MockClock) -> None:
    stage = Stage()
    state = stage.applied_state.state
    clocks = state.clocks.configured(((1, 2, 3),))
    stage.applied_state.farm.state = replace(state, clocks=clocks, log_time_ms=NOW_MS - 600_000)
    stage.lead(OTHER)
    async with on_duty(stage):
        # Ten minutes of log in ten seconds: each entry has the clocks of its time.
        for sequence in range(1, 61):
            behind_ms = 600_000 - 10_000 * sequence
            await stage.append_record(Clock(clock_now_ms() - behind_ms, OTHER, PERIOD_MS))
            for server_id in (2, 3):
                report = rival_report(sequence)
                report = replace(report, date_ms=report.date_ms - behind_ms, request=f"0{server_id}-1-0-{sequence}")
                await stage.append_record(replace(report, server_id=server_id))
            await trio.sleep(1 / 6)
            assert stage.alarm(CLOCK.kind) is None


async def test_log_time_far_ahead_raises_alarm_only_on_leader(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.applied_state.farm.state = replace(stage.applied_state.state, log_time_ms=NOW_MS + 3_600_000)
    async with on_duty(stage):
        await trio.sleep(10)
        text = stage.alarm(LOG_TIME.kind)
        assert text is not None
        assert "s ahead of the clocks of a majority of the voters: it does not advance" in text
        assert stage.alarm(CLOCK.kind) is None
        stage.lead(OTHER)
        await trio.sleep(4)
        assert stage.alarm(LOG_TIME.kind) is None


async def test_farm_off_for_ninety_days_publishes_within_three_periods(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    long_ago_ms = NOW_MS - 90 * DAY_S * 1000
    stage.applied_state.farm.state = replace(
        stage.applied_state.state, log_time_ms=long_ago_ms, clocks=VoterClocks(long_ago_ms, ((OWN,),))
    )
    async with on_duty(stage):
        await trio.sleep(5)
        assert abs(stage.applied_state.state.log_time_ms - clock_now_ms()) <= 5_000
        await trio.sleep(85)
        assert stage.router.published


async def test_report_with_later_date_soon_advances_log_time(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    state = stage.applied_state.state
    stage.applied_state.farm.state = replace(state, clocks=state.clocks.configured(((2, 3),)))
    async with on_duty(stage):
        await trio.sleep(10.3)
        assert len(stage.records(Clock)) == 1
        for server_id in (2, 3):
            ahead = replace(rival_report(), date_ms=clock_now_ms() + 20_000, request=f"0{server_id}-1-0-1")
            await stage.append_record(replace(ahead, server_id=server_id))
        await trio.sleep(1)
        assert [at_ms for at_ms, _ in stage.records(Clock)] == [0, 11_000]


async def test_slow_majority_raises_alarm_on_leader(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.server.commit_s = 0.3
    async with on_duty(stage):
        await trio.sleep(10)
        assert stage.alarm(SLOW_MAJORITY.kind) is None
        await trio.sleep(10)
        assert stage.alarm(SLOW_MAJORITY.kind) is not None
        stage.server.commit_s = 0.01
        await trio.sleep(20)
        assert stage.alarm(SLOW_MAJORITY.kind) is None
        stage.server.commit_s = 0.3
        await trio.sleep(20)
        assert stage.alarm(SLOW_MAJORITY.kind) is not None
        stage.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="no leader")
        stage.lead(OTHER)
        await trio.sleep(0.1)
        assert stage.alarm(SLOW_MAJORITY.kind) is None


# -- report ------------------------------------------------------------------------------------------------------------


async def test_first_report_is_sent_when_leader_is_known(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.server.role = RoleChanged(Role.FOLLOWER, 1, None)
    async with on_duty(stage):
        await trio.sleep(10)
        assert stage.records(Report) == []
        stage.lead(OTHER)
        await trio.sleep(0.1)
        assert [at_ms for at_ms, _ in stage.records(Report)] == [10_000]


async def test_reports_are_sent_each_period_with_unique_ids(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(20)
    reports = stage.records(Report)
    times_ms = [at_ms for at_ms, _ in reports]
    # The first report started the publication. The publication changed the report, so the second report came early.
    apart_ms = [later - earlier for earlier, later in pairwise(times_ms[1:])]
    assert len(apart_ms) >= 8
    assert all(1_790 <= each <= 2_010 for each in apart_ms), apart_ms
    assert len({record.request for _, record in reports if isinstance(record, Report)}) == len(reports)


async def test_report_loop_adopts_shorter_period_of_leader(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.lead(OTHER)  # so this node does not write clock entries, and begins with the period of 30 s
    async with on_duty(stage):
        await trio.sleep(1)
        await stage.append_record(Clock(NOW_MS + 1_000, OTHER, PERIOD_MS))
        await trio.sleep(4)
    assert len(stage.records(Report)) >= 3


async def test_refused_report_is_replaced_by_fresh_report(autojump_clock: MockClock) -> None:
    stage = Stage()
    dates_ms: list[int] = []

    def refuse(command: bytes) -> SubmitAnswer:
        record = decode(command)
        assert isinstance(record, Report)
        dates_ms.append(record.date_ms)
        return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="no leader")

    stage.replica.taken = refuse
    async with on_duty(stage):
        await trio.sleep(9)
    assert dates_ms == sorted(set(dates_ms))
    assert len(dates_ms) >= 5


async def test_unreachable_router_is_reported_with_alarm(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.silence = "the router does not answer on port 7654"
    async with on_duty(stage):
        await trio.sleep(0.4)
        [(_, first)] = stage.records(Report)
        assert isinstance(first, Report)
        assert (first.router.attached, first.destinations) == (False, ())
        assert stage.alarm(ROUTER.kind) == stage.router.silence
        stage.router.silence = None
        await trio.sleep(2)
        assert stage.alarm(ROUTER.kind) is None


async def test_report_omits_impossible_figures(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.status = replace(stage.router.status, job_lag_ms=math.nan, uptime_ms=2**63)
    async with on_duty(stage):
        await trio.sleep(1)
    [(_, report), *_] = stage.records(Report)
    assert isinstance(report, Report)
    assert report.router == RouterStatus(attached=True)
    assert len(report.destinations) == 1
    assert stage.background_tasks.figures_dropped >= 2


# -- key ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life_s", "expected"),
    [(8 * DAY_S, None), (6 * DAY_S, "ends in 5 days"), (1, "has ended")],
    ids=["more than a week", "less than a week", "ended"],
)
async def test_signing_key_near_its_end_raises_alarm(
    life_s: int, expected: str | None, autojump_clock: MockClock
) -> None:
    stage = Stage(key=PublishingKey(MASTER.sign_transient(NOW_S, life_s)))
    async with on_duty(stage):
        await trio.sleep(5)
        text = stage.alarm(SIGNING_KEY.kind)
    assert (text is None) if expected is None else (text is not None and expected in text)


async def test_master_key_as_signing_key_never_ends(autojump_clock: MockClock) -> None:
    stage = Stage(key=PublishingKey(MASTER.as_signing_key()))
    async with on_duty(stage):
        await trio.sleep(5)
        assert stage.alarm(SIGNING_KEY.kind) is None
        assert stage.router.published


# -- publish -----------------------------------------------------------------------------------------------------------


async def test_accepted_plan_is_signed_for_router(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(6)
    [(_, publication)] = stage.records(Publication)
    [published] = stage.router.published
    structure = decode_structure(published)
    assert isinstance(publication, Publication)
    assert structure.published_s == publication.published_s
    assert structure.destination == MASTER.destination
    assert verify(structure).holds
    assert stage.background_tasks.published == stage.events("published") == 1


async def test_restarted_former_publisher_does_not_propose(autojump_clock: MockClock) -> None:
    """Its stored log names it as publisher, but the farm has chosen another one since."""
    stage, address = Stage(), MASTER.destination.base64
    last = Publication(address, OWN, NOW_S - 600, "00")
    stored = MasterState(choice=Choice(OWN), leaves=(Leaf(LEAF.base64, 0),), publication=last)
    stage.applied_state.farm.state = replace(stage.applied_state.state, masters={address: stored})
    attempts: list[int] = []

    async def barrier() -> None:
        attempts.append(now_ms())
        if len(attempts) == 1:
            raise NotLeaderError(None)
        await stage.append_record(rival_report())

    stage.replica.barrier = barrier
    async with on_duty(stage):
        await trio.sleep(4)
        assert stage.applied_state.state.masters[address].choice.server_id == OTHER
    assert len(attempts) == 2
    assert stage.records(Publication) == []


async def test_first_publication_follows_report_of_last_voter(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    state = stage.applied_state.state
    stage.applied_state.farm.state = replace(state, clocks=state.clocks.configured(((OWN, OTHER),)))
    async with on_duty(stage):
        await trio.sleep(5.1)
        assert stage.records(Publication) == []
        leaf = LeafStatus(LEAF.base64, healthy=True)
        await stage.append_record(replace(rival_report(), masters=(), destinations=(leaf,)))
        await trio.sleep(0.3)
        assert len(stage.records(Publication)) == 1


async def test_entries_of_clients_do_not_wake_tasks(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    plans_s: list[float] = []
    reviewed = PublishingTask._review_look_ups

    def review(task: PublishingTask) -> None:
        plans_s.append(trio.current_time())
        reviewed(task)

    monkeypatch.setattr(PublishingTask, "_review_look_ups", review)
    stage = Stage(period_ms=30_000)
    async with on_duty(stage):
        await trio.sleep(36.1)
        plans_s.clear()
        for _ in range(100):
            await stage.append(b"an entry of a client")
            await trio.sleep(0.1)
    assert 1 <= len(plans_s) <= 3


async def test_settled_publisher_publishes_change_of_leaf_immediately(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    async with on_duty(stage):
        await trio.sleep(62.3)
        assert len(stage.records(Publication)) == 1
        leaf = LeafStatus(new_demo_leaf().base64, healthy=True)
        await stage.append_record(replace(rival_report(), masters=(), destinations=(leaf,)))
        await trio.sleep(0.1)
        assert len(stage.records(Publication)) == 2


async def test_failed_hand_over_is_repeated_within_second_of_pause(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    async with on_duty(stage):
        await trio.sleep(62.3)
        refused = SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="its reports would start reviews")
        stage.replica.taken = lambda command: refused if isinstance(decode(command), Report) else None
        stage.router.refusal = "busy"
        leaf = LeafStatus(new_demo_leaf().base64, healthy=True)
        await stage.append_record(replace(rival_report(), masters=(), destinations=(leaf,)))
        await trio.sleep(0.1)
        assert stage.events("publish-failed") == 1
        stage.router.refusal = None
        await trio.sleep(RETRY_FIRST_S + 1)
        assert len(stage.router.published) == 2


async def test_publication_without_effect_is_retried_with_backoff(autojump_clock: MockClock) -> None:
    """Each attempt is an entry of the log, and a node with refused publications must not fill the log."""
    stage = Stage()
    signer, sign = stage.signer, stage.signer.sign

    def sign_with_used_number(entry: bytes) -> bytes:
        return sign_entry(entry, key_of(OWN), CLUSTER_ID, 1) if b'"publication"' in entry else sign(entry)

    signer.sign = sign_with_used_number  # type: ignore[method-assign]  # its publications have a used number
    async with on_duty(stage):
        await trio.sleep(120)
    assert 3 <= len(stage.records(Publication)) <= 7
    assert stage.router.published == []


async def test_refused_publication_raises_alarm_with_backoff(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.refusal = "disk full"
    async with on_duty(stage):
        await trio.sleep(120)
        tries = len(stage.records(Publication))
        assert 3 <= tries <= 7
        assert stage.alarm(ROUTER.kind) == "publishing failed: disk full"
        stage.router.refusal = None
        await trio.sleep(70)
        assert len(stage.router.published) == 1
        assert stage.alarm(ROUTER.kind) is None


async def test_slow_router_receives_one_plan_at_a_time(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.gate = trio.Event()
    async with on_duty(stage):
        await trio.sleep(120)
        assert len(stage.records(Publication)) == 1
        stage.router.gate.set()
        await trio.sleep(2)
        assert len(stage.router.published) == 1


async def test_plan_refused_by_farm_is_retried_with_backoff(autojump_clock: MockClock) -> None:
    stage = Stage()
    refused = []

    def overtake(command: bytes) -> SubmitAnswer | None:
        record = decode(command)
        if isinstance(record, Publication):
            refused.append(now_ms())
            stage.log.append(command)  # as if an earlier entry had made another server the publisher
            stage.times_ms.append(now_ms())
            stage.background_tasks.changed(PublicationRefused(record, "server 1 is not the publisher; server 2 is"))
            return SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=len(stage.log), term=1)
        return None

    stage.replica.taken = overtake
    async with on_duty(stage):
        await trio.sleep(120)
    assert 3 <= len(refused) <= 7
    assert stage.router.published == []


async def test_plan_with_unknown_outcome_is_not_signed(autojump_clock: MockClock) -> None:
    stage = Stage()

    def lose(command: bytes) -> SubmitAnswer | None:
        unknown = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason="the leader changed during the request")
        return unknown if isinstance(decode(command), Publication) else None

    stage.replica.taken = lose
    async with on_duty(stage):
        await trio.sleep(10)
        assert stage.router.published == []
        stage.replica.taken = lambda _: None
        await trio.sleep(10)
        assert len(stage.router.published) == 1


async def test_deposed_publisher_stops_after_next_publication(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(6)
        assert len(stage.router.published) == 1
        await stage.append_record(rival_report())
        await trio.sleep(1)
        assert stage.applied_state.state.masters[MASTER.destination.base64].choice.server_id == OTHER
        assert stage.router.stopped == 0
        # Server 3 is the standby.
        await stage.append_record(replace(rival_report(), server_id=3, request="03-1-0-1"))
        second = NOW_S + now_ms() // 1000
        await stage.append_record(Publication(MASTER.destination.base64, OTHER, second, "00"))
        await trio.sleep(0.1)
        assert stage.router.stopped == 1
        assert stage.events("publishing-stopped") == 1


async def test_publisher_deposed_during_publication_stops_after_it(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.gate = trio.Event()
    async with on_duty(stage):
        await trio.sleep(6)
        await stage.append_record(rival_report())
        # Server 3 is the standby.
        await stage.append_record(replace(rival_report(), server_id=3, request="03-1-0-1"))
        second = NOW_S + now_ms() // 1000
        await stage.append_record(Publication(MASTER.destination.base64, OTHER, second, "00"))
        await trio.sleep(0.1)
        assert stage.router.stopped == 0
        stage.router.gate.set()
        await trio.sleep(0.1)
        assert (len(stage.router.published), stage.router.stopped) == (1, 1)


async def test_leaving_publisher_reports_off_so_another_takes_over(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(6)
        await stage.append_record(
            replace(rival_report(), masters=(replace(rival_report().masters[0], publish_config=PublishConfig.AUTO),))
        )
        assert stage.applied_state.state.masters[MASTER.destination.base64].choice.server_id == OWN
        await stage.background_tasks.resign()
        assert stage.applied_state.state.masters[MASTER.destination.base64].choice.server_id == OTHER
        await trio.sleep(10)
        reports = [record for _, record in stage.records(Report) if isinstance(record, Report)]
        assert reports[-1].masters[0].publish_config is PublishConfig.OFF


async def test_leaving_node_ends_with_report_without_leaves(autojump_clock: MockClock) -> None:
    stage = Stage()
    await stage.append_record(rival_report())
    async with on_duty(stage):
        await trio.sleep(3)
        servers = stage.applied_state.state.servers
        assert [leaf.destination for leaf in servers[OWN].report.destinations] == [LEAF.base64]
        await stage.background_tasks.resign()
        assert stage.applied_state.state.servers[OWN].report.destinations == ()
        report = len(stage.records(Report))
        await trio.sleep(10)
        assert len(stage.records(Report)) == report
