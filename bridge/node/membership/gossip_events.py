"""What gossip tells this node, passed on to whom it concerns.

    a member's status or metadata ──▶ roster, trace, formation
    an alarm of gossip            ──▶ the board; of a twin: the end of this node
    a key offered                 ──▶ identities

A live twin of this identity ends the node at once, without handing anything over: until one of the two is gone, neither
may vote in the name of both. So do words of a later life of its own: it has forgotten what it voted in that.
"""

from dataclasses import dataclass
from typing import Final

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.events.stopped import NodeStopped
from bridge.node.membership.forming import Forming
from bridge.node.membership.identities import Identities
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.node.security.farm_keys import FarmKeys
from gossip import (
    Alarm,
    AlarmKind,
    GroupEvent,
    KeyOffered,
    KeyringUpdateRefused,
    MembershipChanged,
    QueryReceived,
    UserEventReceived,
)

_FORGOTTEN: Final = (
    "What it voted and acknowledged since, it has forgotten, so it must not vote again: put the newest state directory"
    " back and start one process with it; or, if that is lost, start with an empty one, and at the leader `garlicfarm"
    " node approve NAME`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipEvents:
    """`follow` them for as long as the node lives."""

    agent: MembershipProvider
    member_directory: MemberDirectory
    forming: Forming
    identities: Identities
    farm_keys: FarmKeys
    trace: EventLog
    alarms: Alarms

    async def follow(self) -> None:
        """Until cancelled; raises NodeStopped when a twin lives."""
        agent, member_directory = self.agent, self.member_directory
        member_directory.refresh()
        events = agent.events()
        lost = 0
        async for numbered in events:
            await self._take(numbered.event)
            lost += numbered.lost
            if events.has_more:
                continue  # what follows looks at all members: once for all that has happened
            members, peers = agent.counts
            if lost or len(member_directory) > members:
                member_directory.refresh()
                lost = 0
            if peers:
                self.alarms.clear(AlarmKind.ISOLATED.value)
                self.alarms.clear(AlarmKind.KEY_RETIRED.value)
            self.forming.members_changed(member_directory.formation_members(self.farm_keys.filed.cluster))

    async def _take(self, event: GroupEvent) -> None:
        match event:
            case MembershipChanged(info, status, previous):
                self.member_directory.learn(info, status)
                if status is not previous:
                    name = self.member_directory.name_of(info.node_id)
                    self.trace.append(f"member-{status.name.lower()}", {"member": name, "id": info.node_id.hex()})
            case Alarm():
                self._heed(event)
            case KeyOffered():
                await self.identities.offered(event)
            case KeyringUpdateRefused(teller, source):
                facts = {"id": teller.hex(), "from": f"{source.host}:{source.port}"}
                self.trace.append("key-news-refused", {**facts, "reason": "its teller is not admitted"})
            case UserEventReceived() | QueryReceived():
                pass  # the farm itself says nothing that way

    def _heed(self, alarm: Alarm) -> None:
        match alarm:
            case Alarm(AlarmKind.IDENTITY_CONFLICT, text):
                raise NodeStopped(text)
            case Alarm(AlarmKind.ROLLED_BACK, text):
                raise NodeStopped(f"{text}. {_FORGOTTEN}")
            case Alarm(kind, over=True):
                self.alarms.clear(kind.value)
            case Alarm(AlarmKind.KEY_RETIRED, text):
                self.alarms.set(AlarmKind.KEY_RETIRED.value, text, self.farm_keys.way_back)
            case Alarm(AlarmKind.FOREIGN_VERSION, text):
                self.alarms.set(AlarmKind.FOREIGN_VERSION.value, text, "install the same release on every node")
            case Alarm(kind, text):
                self.alarms.set(kind.value, text, "see docs/reference/alarms.md")
