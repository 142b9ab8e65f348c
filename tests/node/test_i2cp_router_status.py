"""What the I2CP router tells: its figures and alarms, look-ups, and the health of leaves."""

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
async def telling(
    monkeypatch: Patch, clock: Clock, control: FakeControl, software: Software = Software.JAVA
) -> AsyncIterator[Stage]:
    """A router that also has an I2PControl."""
    access = ControlAccess(Link("127.0.0.1", 7650), software, control.password, CONTROL_PATHS[software])
    async with trio.open_nursery() as nursery:
        with control_in_place_of_sockets(control, nursery, monkeypatch):
            async with stage(monkeypatch, clock, control_access=access) as on:
                yield on
        nursery.cancel_scope.cancel()


async def test_the_routers_own_figures_are_in_its_status(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with telling(monkeypatch, autojump_clock, FakeControl()) as on:
        status = await on.router.local_router_status()
        assert (status.uptime_ms, status.job_lag_ms) == (3_600_000, 12.5)
        assert (status.exploratory_tunnels, status.participating_tunnels) == (5, 120)
        assert status.configured_bandwidth_bytes_per_s == 160 * 1024
        assert status.current_bandwidth_bytes_per_s == 30_000


async def test_the_router_info_is_told_when_it_changed_and_once_an_hour(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    control = FakeControl()
    async with telling(monkeypatch, autojump_clock, control) as on:
        told = []
        for number in range(8):
            if number == 4:
                control.info["i2p.router.info"] = "bmV3ZXI="
            told.append((await on.router.local_router_status()).last_published_router_info)
            await trio.sleep(30)
        assert told == ["cm91dGVyaW5mbw==", None, None, None, "bmV3ZXI=", None, None, None]
        await trio.sleep(3600)
        assert (await on.router.local_router_status()).last_published_router_info == "bmV3ZXI="


async def test_a_status_that_cannot_be_had_is_an_alarm_and_spoils_nothing_else(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    control = FakeControl(up=False)
    async with telling(monkeypatch, autojump_clock, control) as on:
        status = await on.router.local_router_status()
        assert status.attached
        assert status.uptime_ms is None
        assert "nothing answers at 127.0.0.1:7650" in on.standing()["router-status"]
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        control.up = True
        assert (await on.router.local_router_status()).uptime_ms == 3_600_000
        assert on.standing() == {}


async def test_a_router_that_says_it_is_not_well_is_an_alarm(monkeypatch: Patch, autojump_clock: Clock) -> None:
    control = FakeControl()
    control.info["i2p.router.net.status"] = 13
    async with telling(monkeypatch, autojump_clock, control) as on:
        await on.router.local_router_status()
        assert "it does not have active peers" in on.standing()["router-status"]


# -- status and measurements -------------------------------------------------------------------------------------------


async def test_a_router_that_answers_is_attached_and_what_it_does_not_tell_is_unknown(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        status = await on.router.local_router_status()
        assert status.attached
        assert status.uptime_ms is None
        assert status.exploratory_tunnels is None
        assert status.participating_tunnels is None
        assert status.memory_percent is not None
        assert on.standing() == {}


async def test_a_router_that_is_down_is_an_alarm_and_its_leaves_are_ill_until_it_is_back(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert not (await on.router.local_router_status()).attached
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert "nothing answers at 127.0.0.1:7654" in on.standing()["router-unreachable"]
        on.fake.up = True
        await trio.sleep(60)
        assert (await on.router.local_router_status()).attached
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert on.standing() == {}


async def test_a_router_that_is_down_makes_no_report_late(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        for _ in range(10):
            await on.router.local_router_status()
        assert trio.current_time() == 0


async def test_a_router_whose_clock_is_off_is_an_alarm_and_still_gets_a_session(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(clock_offset_ms=-45_000)) as on:
        await on.router.local_router_status()
        assert "differs from this machine's by -45 s" in on.standing()["router-clock"]
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]


async def test_a_leaf_whose_lease_set_is_not_found_twice_in_a_row_has_no_tunnels(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
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


async def test_uptime_of_a_leaf_counts_from_when_it_became_healthy(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={LEAF.hash: LEAF})) as on:
        await on.router.local_router_status()
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 0
        await trio.sleep(30)
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 30_000


async def test_a_leaf_whose_service_does_not_answer_is_ill(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async def no_answer(host: str, port: int, timeout_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        return (host, port, timeout_s) != ("127.0.0.1", 80, 2.0)

    monkeypatch.setattr("bridge.node.router.router.answers", no_answer)
    async with stage(monkeypatch, autojump_clock, leaves=(ServedLeaf(LEAF, ("127.0.0.1", 80)),)) as on:
        await on.router.local_router_status()
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy


async def test_a_leaf_that_is_not_configured_is_an_error(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        assert await on.router.local_leaf_hashes(HASH) == (LEAF.hash,)
        with pytest.raises(RouterError, match="is not a leaf of this node"):
            await on.router.local_leaf_status(STRANGER.hash)


async def test_a_strangers_destination_is_measured_and_nothing_is_invented(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) == MeasuredStatus(reachable=True, fetch_ms=0)
        # One failure says too little.
        assert await on.router.remote_measured_status(OTHER.destination.hash) is None
        await trio.sleep(60)
        assert await on.router.remote_measured_status(OTHER.destination.hash) == MeasuredStatus(reachable=False)


async def test_a_look_up_is_repeated_at_most_once_a_minute(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        for _ in range(10):
            await on.router.remote_measured_status(STRANGER.hash)
        assert on.fake.lookups == 1


async def test_an_answer_with_another_destination_measures_nothing(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: LEAF}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None


async def test_without_the_router_nothing_is_measured(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None
