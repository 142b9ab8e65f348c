"""The task of the leader's reconciliation on a node that does not lead, in virtual time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.reconciling import Reconciling
from consensus.core.effects import Role, RoleChanged
from gossip import NodeId
from tests.node.farm_stage import NODE_IDS, OTHER, OWN, StageReplica, StageServer


def reconciling_of(replica: StageReplica, announce: Callable[[object], None], **parts: Any) -> Reconciling:
    """Return the task with this replica; the other parts are not used."""
    trace = EventLog("node", lambda: 0)
    unused: dict[str, Any] = dict.fromkeys(
        ("contact_within_ms", "own", "cluster", "known", "signer", "member_directory")
    )
    used = {
        "settings": SimpleNamespace(settle_ms=0),
        "replica": replica,
        "announce": announce,
        "trace": trace,
        "alarms": Alarms(trace),
    }
    return Reconciling(**(unused | used | parts))


async def test_reconciling_follower_waits_for_role_change(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    passes: list[str] = []
    monkeypatch.setattr(Reconciling, "_review", lambda *_: passes.append("review"))
    unused: Any = None
    server = StageServer(unused, RoleChanged(Role.FOLLOWER, 1, OTHER))
    replica = StageReplica(server)
    reconciling = reconciling_of(replica, lambda _: passes.append("rest"))
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


async def test_resting_leader_reviews_after_change_of_member(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    reviews_s: list[float] = []

    def review(reconciling: Reconciling, *_: object) -> None:
        reviews_s.append(trio.current_time())
        reconciling._rests = True

    monkeypatch.setattr(Reconciling, "_review", review)
    unused: Any = None
    directory = MemberDirectory(NodeId(NODE_IDS[0]), "node-1", lambda: ())
    replica = StageReplica(StageServer(unused))
    nursery.start_soon(reconciling_of(replica, lambda _: None, member_directory=directory).run)
    await trio.sleep(11.5)
    assert reviews_s == [0, 5, 10]
    directory.refresh()
    await trio.sleep(1)
    assert reviews_s[3:] == [12]
