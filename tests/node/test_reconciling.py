"""The task of the leader's reconciliation on a node that does not lead, in virtual time."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.reconciling import Reconciling
from consensus.core.effects import Role, RoleChanged
from tests.node.farm_stage import OTHER, OWN, StageReplica, StageServer


async def test_reconciling_follower_waits_for_role_change(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    passes: list[str] = []
    monkeypatch.setattr(Reconciling, "_review", lambda *_: passes.append("review"))
    unused: Any = None
    server = StageServer(unused, RoleChanged(Role.FOLLOWER, 1, OTHER))
    replica = StageReplica(server)
    trace = EventLog("node", lambda: 0)
    parts: dict[str, Any] = dict.fromkeys(
        ("contact_within_ms", "own", "cluster", "known", "signer", "member_directory")
    ) | {
        "settings": SimpleNamespace(settle_ms=0),
        "replica": replica,
        "announce": lambda _: passes.append("rest"),
        "trace": trace,
        "alarms": Alarms(trace),
    }
    reconciling = Reconciling(**parts)
    nursery.start_soon(reconciling.run)
    await trio.sleep(60)
    assert passes == ["rest"]
    server.role = RoleChanged(Role.LEADER, 2, OWN)
    replica.change_role()
    await trio.sleep(2.2)
    assert passes == ["rest", "review", "review", "review"]
    reconciling.waits = ("node-3 waits for its vote",)
    await trio.sleep(2)
    assert passes[4:] == ["review", "review", "review"]
    server.role = RoleChanged(Role.FOLLOWER, 3, OTHER)
    replica.change_role()
    await trio.sleep(60)
    assert passes[7:] == ["rest"]
