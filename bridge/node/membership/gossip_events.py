"""The distribution of gossip's events to the parts of this node.

    a member's status or metadata ──▶ member directory, trace, formation
    an alarm of gossip            ──▶ the alarms; an identity conflict ends this node
    an offered key                ──▶ identities

An identity conflict (another live process has this identity) ends the node immediately, without a handover. Neither
process may vote until the other one has stopped. The node also ends if members know a later start (generation) of its
identity, because this process does not know the votes since that start. If events were lost, this node compares the
directory with gossip's members, and ends if gossip has halted.

*A server that voted in an earlier run checks for conflicts before it votes again* (`wait_for_conflicts`). A state
directory can be a clone of a running one, or older than the last run of the same identity. The files cannot show this:
a clone of a disk has the same inodes. Gossip discovers both within a few periods of the first contact, and ends the
node. A Raft server that starts before this check could vote, and two processes of one voter can elect two leaders.

So a server with a storage waits until gossip has a peer, and then for some periods more. The wait without a peer is
bounded, because a farm works over its Raft ports even if gossip does not get through.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from msgspec import Struct, field

from bridge.api.alarms import ALARMS, ISOLATED, KEY_RETIRED
from bridge.api.events import KEY_NEWS_REFUSED, MEMBER_ALIVE, MEMBER_DEAD, MEMBER_LEFT, MEMBER_SUSPECT
from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.events.event_log import EventLog
from bridge.node.membership.forming import Forming
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider, gossip_options
from bridge.node.membership.user_messages import UserMessages
from bridge.node.raft.storage_note import STORAGE_NOTE
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.settings.configuration import NodeConfiguration
from consensus import Histogram, log_failure, sleep_to_tick
from gossip import (
    Alarm,
    AlarmKind,
    GroupEvent,
    KeyOffered,
    KeyringUpdateRefused,
    MembershipChanged,
    NodeId,
    QueryReceived,
    Status,
    UserEventReceived,
)

PERIODS_WITH_A_PEER: Final = 5
PERIODS_WITHOUT: Final = 15
_CHANGES: Final = {
    Status.ALIVE: MEMBER_ALIVE,
    Status.SUSPECT: MEMBER_SUSPECT,
    Status.DEAD: MEMBER_DEAD,
    Status.LEFT: MEMBER_LEFT,
}
"""The event of a member's new status."""
SAMPLE_EVERY_S: Final = 10.0
_HALTED: Final = (
    "another live node uses this node's identity, so gossip has halted: this node stops. Two nodes must not share a"
    " state directory or a copy of one: give one of them a fresh state directory"
)
_FORGOTTEN: Final = (
    "It lost its later votes and acknowledgments, so it must not vote again: restore the newest state directory and"
    " start one process with it. If this directory is lost, start with an empty one, and run `garlicfarm"
    " node approve NAME` at another node"
)


class GossipEvents(Struct, frozen=True, kw_only=True):
    """The handler of gossip's events on one node; `follow` runs until the node ends."""

    agent: MembershipProvider
    member_directory: MemberDirectory
    forming: Forming
    offered: Callable[[KeyOffered], Awaitable[None]]
    """Handles an offered key."""
    farm_keys: FarmKeys
    user_messages: UserMessages
    trace: EventLog
    alarms: Alarms
    detections: Histogram = field(default_factory=Histogram)
    """Seconds from the suspicion of a member to its death."""
    _suspected_s: dict[NodeId, float] = field(default_factory=dict)

    async def follow(self) -> None:
        """Handle events until canceled; raise NodeStopped at an identity conflict or an outdated state directory."""
        agent, member_directory = self.agent, self.member_directory
        member_directory.refresh()
        events = agent.events()
        lost = 0
        async for numbered in events:
            try:
                await self._take(numbered.event)
            except (NodeStopped, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - logged: an event of one member must not end this node
                log_failure(self._take, error)
            lost += numbered.lost
            if events.has_more and not lost:
                continue  # read all members only after the last event
            if lost and agent.describe().core.halted:
                raise NodeStopped(_HALTED)
            members, peers = agent.counts
            if lost or len(member_directory) > members:
                lost = 0
                member_directory.refresh()
            if peers:
                self.alarms.clear(ISOLATED)
            self.forming.members_changed(member_directory.of_cluster(self.farm_keys.filed.cluster))

    async def _take(self, event: GroupEvent) -> None:
        match event:
            case MembershipChanged(info, status, previous, equivocates):
                self.member_directory.learn(info, status, equivocates=equivocates)
                if status is not previous:
                    self._time_detection(info.node_id, status)
                    name = self.member_directory.name_of(info.node_id)
                    self.trace.append(_CHANGES[status], {"member": name, "id": info.node_id.hex()})
            case Alarm():
                self._report(event)
            case KeyOffered():
                await self.offered(event)
            case KeyringUpdateRefused(sender, source):
                facts = {"id": sender.hex(), "from": f"{source.host}:{source.port}"}
                self.trace.append(KEY_NEWS_REFUSED, {**facts, "reason": "its sender is not admitted"})
            case UserEventReceived(user_event):
                self.user_messages.event_received(user_event)
            case QueryReceived(query):
                self.user_messages.query_received(query)

    def _time_detection(self, node_id: NodeId, status: Status) -> None:
        """Measure the time from suspicion to death. Only suspects are stored, so gossip bounds their number."""
        since_s = self._suspected_s.pop(node_id, None)
        if status is Status.SUSPECT:
            self._suspected_s[node_id] = trio.current_time()
        elif status is Status.DEAD and since_s is not None:
            self.detections.observe(trio.current_time() - since_s)

    def _report(self, alarm: Alarm) -> None:
        match alarm:
            case Alarm(AlarmKind.IDENTITY_CONFLICT, text):
                raise NodeStopped(text)
            case Alarm(AlarmKind.ROLLED_BACK, text):
                raise NodeStopped(f"{text}. {_FORGOTTEN}")
            case Alarm(kind, over=True):
                self.alarms.clear(ALARMS[kind.value])
            case Alarm(AlarmKind.KEY_RETIRED, text):
                self.alarms.set(KEY_RETIRED, text, self.farm_keys.way_back)
            case Alarm(kind, text):
                self.alarms.set(ALARMS[kind.value], text)


async def sample_round_trips(provider: MembershipProvider, durations: Histogram) -> None:
    """Record the round trips to this node's peers every 10 seconds, until canceled."""
    while True:
        await sleep_to_tick(SAMPLE_EVERY_S)
        for member in provider.describe().core.members:
            if member.is_peer and member.round_trip_ms is not None:
                durations.observe(member.round_trip_ms / 1000)


async def wait_for_conflicts(
    provider: MembershipProvider, member_directory: MemberDirectory, settings: NodeConfiguration
) -> None:
    """Wait long enough for a reply of a conflicting instance; without a storage, return immediately."""
    if settings.gossip is None or not await trio.Path(settings.state_dir / STORAGE_NOTE).exists():
        return
    period_s = gossip_options(settings.gossip).gossip_period_ms / 1000
    with trio.move_on_after(PERIODS_WITHOUT * period_s) as alone:
        while provider.counts[1] == 0:
            await member_directory.news()
    if not alone.cancelled_caught:
        await trio.sleep(PERIODS_WITH_A_PEER * period_s)
