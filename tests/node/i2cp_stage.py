"""A stage for the I2CP router: a fake router that speaks I2CP, and a clock that advances with trio's clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.i2cp_publishing import I2cpAccess
from bridge.node.router.i2cp_router import I2cpRouter, I2cpRouterAccess
from bridge.node.router.link import ControlAccess, Credentials, Software
from bridge.node.router.router import ServedLeaf
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from tests.destinations import new_demo_leaf
from tests.node.fake_i2cp_router import LINK, NOW_S, FakeRouter, clock_now_ms, connections_in_memory

Patch = pytest.MonkeyPatch
Clock = trio.testing.MockClock

MASTER, OTHER = new_master_key(), new_master_key()
TRANSIENT = MASTER.sign_transient(NOW_S)
OLD_TRANSIENT = replace(TRANSIENT, session=None)
"""A key whose file an older version made."""
LEAF, STRANGER = new_demo_leaf(), new_demo_leaf()
HASH = MASTER.destination.hash


def structure(key: SigningKey = TRANSIENT, after_s: int = 0) -> bytes:
    published_s = NOW_S + after_s
    return encode(key.sign(published_s, (MetaLease(LEAF.hash, cost=3, ends_s=published_s + 900),)))


@dataclass
class Stage:
    """A node's router, the fake router it connects to, and the alarms."""

    router: I2cpRouter
    fake: FakeRouter
    alarms: Alarms

    def active(self) -> dict[str, str]:
        return {alarm.kind: alarm.text for alarm in self.alarms.active()}


@asynccontextmanager
async def stage(
    monkeypatch: Patch,
    clock: Clock,
    fake: FakeRouter | None = None,
    *keys: SigningKey,
    leaves: tuple[ServedLeaf, ...] = (ServedLeaf(LEAF),),
    credentials: Credentials | None = None,
    control_access: ControlAccess | None = None,
) -> AsyncIterator[Stage]:
    assert clock.autojump_threshold == 0
    fake = fake or FakeRouter()
    keys_by_hash = {key.destination.hash: key for key in keys or (TRANSIENT,)}
    access = I2cpAccess(LINK, Software.I2PD if fake.is_i2pd else Software.JAVA, credentials)
    alarms = Alarms(EventLog("node-1", clock_now_ms))
    router = I2cpRouter(
        I2cpRouterAccess(access, control_access),
        leaves,
        HostSampler(),
        LoopLag(),
        alarms,
        signing_key_of=keys_by_hash.get,
    )
    # The node ends before its router does.
    async with trio.open_nursery() as outer:
        with connections_in_memory(fake, outer, monkeypatch):
            async with trio.open_nursery() as inner:
                inner.start_soon(router.run)
                yield Stage(router, fake, alarms)
                inner.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        outer.cancel_scope.cancel()
