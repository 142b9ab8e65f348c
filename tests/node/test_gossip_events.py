"""Handling of gossip events on a node that lost some of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from bridge.api.alarms import ISOLATED, KEY_RETIRED
from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.events.event_log import EventLog
from bridge.node.membership.gossip_events import GossipEvents
from gossip import GroupEvent, NodeId, UserEvent, UserEventReceived
from gossip.core.messages import UserMessageId
from gossip.node.event_ring import EventRing
from tests.node.unexpected_errors import fail_first, tracebacks

LIMIT = 4


class Node:
    """The parts that receive events, and a ring that has lost one event."""

    def __init__(self, *, halted: bool = False, peers: int = 0) -> None:
        self.steps: list[str] = []
        ring: EventRing[GroupEvent] = EventRing(LIMIT)
        for time in range(LIMIT + 1):
            ring.append(UserEventReceived(UserEvent(UserMessageId(time, NodeId(bytes(16)), 1), "word", b"")))
        ring.close()
        trace = EventLog("oslo", lambda: 0)
        parts: dict[str, Any] = {
            "agent": SimpleNamespace(
                events=lambda: ring.after(0),
                counts=(peers, peers),
                describe=lambda: SimpleNamespace(core=SimpleNamespace(halted=halted)),
            ),
            "member_directory": self,
            "forming": SimpleNamespace(members_changed=lambda _: None),
            "user_messages": SimpleNamespace(event_received=lambda _: self.steps.append("event")),
            "farm_keys": SimpleNamespace(filed=SimpleNamespace(cluster="demo")),
            "offered": None,
        }
        self.events = GossipEvents(trace=trace, alarms=Alarms(trace), **parts)

    def __len__(self) -> int:
        return 0

    def refresh(self) -> None:
        """Record a refresh, in place of the member directory."""
        self.steps.append("refresh")

    def of_cluster(self, _cluster: str) -> tuple[()]:
        """Return no members, in place of the member directory."""
        return ()


async def test_lost_event_refreshes_members_before_next_event() -> None:
    node = Node()
    await node.events.follow()
    assert node.steps == ["refresh", "event", "refresh", "event", "event", "event"]


async def test_peer_ends_isolation_but_not_alarm_of_key() -> None:
    """A peer may have the same retired key, so a peer does not prove that the key is valid."""
    node = Node(peers=1)
    node.events.alarms.set(ISOLATED, "no peer answers")
    node.events.alarms.set(KEY_RETIRED, "a member refuses the key")
    await node.events.follow()
    assert [each.kind for each in node.events.alarms.active()] == [KEY_RETIRED.kind]


async def test_unexpected_error_about_event_does_not_end_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    fail_first(monkeypatch, node.events.user_messages, "event_received")
    await node.events.follow()
    assert node.steps == ["refresh", "refresh", "event", "event", "event"]
    assert tracebacks(caplog) == 1


async def test_node_that_lost_identity_conflict_alarm_stops() -> None:
    node = Node(halted=True)
    with pytest.raises(NodeStopped, match="uses this node's identity"):
        await node.events.follow()
    assert node.steps == ["refresh", "event"]
