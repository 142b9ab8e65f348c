"""The standby of a publisher: its session, the structure in force, and its reports."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import ROUTER
from bridge.core.log.records import MetaStatus, Publication, PublishConfig, Report
from bridge.node.tasks import standby
from bridge.node.tasks.standby import STEADY_PERIODS
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from bridge.wire.i2p.structures import base64_encode
from consensus.server.event_loop import now_ms
from tests.node.farm_stage import LEAF, MASTER, NOW_S, OTHER, PERIOD_MS, Stage, on_duty, rival_report

pytestmark = pytest.mark.usefixtures("machine_clock")
DESTINATION = MASTER.destination.base64
PERIOD_S = PERIOD_MS / 1000
STEADY_S = (STEADY_PERIODS + 4) * PERIOD_S
"""Longest time from a change until this node reports its new role, with a margin.

It covers a report of the publisher (1 period), a review (1 s), the steady periods, a second review, and a report of
this node.
"""
THIRD = 3
STRUCTURE_LIFE_S = 200
KEYS = {server_id: MASTER.sign_transient(NOW_S) for server_id in (OTHER, THIRD)}


def second() -> int:
    """Return the present second of the machine's clock."""
    return NOW_S + now_ms() // 1000


def structure(server_id: int, second_s: int) -> bytes:
    return encode(KEYS[server_id].sign(second_s, (MetaLease(LEAF.hash, cost=3, ends_s=second_s + STRUCTURE_LIFE_S),)))


@dataclass
class Others:
    """The reports of the other servers: server 2 publishes, and server 3 may be a better standby than this node.

    As in a farm, each structure is in one report only.
    """

    structure: bytes
    publisher: int = OTHER
    third: PublishConfig = PublishConfig.OFF
    sequence: int = 0
    sent: bytes = b""

    async def publish(self, stage: Stage, server_id: int = OTHER) -> bytes:
        """Commit a publication of the publisher, and report its structure from now on; return it."""
        second_s = second()
        await stage.append_record(Publication(DESTINATION, server_id, second_s, "00"))
        known = stage.applied_state.state.masters[DESTINATION].publication
        assert known is not None
        assert (known.server_id, known.published_s) == (server_id, second_s)
        self.structure = structure(server_id, second_s)
        return self.structure

    def report(self, server_id: int) -> Report:
        """Return the next report of a server; the publisher's contains its structure."""
        self.sequence += 1
        report = rival_report(self.sequence)
        [part] = report.masters
        config = {OTHER: PublishConfig.ON, THIRD: self.third}[server_id]
        text = base64_encode(self.structure) if server_id == self.publisher and self.structure != self.sent else None
        self.sent = self.sent if text is None else self.structure
        part = replace(part, publish_config=config, last_published_lease_set=text)
        request = f"0{server_id}-1-0-{self.sequence}"
        return replace(report, server_id=server_id, masters=(part,), destinations=(), request=request)


