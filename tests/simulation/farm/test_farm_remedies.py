"""Remedies of alarms in a farm: each printed command is typed, and ends its alarm."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.view import AlarmView
from bridge.node.control.client import ControlError
from bridge.node.control.orders import era_sealing
from bridge.wire.keys.box import seal_key
from tests.remedies.collect import ROOT, Remedy, in_sources, in_text
from tests.simulation.farm.command_line import CommandLine
from tests.simulation.farm.fault_walk import FORMED_S, until_healthy
from tests.simulation.farm.remedies import NOT_TYPED, TYPED, Remedies, path_of
from tests.simulation.farm.settings import Profile
from tests.simulation.farm.world import World, simulate

SEED: Final = 34
LATE_S: Final = 90.0
"""Longest time until an alarm."""


async def until_alarm(world: World, kind: str, within_s: float = LATE_S) -> None:
    with trio.fail_after(within_s):
        while True:
            for name in world.members:
                with suppress(ControlError):  # a node that does not run, or that starts
                    async with world.control(name) as client:
                        if kind in {each.kind for each in (await client.view()).alarms}:
                            return
            await trio.sleep(1)


async def typed_in(world: World) -> Counter[str]:
    """Apply the remedies; return the typed commands."""
    remedies = Remedies(world)
    assert await remedies.apply() == []
    assert not [each for each in remedies.skipped if each.partition(",")[0] not in TYPED | NOT_TYPED.keys()]
    return remedies.typed


async def waiting_node(world: World) -> None:
    await world.join(4)
    await until_alarm(world, "waiting-for-approval")
    assert await typed_in(world) == {"node approve": 1}
    await until_healthy(world)


async def outdated_key_file(world: World) -> None:
    line = CommandLine(world)
    with line.installed():
        assert (await line.at("node-1", "keys", "replace", "--yes")).exit_code == 0
    await until_alarm(world, "farm-key-file")
    assert (await typed_in(world))["keys export"] >= 1


async def damaged_key_file(world: World) -> None:
    (world.directory / "keys" / "farm.key").write_text("damaged", encoding="utf-8")
    await until_alarm(world, "farm-key-file")
    assert await typed_in(world) == {"mv": 1, "keys export": 1}


async def retired_key(world: World) -> None:
    await world.kill("node-3")
    await until_alarm(world, "servers-down")
    line = CommandLine(world)
    with line.installed():
        done = await line.at("node-1", "keys", "rotate", "--force")
    assert done.exit_code == 0, done.output
    await world.start("node-3")
    await until_alarm(world, "key-retired")
    assert (await typed_in(world))["keys export"] >= 1
    await until_healthy(world)


async def unreadable_keys(world: World) -> None:
    """Commit keys that no node can open, as a hostile leader does; a new replacement is the remedy."""
    line = CommandLine(world)
    await world.join(4)
    await until_alarm(world, "waiting-for-approval")
    unknown = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    with line.installed():
        with patch.object(era_sealing, "seal_key", lambda content, _, label: seal_key(content, unknown, label)):
            assert (await line.at("node-1", "keys", "replace", "--yes")).exit_code == 0
        await until_alarm(world, "key-retired")
        await world.stop("node-3")
        await world.start("node-3")
        assert (await line.at("node-1", "node", "approve", "node-4", "--yes")).exit_code == 0
        await trio.sleep(FORMED_S)
        for name in world.members:
            refused = await line.at(name, "keys", "export", str(world.directory / "refused.key"))
            assert "garlicfarm keys replace" in refused.output, f"{name}: {refused.output}"
        assert (await line.at("node-3", "keys", "replace", "--yes")).exit_code == 0
        await trio.sleep(5)
        for name in world.members:
            exported = await line.at(name, "keys", "export", str(world.directory / f"{name}.replaced.key"))
            assert exported.exit_code == 0, f"{name}: {exported.output}"
    await until_healthy(world)


async def lost_server(world: World) -> None:
    await world.kill("node-4")
    world.away.add("node-4")
    await until_alarm(world, "servers-down")
    assert await typed_in(world) == {"servers remove": 1}


async def in_sequence(*situations: Callable[[World], Awaitable[None]]) -> None:
    async with World.open(SEED, profile=Profile(admit="ask")) as world:
        await world.start_all()
        await trio.sleep(FORMED_S)
        await until_healthy(world)
        for each in situations:
            await each(world)


def test_typed_remedies_end_their_alarms() -> None:
    simulate(SEED, lambda: in_sequence(waiting_node, outdated_key_file, damaged_key_file, retired_key, lost_server))


def test_keys_that_no_node_can_open_are_replaced() -> None:
    simulate(SEED, lambda: in_sequence(unreadable_keys))


def advised_by_alarms() -> list[Remedy]:
    """Return the commands of the declarations of alarms, and of the modules that raise alarms."""
    found = []
    for each in in_sources():
        place = each.place.rpartition(":")[0]
        if place.startswith("bridge/core/") or (
            place.startswith(("bridge/api/", "bridge/node/"))
            and "bridge.api.alarms" in Path(ROOT / place).read_text(encoding="utf-8")
        ):
            found.append(each)
    return found


def test_alarm_command_is_in_one_table() -> None:
    paths = {path_of(each) for each in advised_by_alarms()}
    assert len(paths) > 20
    assert paths - TYPED - NOT_TYPED.keys() == set()
    assert not TYPED & NOT_TYPED.keys()


@pytest.mark.parametrize(
    ("action", "wrong", "skipped"),
    [
        ("`garlicfarm publish include LEAF`", "is in neither table", {}),
        ("`garlicfarm keys exprt FILE`", "has no command", {}),
        ("`garlicfarm help servers`", None, {"help": 1}),
        ("`garlicfarm servers remove NAME`", None, {"servers remove, general form": 1}),
        ("`chown 0 file`", None, {"chown": 1}),
    ],
)
async def test_untyped_command_is_counted_or_wrong(action: str, wrong: str | None, skipped: dict[str, int]) -> None:
    remedies = Remedies(SimpleNamespace(members={}))  # type: ignore[arg-type] # no command reaches the world
    alarm = AlarmView("servers-down", "a text", action)
    for remedy in in_text(alarm.action, "here"):
        await remedies.follow("node-1", alarm, remedy)
    assert [wrong is not None and wrong in each for each in remedies.wrong] == ([] if wrong is None else [True])
    assert remedies.skipped == skipped
