"""Status of the I2CP router: figures, alarms, look-ups, and the health of leaves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from bridge.node.router.link import CONTROL_PATHS, ControlAccess, Link, Software
from bridge.node.router.router import MeasuredStatus, RouterError, ServedLeaf
from tests.node.fake_i2cp_router import FakeRouter
from tests.node.fake_i2pcontrol import FakeControl, control_in_place_of_sockets
from tests.node.i2cp_stage import HASH, LEAF, OTHER, STRANGER, Clock, Patch, Stage, stage, structure

# -- figures by I2PControl ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def stage_with_control(
    monkeypatch: Patch, clock: Clock, control: FakeControl, software: Software = Software.JAVA
) -> AsyncIterator[Stage]:
    """Run a router that also has an I2PControl."""
    access = ControlAccess(Link("127.0.0.1", 7650), software, control.password, CONTROL_PATHS[software])
    async with trio.open_nursery() as nursery:
        with control_in_place_of_sockets(control, nursery, monkeypatch):
            async with stage(monkeypatch, clock, control_access=access) as on:
                yield on
        nursery.cancel_scope.cancel()


async def test_status_contains_figures_of_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage_with_control(monkeypatch, autojump_clock, FakeControl()) as on:
        status = await on.router.local_router_status()
        assert (status.uptime_ms, status.job_lag_ms) == (3_600_000, 12.5)
        assert (status.exploratory_tunnels, status.participating_tunnels) == (5, 120)
        assert status.configured_bandwidth_bytes_per_s == 160 * 1024
        assert status.current_bandwidth_bytes_per_s == 30_000


async def test_router_info_is_reported_on_change_or_hourly(monkeypatch: Patch, autojump_clock: Clock) -> None:
    control = FakeControl()
    async with stage_with_control(monkeypatch, autojump_clock, control) as on:
        reported = []
        for number in range(8):
            if number == 4:
                control.info["i2p.router.info"] = "bmV3ZXI="
            reported.append((await on.router.local_router_status()).last_published_router_info)
            await trio.sleep(30)
        assert reported == ["cm91dGVyaW5mbw==", None, None, None, "bmV3ZXI=", None, None, None]
        await trio.sleep(3600)
        assert (await on.router.local_router_status()).last_published_router_info == "bmV3ZXI="


async def test_unavailable_status_raises_alarm_only(monkeypatch: Patch, autojump_clock: Clock) -> None:
    control = FakeControl(up=False)
    async with stage_with_control(monkeypatch, autojump_clock, control) as on:
        status = await on.router.local_router_status()
        assert status.attached
        assert status.uptime_ms is None
        assert "nothing answers at 127.0.0.1:7650" in on.active()["router-status"]
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        control.up = True
        assert (await on.router.local_router_status()).uptime_ms == 3_600_000
        assert on.active() == {}


async def test_unhealthy_network_status_raises_alarm(monkeypatch: Patch, autojump_clock: Clock) -> None:
    control = FakeControl()
    control.info["i2p.router.net.status"] = 13
    async with stage_with_control(monkeypatch, autojump_clock, control) as on:
        await on.router.local_router_status()
        assert "it does not have active peers" in on.active()["router-status"]


# -- status and measurements -------------------------------------------------------------------------------------------


async def test_attached_router_without_i2pcontrol_has_unknown_figures(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        status = await on.router.local_router_status()
        assert status.attached
        assert status.uptime_ms is None
        assert status.exploratory_tunnels is None
        assert status.participating_tunnels is None
        assert status.memory_percent is not None
        assert on.active() == {}


async def test_unreachable_router_raises_alarm_with_unhealthy_leaves(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert not (await on.router.local_router_status()).attached
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert "nothing answers at 127.0.0.1:7654" in on.active()["router-unreachable"]
        on.fake.up = True
        await trio.sleep(60)
        assert (await on.router.local_router_status()).attached
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert on.active() == {}


async def test_unreachable_router_does_not_delay_report(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        for _ in range(10):
            await on.router.local_router_status()
        assert trio.current_time() == 0


async def test_router_with_wrong_clock_raises_alarm_but_publishes(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(clock_offset_ms=-45_000)) as on:
        await on.router.local_router_status()
        assert "differs from this machine's by -45 s" in on.active()["router-clock"]
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]


async def test_leaf_not_found_twice_is_unhealthy(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={LEAF.hash: LEAF})) as on:
        await on.router.local_router_status()
        await trio.sleep(1)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        on.fake.known.clear()
        await trio.sleep(60)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        await trio.sleep(60)
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy
        on.fake.known[LEAF.hash] = LEAF
        await trio.sleep(60)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy


async def test_uptime_of_leaf_starts_when_it_is_healthy(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={LEAF.hash: LEAF})) as on:
        await on.router.local_router_status()
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 0
        await trio.sleep(30)
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 30_000


async def test_leaf_with_unresponsive_service_is_unhealthy(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async def failure(host: str, port: int, timeout_s: float) -> str | None:
        await trio.lowlevel.checkpoint()
        return "no reply" if (host, port, timeout_s) == ("127.0.0.1", 80, 2.0) else None

    monkeypatch.setattr("bridge.node.router.router.probe_failure", failure)
    async with stage(monkeypatch, autojump_clock, leaves=(ServedLeaf(LEAF, ("127.0.0.1", 80)),)) as on:
        await on.router.local_router_status()
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy


async def test_unconfigured_leaf_is_an_error(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        assert await on.router.local_leaf_hashes(HASH) == (LEAF.hash,)
        with pytest.raises(RouterError, match="is not a leaf of this node"):
            await on.router.local_leaf_status(STRANGER.hash)


async def test_foreign_destination_is_unreachable_after_two_failures(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) == MeasuredStatus(reachable=True, fetch_ms=0)
        # A single failure is not sufficient.
        assert await on.router.remote_measured_status(OTHER.destination.hash) is None
        await trio.sleep(60)
        assert await on.router.remote_measured_status(OTHER.destination.hash) == MeasuredStatus(reachable=False)


async def test_look_up_is_repeated_at_most_once_per_minute(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        for _ in range(10):
            await on.router.remote_measured_status(STRANGER.hash)
        assert on.fake.lookups == 1


async def test_reply_with_other_destination_is_not_a_measurement(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: LEAF}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None


async def test_destination_is_not_measured_without_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None
