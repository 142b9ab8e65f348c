"""A node whose router refuses the structure: another able node publishes.

The first node gets its turn back later.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import ROUTER
from bridge.api.building.build_view import build_view
from bridge.api.view import VerdictView
from bridge.core.log.records import ConditionStatus, LeafFault, LeafStatus, Publication, PublishConfig, Report
from bridge.core.publishing.candidates import candidates_of
from bridge.core.publishing.score import Inability
from bridge.node.router.i2cp_publishing import I2cpAccess
from bridge.node.router.i2cp_router import LEASE_SET_NOT_FOUND, I2cpRouter, key_obstacle
from bridge.node.router.link import Software
from bridge.node.router.router import ServedLeaf
from bridge.node.tasks import publishing
from bridge.node.tasks.publishing import AWAY_FIRST_S, AWAY_LONGEST_S, FAILURES_BEFORE, PublishingTurns
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from tests.node import i2cp_stage
from tests.node.fake_i2cp_router import LINK, FakeRouter
from tests.node.farm_stage import MASTER, OTHER, OWN, PERIOD_MS, Stage, on_duty, rival_report
from tests.spec.farm_stories import Log
from tests.spec.test_build_view import INPUTS, B, farm_inputs, gossip, member, metadata

pytestmark = pytest.mark.usefixtures("machine_clock")
DESTINATION = MASTER.destination.base64


def test_turn_is_kept_after_one_failure() -> None:
    turns = PublishingTurns()
    turns.failed("refused", 0, 0)
    assert not turns.is_away(0)
    assert turns.failure_at(0) == "1970-01-01 00:00:00 UTC: refused"


def test_turn_pauses_grow_after_repeated_failures() -> None:
    turns, now_s, pauses = PublishingTurns(), 0.0, list[float]()
    for _ in range(FAILURES_BEFORE - 1):
        turns.failed("refused", now_s, 0)
    for _ in range(8):
        turns.failed("refused", now_s, 0)
        began_s = now_s
        while turns.is_away(now_s):
            now_s += 1
        pauses.append(now_s - began_s)
    assert pauses[0] == AWAY_FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == AWAY_LONGEST_S


def test_turn_state_is_reset_by_success() -> None:
    turns = PublishingTurns()
    turns.failed("refused", 0, 0)
    turns.failed("refused", 0, 0)
    turns.succeeded()
    assert not turns.is_away(1)
    assert turns.failure is None


async def test_failure_of_replaced_router_is_dropped_after_pause(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage, better_after=20_000 // PERIOD_MS):
        for is_attached, is_shown, after_s in ((True, True, 10), (False, True, 15), (True, False, AWAY_FIRST_S)):
            stage.router.status = replace(stage.router.status, attached=is_attached)
            await trio.sleep(after_s)
            part = stage.applied_state.state.servers[OWN].report.part_in(DESTINATION)
            assert part is not None
            assert (part.publish_failure is not None) is is_shown


def _rival(sequence: int, *, able: bool = True, lag_ms: int = 900) -> Report:
    """Return a report of server 2, with a lower score than this node's if its lag is high."""
    report = rival_report(sequence)
    [part] = report.masters
    part = replace(part, publish_config=PublishConfig.AUTO if able else PublishConfig.OFF)
    return replace(report, masters=(part,), router=replace(report.router, job_lag_ms=lag_ms))


@asynccontextmanager
async def on_duty_with_rival(
    stage: Stage, *, able: bool = True, better_after: int | None = None
) -> AsyncIterator[None]:
    """Run the node while server 2 reports in each period, with a lower score until report `better_after`."""

    async def report() -> None:
        sequence = 0
        while True:
            sequence += 1
            await stage.append_record(
                _rival(sequence, able=able, lag_ms=900 if better_after is None or sequence < better_after else 0)
            )
            await trio.sleep(PERIOD_MS / 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        async with on_duty(stage):
            yield
        nursery.cancel_scope.cancel()


def publisher(stage: Stage) -> int | None:
    return stage.applied_state.state.masters[DESTINATION].choice.server_id


async def test_node_with_refusing_router_passes_turn_on(autojump_clock: MockClock) -> None:
    """This node has the best score, but its router refuses; another able server publishes within 20 s."""
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage):
        await trio.sleep(20)
        assert publisher(stage) == OTHER
        state, tuning = stage.applied_state.state, stage.applied_state.farm.tuning
        own = next(each for each in candidates_of(state, DESTINATION, tuning) if each.server_id == OWN)
        assert own.inability is Inability.FAILING
        part = state.servers[OWN].report.part_in(DESTINATION)
        assert part is not None
        assert (part.publish_failure or "").endswith(" UTC: no tunnels")


