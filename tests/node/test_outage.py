"""A node of a farm without a quorum continues to publish alone, raises an alarm, and yields when the log continues."""

from itertools import pairwise

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import PUBLISHING_WITHOUT_QUORUM, ROUTER
from bridge.core.log.records import Clock, Publication, Report
from bridge.core.state.log_time import LogTime
from bridge.node.tasks.published_store import PublishedStore
from bridge.wire.i2p.meta_lease_set import MetaLeaseSet, decode, verify
from consensus.core.model import Configuration, Server
from consensus.server.event_loop import now_ms
from tests.node.farm_stage import (
    LEAF,
    MASTER,
    NODE_IDS,
    NOW_MS,
    NOW_S,
    OTHER,
    OWN,
    PERIOD_MS,
    Stage,
    on_duty,
    rival_report,
)

pytestmark = pytest.mark.usefixtures("machine_clock")
QUORUM_TIMEOUT_S = 5


def structures(stage: Stage) -> list[MetaLeaseSet]:
    """Return the structures sent to the router, each verified."""
    decoded = [decode(each) for each in stage.router.published]
    assert all(verify(each).holds for each in decoded)
    return decoded


async def stage_of_other(period_ms: int = PERIOD_MS) -> Stage:
    """Return a stage where server 2 leads, is preferred and has published; this node is the next candidate."""
    stage = Stage(period_ms=period_ms)
    stage.lead(OTHER)
    await stage.append_record(Clock(NOW_MS + now_ms(), OTHER, period_ms))
    await other_publishes(stage)
    return stage