@asynccontextmanager
async def beside_publisher(stage: Stage) -> AsyncIterator[Others]:
    """Run the node while server 2 publishes; both other servers report in each period."""
    others = Others(structure(OTHER, second()))
    servers = {OTHER, THIRD}

    async def report() -> None:
        while True:
            for server_id in servers & {others.publisher, THIRD}:
                await stage.append_record(others.report(server_id))
            await trio.sleep(PERIOD_S)

    await stage.append_record(others.report(OTHER))
    await others.publish(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        async with on_duty(stage):
            yield others
        nursery.cancel_scope.cancel()


def own_part(stage: Stage) -> MetaStatus:
    """Return the part of this node's last report about the master."""
    [part] = stage.applied_state.state.servers[1].report.masters
    return part


async def test_next_candidate_is_ready_after_some_periods(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep((STEADY_PERIODS - 1) * PERIOD_S)
        assert stage.router.kept_ready == []
        await trio.sleep(STEADY_S)
        assert set(stage.router.kept_ready) == {(others.structure, False)}
        assert own_part(stage).standby


async def test_standby_neither_publishes_nor_reports_publishing(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage):
        await trio.sleep(60)
        assert stage.background_tasks.published == stage.events("published") == stage.events("publishing-stopped") == 0
        part = own_part(stage)
        assert (part.publishing, part.last_published_time_ms, part.last_published_lease_set) == (False, 0, None)
        assert stage.router.published == []
        assert {each.server_id for _, each in stage.records(Publication) if isinstance(each, Publication)} == {OTHER}


async def test_standby_gets_each_newer_structure(autojump_clock: MockClock) -> None:
    """The first structure of a new publisher is urgent, because the publisher's router may still build tunnels."""
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        newer = await others.publish(stage)
        await trio.sleep(2 * PERIOD_S)
        assert stage.router.kept_ready[-1] == (newer, False)
        others.third, others.publisher = PublishConfig.ON, 0
        await trio.sleep(4 * PERIOD_S)
        others.publisher = THIRD
        of_third = await others.publish(stage, THIRD)
        await trio.sleep(2 * PERIOD_S)
        assert (of_third, True) in stage.router.kept_ready
        assert (newer, True) not in stage.router.kept_ready


@pytest.mark.parametrize(
    "damaged",
    [
        lambda: b"rubbish",
        lambda: encode(
            new_master_key().as_signing_key().sign(second(), (MetaLease(LEAF.hash, cost=3, ends_s=second() + 900),))
        ),
        lambda: structure(OTHER, second())[:-1] + b"?",
        lambda: structure(OTHER, second() + 3600),
        lambda: structure(OTHER, second() - 700),
    ],
    ids=["rubbish", "other-master", "unsigned", "future", "old"],
)
async def test_invalid_reported_structure_is_not_used(autojump_clock: MockClock, damaged: Callable[[], bytes]) -> None:
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        good, others.structure = others.structure, damaged()
        await trio.sleep(2 * PERIOD_S)
        assert {each for each, _ in stage.router.kept_ready} == {good}
        later = await others.publish(stage)
        await trio.sleep(2 * PERIOD_S)
        assert stage.router.kept_ready[-1] == (later, False)


async def test_standby_takes_over_with_its_session(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        others.publisher = 0  # Server 2 stops.
        await trio.sleep(4 * PERIOD_S)
        assert len(stage.router.published) == 1
        assert stage.router.stopped == 0
        await trio.sleep(2 * PERIOD_S)
        part = own_part(stage)
        assert (part.publishing, part.standby) == (True, False)


async def test_briefly_better_candidate_does_not_end_standby(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        for _ in range(5):
            others.third = PublishConfig.AUTO
            [part] = others.report(THIRD).masters
            await stage.append_record(replace(others.report(THIRD), masters=(replace(part, standby=True),)))
            await trio.sleep(PERIOD_S)
            others.third = PublishConfig.OFF
            await trio.sleep(2 * PERIOD_S)
        assert stage.router.stopped == 0
        assert own_part(stage).standby


async def test_deposed_publisher_becomes_standby_in_same_session(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with on_duty(stage):
        await trio.sleep(6)
        await stage.append_record(rival_report())
        others = Others(b"", sequence=10)
        await others.publish(stage)
        await trio.sleep(2 * PERIOD_S)
        assert stage.events("publishing-stopped") == 1
        assert stage.router.stopped == 0
        assert own_part(stage).standby
        await stage.append_record(others.report(OTHER))
        await trio.sleep(2)
        assert stage.router.kept_ready[-1] == (others.structure, False)


async def test_node_that_is_no_longer_standby_ends_session(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage):
        await trio.sleep(STEADY_S)
        assert own_part(stage).standby
        stage.router.obstacle = "no session for this key"
        await trio.sleep(STEADY_S)
        assert stage.router.stopped == 1
        assert not own_part(stage).standby


async def test_session_ends_with_last_valid_structure(autojump_clock: MockClock) -> None:
    """An evicted node does not receive entries, so its state names it as the standby permanently."""
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        others.structure, good = b"rubbish", others.structure
        await trio.sleep(STRUCTURE_LIFE_S - 2 * STEADY_S)
        assert stage.router.stopped == 0
        await trio.sleep(3 * STEADY_S)
        assert stage.router.stopped == 1
        assert not own_part(stage).standby
        assert {each for each, _ in stage.router.kept_ready} == {good}
        await others.publish(stage)
        await trio.sleep(STEADY_S)
        assert own_part(stage).standby


async def test_session_that_is_not_ready_raises_an_alarm(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble_after_s = 60.0
    monkeypatch.setattr(standby, "TROUBLE_AFTER_S", trouble_after_s)
    stage = Stage()
    stage.router.refusal = "another client has a session for the same destination"
    async with beside_publisher(stage):
        await trio.sleep(STEADY_S + trouble_after_s / 2)
        assert stage.alarm(ROUTER.kind) is None
        await trio.sleep(trouble_after_s)
        assert "the standby of the publisher, but its session is not ready: another" in (stage.alarm(ROUTER.kind) or "")
        stage.router.refusal = None
        await trio.sleep(2 * PERIOD_S)
        assert stage.alarm(ROUTER.kind) is None


async def test_standby_tries_router_each_second_until_ready(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    stage.router.refusal = "no tunnels yet"
    others = Others(structure(OTHER, second()))
    await stage.append_record(others.report(OTHER))
    await others.publish(stage)
    async with on_duty(stage):
        for _ in range(STEADY_PERIODS + 2):
            await stage.append_record(others.report(OTHER))
            await trio.sleep(30)
        await stage.append_record(others.report(OTHER))
        await trio.sleep(4)
        calls = len(stage.router.kept_ready)
        await trio.sleep(10)
        assert len(stage.router.kept_ready) - calls >= 9


async def test_standby_keeps_its_session_without_quorum(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with beside_publisher(stage) as others:
        await trio.sleep(STEADY_S)
        others.publisher = 0
        stage.lose_quorum()
        await trio.sleep(60)
        assert stage.router.stopped == 0