async def test_node_with_recovered_router_publishes_again(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage):
        await trio.sleep(20)
        stage.router.refusal = None
        await trio.sleep(AWAY_FIRST_S + 30)
        assert publisher(stage) == OWN
        assert stage.router.published
        part = stage.applied_state.state.servers[OWN].report.part_in(DESTINATION)
        assert part is not None
        assert part.publish_failure is None


async def test_alarm_of_former_publisher_ends_without_another_turn(autojump_clock: MockClock) -> None:
    """The other node has the same score after 20 s, so it remains the publisher."""
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage, better_after=20_000 // PERIOD_MS):
        await trio.sleep(20)
        assert stage.alarm(ROUTER.kind) is not None
        await trio.sleep(AWAY_FIRST_S + 30)
        assert publisher(stage) == OTHER
        assert stage.alarm(ROUTER.kind) is None


async def test_alarm_remains_without_another_publisher(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router refuses and then stops, so that no node is able to publish."""
    longest_s = 2 * AWAY_FIRST_S
    monkeypatch.setattr(publishing, "AWAY_LONGEST_S", longest_s)
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage, able=False):
        await trio.sleep(20)
        stage.router.status = replace(stage.router.status, attached=False)
        await trio.sleep(longest_s + 60)
        assert publisher(stage) is None
        assert "no tunnels" in (stage.alarm(ROUTER.kind) or "")


async def test_node_with_permanently_refusing_router_retries_rarely(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage):
        await trio.sleep(450)
        assert stage.events("publish-failed") <= 5
        assert publisher(stage) == OTHER


async def test_sole_able_node_keeps_publishing(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.router.refusal = "no tunnels"
    async with on_duty_with_rival(stage, able=False):
        # After 75 s, the pause between two attempts has its maximum.
        await trio.sleep(150)
        assert publisher(stage) == OWN
        stage.router.refusal = None
        await trio.sleep(70)
        assert stage.router.published


async def test_node_with_unusable_key_cannot_publish(autojump_clock: MockClock) -> None:
    """The node does not try, and raises an alarm with the reason."""
    stage = Stage()
    stage.router.obstacle = "no session for an offline key"
    async with on_duty_with_rival(stage):
        await trio.sleep(20)
        assert publisher(stage) == OTHER
        assert stage.events("publish-failed") == 0
        assert "no session for an offline key" in (stage.alarm(ROUTER.kind) or "")


def verdict_at(stage: Stage) -> VerdictView:
    state = stage.applied_state.state
    log = replace(farm_inputs(Log()), state=state, log_time_ms=state.log_time_ms)
    known = {B: metadata("b", 2, "tcp://10.0.0.2:7669")}
    return build_view(replace(INPUTS, gossip=gossip(member(B)), metadata_of=known.get, log=log)).verdict


async def test_i2pd_node_with_old_key_file_is_never_chosen(autojump_clock: MockClock) -> None:
    """No other server reports, so the farm does not have a publisher."""
    stage = Stage()
    stage.router.obstacle = key_obstacle(I2cpAccess(LINK, Software.I2PD), i2cp_stage.OLD_TRANSIENT)
    assert stage.router.obstacle is not None
    async with on_duty(stage):
        await trio.sleep(100)
    chosen = [each.data["server"] for each in stage.trace.recent(4096) if each.kind == "publisher-chosen"]
    assert OWN not in chosen
    assert stage.records(Publication) == []
    assert stage.events("published") == stage.events("publish-failed") == 0
    assert verdict_at(stage).text == "Not published: no router accepts the structures"


@pytest.mark.parametrize(
    ("fake", "key", "obstacle"),
    [
        (FakeRouter(is_i2pd=True), i2cp_stage.OLD_TRANSIENT, "`garlicfarm keys offline`"),
        (FakeRouter(is_i2pd=True), i2cp_stage.TRANSIENT, None),
        (FakeRouter(is_i2pd=True), new_master_key().as_signing_key(), None),
        (FakeRouter(), i2cp_stage.TRANSIENT, None),
        (FakeRouter(), new_master_key(demo=True).as_signing_key(), "demonstration"),
    ],
    ids=["i2pd-old-transient", "i2pd-transient", "i2pd-master", "java-transient", "java-demo"],
)
async def test_router_reports_why_key_cannot_publish(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, fake: FakeRouter, key: SigningKey, obstacle: str | None
) -> None:
    async with i2cp_stage.stage(monkeypatch, autojump_clock, fake, key) as on:
        found = on.router.publishing_obstacle(key.destination.hash)
        assert found is None if obstacle is None else obstacle in (found or "")


async def test_i2pd_configured_as_java_cannot_publish(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The setting's default is `java`. i2pd would drop the structures without a reply."""
    key = new_master_key().as_signing_key()
    async with i2cp_stage.stage(monkeypatch, autojump_clock, FakeRouter(), key) as on:
        await on.router.local_router_status()
        assert on.router.publishing_obstacle(key.destination.hash) is None
        on.fake.is_i2pd = True
        await on.router.local_router_status()
        found = on.router.publishing_obstacle(key.destination.hash)
        assert 'is i2pd, and the settings have software = "java"' in (found or "")


async def test_i2pd_with_own_version_can_publish(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    """Present versions of i2pd repeat the version of the node; later versions may not."""
    key = new_master_key().as_signing_key()
    fake = FakeRouter(is_i2pd=True, own_version="0.9.70")
    async with i2cp_stage.stage(monkeypatch, autojump_clock, fake, key) as on:
        await on.router.local_router_status()
        assert on.router.publishing_obstacle(key.destination.hash) is None


async def _leaf_of(router: I2cpRouter) -> LeafStatus:
    await router.local_router_status()
    return await router.local_leaf_status(i2cp_stage.LEAF.hash)


async def test_leaf_of_stopped_router_has_router_fault(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with i2cp_stage.stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        leaf = await _leaf_of(on.router)
        assert leaf.faults == (LeafFault.ROUTER,)
        [router] = leaf.conditions
        assert router.last_error is not None
        assert router.last_error.startswith("nothing answers at its I2CP port")
        assert str(LINK.port) not in router.last_error, "all members read the report"


async def test_lease_set_is_unknown_while_router_is_stopped(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    fake = FakeRouter()
    async with i2cp_stage.stage(monkeypatch, autojump_clock, fake) as on:
        await trio.sleep(130)
        assert [each.condition for each in (await _leaf_of(on.router)).conditions] == [
            LeafFault.ROUTER,
            LeafFault.LEASE_SET,
        ]
        fake.up = False
        await fake.crash()
        await trio.sleep(10)
        router, lease_set = (await _leaf_of(on.router)).conditions
        assert (router.failures, router.age_ms) == (1, 0)
        assert lease_set == ConditionStatus(LeafFault.LEASE_SET, None, 1, LEASE_SET_NOT_FOUND)


async def test_leaf_without_lease_set_has_lease_set_fault(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with i2cp_stage.stage(monkeypatch, autojump_clock, FakeRouter()) as on:
        await trio.sleep(130)
        leaf = await _leaf_of(on.router)
        assert leaf.faults == (LeafFault.LEASE_SET,)
        assert leaf.conditions[1].last_error == LEASE_SET_NOT_FOUND


async def test_leaf_with_failing_probe_has_service_fault(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    leaf = ServedLeaf(i2cp_stage.LEAF, ("127.0.0.1", 1))
    async with i2cp_stage.stage(monkeypatch, autojump_clock, leaves=(leaf,)) as on:
        assert (await _leaf_of(on.router)).faults == (LeafFault.SERVICE,)
