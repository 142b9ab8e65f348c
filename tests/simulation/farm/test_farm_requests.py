"""The client that sends requests of other kinds finds wrong replies."""

import math
from itertools import count
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from bridge.node.control import metrics
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.events.event_log import EventLog
from tests.simulation.farm.disk import Disk
from tests.simulation.farm.fault_walk import FORMED_S
from tests.simulation.farm.request_client import RequestClient
from tests.simulation.farm.world import World, simulate

SEED = 1


def late(answer: Any) -> Any:
    async def answered(admin: Any, *arguments: Any) -> Any:
        await trio.sleep(60)
        return await answer(admin, *arguments)

    return answered


def without_first(read: Any) -> Any:
    def page(log: Any, cursor: int, *limit: int) -> Any:
        found = read(log, cursor, *limit)
        return replace(found, events=found.events[1:])

    return page


def falling(read: Any) -> Any:
    values = count(10**9, -1)

    def exposition(*arguments: Any) -> bytes:
        return bytes(read(*arguments)) + b"garlicfarm_planted_total %d\n" % next(values)

    return exposition


@pytest.mark.parametrize(
    ("check", "owner", "name", "fault"),
    [
        ("reply", FarmAdmin, "cluster", late),
        ("events", EventLog, "read", without_first),
        ("counter", metrics, "exposition", falling),
    ],
)
def test_request_client_finds_wrong_reply(
    check: str, owner: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        async with World.open(SEED, hosts=1, disk=Disk) as world, trio.open_nursery() as nursery:
            client = RequestClient(world, list, lambda: -math.inf)
            await world.start_all()
            nursery.start_soon(client.run)
            await trio.sleep(FORMED_S)
            assert not client.violations, f"seed {SEED}: {client.violations}"
            monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
            await trio.sleep(120)
            nursery.cancel_scope.cancel()
        return [each.check for each in client.violations]

    assert set(simulate(SEED, main)) == {check}, f"seed {SEED}"