async def other_publishes(stage: Stage) -> Publication:
    """Make server 2 preferred, and accept its publication."""
    await stage.append_record(rival_report(1 + now_ms()))
    accepted = Publication(MASTER.destination.base64, OTHER, NOW_S + now_ms() // 1000, "00")
    await stage.append_record(accepted)
    return accepted


async def test_publisher_without_quorum_refreshes_with_alarm(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(20)
        stage.lose_quorum()
        await trio.sleep(QUORUM_TIMEOUT_S - PERIOD_MS / 1000 - 0.5)
        assert not stage.background_tasks.log_is_stalled
        await trio.sleep(QUORUM_TIMEOUT_S)
        assert stage.background_tasks.log_is_stalled
        # The structure from before the outage is fresh, so the node has not published alone yet.
        assert stage.alarm(PUBLISHING_WITHOUT_QUORUM.kind) is None
        await trio.sleep(1_000)
        assert stage.alarm(PUBLISHING_WITHOUT_QUORUM.kind) is not None
    seconds = [each.published_s for each in structures(stage)]
    assert len(seconds) >= 4
    assert all(270 <= later - earlier <= 331 for earlier, later in pairwise(seconds)), seconds
    assert len(stage.records(Publication)) == 1


async def test_successor_publishes_soon_after_quorum_timeout(autojump_clock: MockClock) -> None:
    period_ms = 30_000
    stage = await stage_of_other(period_ms)
    async with on_duty(stage):
        await trio.sleep(1)
        stage.lose_quorum()
        await trio.sleep(2.5 * period_ms / 1000 + 1.5)
        [structure] = structures(stage)
        assert structure.published_s > NOW_S
        assert {lease.destination_hash for lease in structure.leases} == {LEAF.hash}
        assert stage.alarm(PUBLISHING_WITHOUT_QUORUM.kind) is not None


async def test_node_leaves_publishing_to_reachable_last_publisher(autojump_clock: MockClock) -> None:
    stage = await stage_of_other()
    stage.reachable = {NODE_IDS[1]}
    async with on_duty(stage):
        await trio.sleep(1)
        stage.lose_quorum()
        await trio.sleep(60)
        assert stage.router.published == []
        stage.reachable = set()
        await trio.sleep(2)
        assert len(stage.router.published) == 1


async def test_structure_signed_without_quorum_is_shown(autojump_clock: MockClock) -> None:
    stage = await stage_of_other()
    async with on_duty(stage):
        await trio.sleep(1)
        assert stage.background_tasks.view_without_quorum() is None
        stage.lose_quorum()
        await trio.sleep(60)
        seen = stage.background_tasks.view_without_quorum()
        assert seen is not None
        [master] = seen.acting
        assert seen.acting[master] == OWN
        assert seen.signed[master].publication.published_s == structures(stage)[-1].published_s
        assert {each.destination for each in seen.signed[master].entries} == {LEAF.base64}


async def test_alarms_end_with_outage_and_next_publication_is_later(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(20)
        stage.lose_quorum()
        await trio.sleep(700)
        alone = structures(stage)[-1].published_s
        stage.regain_quorum(OWN)
        await trio.sleep(1.5)
        assert not stage.background_tasks.log_is_stalled
        await trio.sleep(3 * PERIOD_MS / 1000)
        assert stage.alarm(PUBLISHING_WITHOUT_QUORUM.kind) is None
        _, committed = stage.records(Publication)[-1]
        assert isinstance(committed, Publication)
        assert committed.published_s > alone
        assert structures(stage)[-1].published_s == committed.published_s


async def test_substitute_publisher_stops_after_later_publication(autojump_clock: MockClock) -> None:
    stage = await stage_of_other()
    async with on_duty(stage):
        await trio.sleep(1)
        stage.lose_quorum()
        await trio.sleep(60)
        assert len(stage.router.published) == 1
        stage.regain_quorum(OTHER)
        await stage.append_record(Clock(NOW_MS + now_ms(), OTHER, PERIOD_MS))
        await stage.append_record(rival_report(1 + now_ms()))
        await trio.sleep(2 * PERIOD_MS / 1000)
        # The node reports the structure that it published alone. This structure remains until a later one replaces it.
        reported = [record for _, record in stage.records(Report) if isinstance(record, Report)][-1]
        assert len(reported.masters) == 1
        assert reported.masters[0].last_published_time_ms == structures(stage)[-1].published_s * 1000
        assert stage.router.stopped == 0
        await stage.append_record(Clock(NOW_MS + now_ms(), OTHER, PERIOD_MS))
        await other_publishes(stage)
        await trio.sleep(1)
        assert stage.router.stopped == 1
        assert len(stage.router.published) == 1


async def test_node_started_during_outage_publishes_from_its_log(autojump_clock: MockClock) -> None:
    earlier = Stage()
    async with on_duty(earlier):
        await trio.sleep(20)
    stage = Stage()
    stage.lose_quorum()
    await trio.sleep(3_600)
    stage = Stage()
    stage.lose_quorum()
    stage.log, stage.times_ms = list(earlier.log), list(earlier.times_ms)  # on disk, and not yet known as committed
    async with on_duty(stage):
        await trio.sleep(10)
    [structure] = structures(stage)
    # Log time did not advance while the node was down; the node adds the missed time by its clock.
    assert abs(structure.published_s - (NOW_S + now_ms() // 1000)) <= 10
    assert stage.applied_state.state.applied_index == 0
    assert stage.background_tasks.log_is_stalled


async def test_removed_node_does_not_publish(autojump_clock: MockClock) -> None:
    stage = await stage_of_other()
    async with on_duty(stage):
        await trio.sleep(1)
        stage.server.configuration = Configuration((Server(OTHER, "tcp://127.0.0.1:2"),))
        stage.lose_quorum()
        await trio.sleep(100)
        assert stage.router.published == []
        assert not stage.background_tasks.log_is_stalled
        stage.server.configuration = Configuration(
            (Server(OWN, "tcp://127.0.0.1:1"), Server(OTHER, "tcp://127.0.0.1:2"))
        )
        # Half a second more than two checks of the task: the order of two tasks at the same moment is random.
        await trio.sleep(2.5)
        assert len(stage.router.published) == 1


@pytest.mark.parametrize("behind_s", [6, 40, 600])
async def test_seconds_of_publisher_rise_after_log_time_restarts(behind_s: int, autojump_clock: MockClock) -> None:
    # After `recover`, log time restarts at the last clock entry. The last structure is later.
    stored_s = NOW_S + 5
    published = PublishedStore(None)
    await published.note(MASTER.destination.hash, stored_s)
    stage = Stage(published=published)
    at_ms = NOW_MS - behind_s * 1000
    clocks = replace(stage.applied_state.state.clocks, vouched_ms=at_ms)
    stage.applied_state.farm.state = replace(stage.applied_state.state, log_time_ms=at_ms, clocks=clocks)
    stage.applied_state.log_time = LogTime(at_ms, now_ms(), PERIOD_MS)
    # The last report and the last publication of the old cluster. The first report of this run needs 4 s.
    await stage.append_record(replace(rival_report(), server_id=OWN, date_ms=at_ms, request="01-1-0-1"))
    await stage.append_record(Publication(MASTER.destination.base64, OWN, at_ms // 1000, "00"))
    stage.router.status_s = 4
    async with on_duty(stage):
        await trio.sleep(30)
        assert stage.alarm(ROUTER.kind) is None
    seconds = [each.published_s for each in structures(stage)]
    assert seconds
    assert min(seconds) > stored_s


async def test_stored_second_far_in_future_does_not_stop_publisher(autojump_clock: MockClock) -> None:
    published = PublishedStore(None)
    await published.note(MASTER.destination.hash, NOW_S + 10**8)
    stage = Stage(published=published)
    async with on_duty(stage):
        await trio.sleep(30)
        assert structures(stage)
