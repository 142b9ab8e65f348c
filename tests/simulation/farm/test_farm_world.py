"""Whole nodes on virtual time: a farm forms, survives faults, and gives the same trace for the same seed."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from bridge.api.view import VerdictKind
from consensus.core.effects import Apply
from consensus.core.model import Entry
from consensus.server.applying import Applying
from tests.simulation.farm.command_line import CommandLine
from tests.simulation.farm.disk import Disk
from tests.simulation.farm.fault_walk import farm_with_faults, until_healthy, verdicts
from tests.simulation.farm.host import Run
from tests.simulation.farm.hostile import Parts
from tests.simulation.farm.interposing import APPLIED_AT_ONCE
from tests.simulation.farm.nemeses import Fault, Nemesis
from tests.simulation.farm.nemesis_driver import NemesisDriver
from tests.simulation.farm.observing import Observer
from tests.simulation.farm.oracle import LATE_S, Truth
from tests.simulation.farm.world import World, as_host, simulate

SEED = 33


@pytest.mark.soak
def test_faults_give_the_same_trace_in_two_processes() -> None:
    """Their hash seeds differ, unless the environment sets one. `test_farm_trial.py` compares trials."""
    command = [sys.executable, "-m", "tests.simulation.farm.fault_walk", str(SEED)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=True).stdout
    own = simulate(SEED, lambda: farm_with_faults(SEED))
    assert other.splitlines() == own
    assert len(own) > 100


def test_voters_with_different_keys_elect_leader_after_restart() -> None:
    """Gossip does not connect voters with different keys. Raft must still find their addresses."""

    async def main() -> None:
        async with World.open(SEED) as world:
            await world.start_all()
            await until_healthy(world)
            await world.kill("node-3")
            line = CommandLine(world)
            with line.installed():
                done = await line.at("node-1", "keys", "replace", "--yes")
            assert done.exit_code == 0, done.output
            await trio.sleep(15)
            for name in ("node-1", "node-2"):
                await world.kill(name)
            for name in ("node-2", "node-3"):
                await world.start(name)
            with trio.fail_after(60):
                while (await verdicts(world))["node-3"] is not VerdictKind.DEGRADED:  # noqa: ASYNC110 - verdicts have no event
                    await trio.sleep(1)

    simulate(SEED, main)


def test_restarted_farm_with_blocked_udp_elects_a_leader() -> None:
    """Gossip then fails, so the nodes need the addresses that they stored before the restart."""

    async def main() -> None:
        async with World.open(SEED) as world:
            await world.start_all()
            await until_healthy(world)
            world.network.link = replace(world.network.link, mtu_bytes=0, drops_fragments=True)
            for name in world.members:
                await world.kill(name)
            await world.start_all()
            with trio.fail_after(60):
                while set((await verdicts(world)).values()) != {VerdictKind.DEGRADED}:  # noqa: ASYNC110 - verdicts have no event
                    await trio.sleep(1)

    simulate(SEED, main)


def test_world_removes_its_directory() -> None:
    async def directory() -> Path:
        async with World.open(SEED, hosts=1) as world:
            assert world.directory.is_dir()
            return world.directory

    assert not simulate(SEED, directory).exists()


def test_world_with_contained_error_fails() -> None:
    async def contain_error() -> None:
        async with World.open(SEED, hosts=1):
            logging.getLogger("gossip").error("dropped", exc_info=LookupError("unexpected"))

    with pytest.raises(ExceptionGroup) as failed:
        simulate(SEED, contain_error)
    assert "seed 33: [\"dropped: LookupError('unexpected')\"]" in str(failed.value.exceptions[0])


async def facts_after_restarts() -> None:
    async with World.open(SEED, disk=Disk) as world:
        truth = Truth(world, NemesisDriver(world, (), Parts()), Observer(lambda: world.time_s))
        first, second, third = hosts = tuple(world.hosts.values())
        for host in hosts:
            host.run = Run()
        world.network.isolate(third.name)
        truth.look()
        await trio.sleep(LATE_S)
        first.starts += 1
        third.starts += 1
        truth.look()
        for host in hosts:
            host.run = None
        assert truth.lasts_s("works", second.name) == truth.lasts_s("lost", second.name, third.name) == LATE_S
        assert not truth.lasts_s("works", first.name)
        assert not truth.lasts_s("linked", first.name, second.name)
        assert not truth.lasts_s("lost", first.name, third.name)


def test_start_between_two_looks_begins_facts_again() -> None:
    simulate(SEED, facts_after_restarts)


async def quorum_before_and_after_removal() -> tuple[bool, bool]:
    """Return whether two of three members have a quorum: while an evicted server still votes, and later."""
    async with World.open(SEED, hosts=4, disk=Disk) as world:
        driver = NemesisDriver(world, (), Parts())
        truth = Truth(world, driver, Observer(lambda: world.time_s))
        first, second, _, evicted = world.hosts.values()
        driver.operator._go(evicted.name)
        first.run = second.run = Run()
        truth.look()
        await trio.sleep(LATE_S + 1)
        truth.look()
        before = truth.has_quorum(first.name)
        driver.operator.leaving.clear()
        after = truth.has_quorum(first.name)
        first.run = second.run = None
        return before, after


def test_evicted_server_counts_as_voter_until_its_removal() -> None:
    assert simulate(SEED, quorum_before_and_after_removal) == (False, True)


async def had_rotation() -> bool:
    """Return True if a trial without faults had a rotation of keys at any time."""
    async with World.open(SEED, hosts=1, disk=Disk) as world:
        truth = Truth(world, NemesisDriver(world, (), Parts()), Observer(lambda: world.time_s))
        truth.look()
        return truth.had((Nemesis.ROTATE,), inf)


def test_absent_fault_is_not_a_cause_at_any_time() -> None:
    assert not simulate(SEED, had_rotation)


async def arrived_sizes() -> tuple[list[int], list[int]]:
    """Return the sizes of the datagrams that arrive during a small MTU, and after it."""
    arrived: list[list[int]] = [[], []]
    async with World.open(SEED, hosts=2, disk=Disk) as world:
        small = Fault(0.0, 1.0, Nemesis.SMALL_MTU, (), 576.0)
        driver = NemesisDriver(world, (small,), Parts())
        await driver._begin(small)
        first, second = world.hosts.values()
        for found in arrived:
            for size in (548, 549):
                world.network.send_datagram(first, second, size, partial(found.append, size))
            await trio.sleep(1)
            await driver.heal()
    return arrived[0], arrived[1]


def test_small_mtu_drops_larger_datagrams_until_it_ends() -> None:
    assert simulate(SEED, arrived_sizes) == ([548], [548, 549])


async def tasks_between_entries() -> set[bool]:
    """Apply entries on a machine; return whether other tasks ran between two parts."""
    ran, parts = 0, []

    class Machine:
        async def apply(self, first: int, entries: tuple[Entry, ...]) -> None:
            assert len(entries) == APPLIED_AT_ONCE, first
            parts.append(ran)

    async def count() -> None:
        nonlocal ran
        while True:
            await trio.lowlevel.checkpoint()
            ran += 1

    async def unused(*arguments: object) -> tuple[Entry, ...]:
        raise AssertionError(arguments)

    async with World.open(SEED) as world, trio.open_nursery() as nursery:
        applying = Applying(cast("Any", Machine()), 1 << 20)
        applying.push(Apply(1, tuple(Entry.command(1, b"x") for _ in range(30 * APPLIED_AT_ONCE)), 1))
        with as_host(world.hosts["node-1"]):
            nursery.start_soon(applying.run, unused, cast("Any", unused))
        nursery.start_soon(count)
        await applying.wait_applied(30 * APPLIED_AT_ONCE)
        nursery.cancel_scope.cancel()
    return {later > earlier for earlier, later in pairwise(parts)}


def test_apply_task_yields_after_some_parts_by_seed() -> None:
    assert simulate(SEED, tasks_between_entries) == {False, True}
