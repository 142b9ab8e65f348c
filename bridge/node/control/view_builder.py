"""Gathers what each part of the node says about itself, for the one picture that every surface shows."""

import os
import time
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from bridge.api.build_view import FarmSources, Link, Sources, picture
from bridge.api.trace import event_text
from bridge.api.view import EventView, FarmIdentity, FarmView, NodeView, Phase
from bridge.core.formation.messages import Phase as FormationPhase
from bridge.node.control.server import ControlServer
from bridge.node.membership.forming import Forming
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.reconciling import Reconciling
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.replica import Replica
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.router_choice import structure_files
from bridge.node.tasks.background_tasks import BackgroundTasks
from bridge.wire.i2p.structures import I2pError, destination_from_base64
from consensus import integer_id, now_ms

if TYPE_CHECKING:
    from bridge.node.app import Node
    from bridge.node.membership.membership_provider import MembershipProvider

RECENT_EVENTS = 50
_UNREADABLE = "unreadable"


class ViewBuilder:
    """What the node can see of itself and the farm."""

    def __init__(self, node: "Node", agent: "MembershipProvider", member_directory: MemberDirectory) -> None:
        self._node = node
        self._agent = agent
        self._member_directory = member_directory
        self._started_at = time.monotonic()
        self._version = _version()
        self._addresses: dict[str, str] = {}
        self._replica: Replica | None = None
        self._applied_state: AppliedState | None = None
        self._background_tasks: BackgroundTasks | None = None
        self._reconciling: Reconciling | None = None
        self.forming: Forming | None = None
        self.control: ControlServer | None = None

    def founded(
        self, replica: Replica, applied_state: AppliedState, background_tasks: BackgroundTasks, reconciling: Reconciling
    ) -> None:
        """From now on there is a farm to see."""
        self._replica, self._applied_state, self._background_tasks, self._reconciling = (
            replica,
            applied_state,
            background_tasks,
            reconciling,
        )

    def picture(self) -> FarmView:
        """The picture of this moment."""
        node = self._node
        gossip = self._agent.describe()
        return picture(
            Sources(
                taken_at_ms=time.time_ns() // 1_000_000,
                node=self._node_view(),
                farm=self._identity(),
                endpoint=node.endpoint,
                gossip=gossip.core,
                gossip_counters={
                    "datagrams_received": gossip.wire.received,
                    "datagrams_sent": gossip.wire.sent,
                    "bytes_received": gossip.wire.received_bytes,
                    "bytes_sent": gossip.wire.sent_bytes,
                    "events_lost": gossip.wire.events_lost,
                    "piggyback_left_out": gossip.wire.piggyback_left_out,
                    **_named("dropped", gossip.wire.dropped),
                    **_named("ignored", gossip.core.dropped),
                },
                facts=self._member_directory.facts(),
                farm_sources=self._farm_sources(),
                address_of=self._address_of,
                alarms=node.alarms.standing(),
                events=tuple(
                    EventView(event.time_ms, event.kind, event_text(event))
                    for event in node.trace.recent(RECENT_EVENTS)
                ),
                counters={
                    **({} if self.control is None else self.control.counters),
                    **_named("garlic_farm", node.metrics.counts),
                    "metadata_unreadable": self._member_directory.unreadable,
                    "foundings_ignored": 0 if self.forming is None else self.forming.ignored_count,
                },
            )
        )

    def _node_view(self) -> NodeView:
        configuration = self._node.configuration
        return NodeView(
            name=configuration.name,
            node_id=self._agent.node_id.hex(),
            raft_id=self._node.gateway.identity.server_id,
            generation=self._agent.generation,
            pid=os.getpid(),
            version=self._version,
            uptime_ms=int((time.monotonic() - self._started_at) * 1000),
            phase=self._phase(),
            control_address=str(configuration.state_dir / SOCKET_NAME),
            state_directory=str(configuration.state_dir),
        )

    def _phase(self) -> Phase:
        if self._node.stop.is_set():
            return Phase.STOPPING
        if self._replica is not None:
            votes = self._replica.server_id in self._replica.server.describe().raft.configuration.voter_ids
            return Phase.FOUNDED if votes else Phase.OBSERVER
        match None if self.forming is None else self.forming.phase:
            case FormationPhase.FOUNDED:
                return Phase.FOUNDED
            case FormationPhase.OBSERVER:
                return Phase.OBSERVER
            case FormationPhase.PROMISED:
                return Phase.FORMING
            case _:
                return Phase.DISCOVERING

    def _identity(self) -> FarmIdentity:
        key = self._node.farm_key
        known = None if self.forming is None else self.forming.known
        founded = None if self.forming is None or self.forming.founded is None else self.forming.founded.founding
        founding = founded or known
        return FarmIdentity(
            label=key.label.hex(),
            cluster=key.cluster,
            cluster_id=None if founding is None else founding.cluster_id.hex(),
            expect=key.expect,
            demo=self._node.configuration.demo,
            level=None if self._applied_state is None else self._applied_state.state.level,
        )

    def _farm_sources(self) -> FarmSources | None:
        if self._replica is None or self._applied_state is None or self._background_tasks is None:
            return None
        server = self._replica.server.describe()
        return FarmSources(
            state=self._applied_state.state,
            tuning=self._applied_state.farm.tuning,
            pace=self._node.pace,
            log_time_ms=self._applied_state.log_time.paced(now_ms()),
            raft=server.raft,
            first_index=server.raft.log_start.index + 1,
            applied_index=server.applied,
            waits=() if self._reconciling is None else self._reconciling.waits,
            links=_links(self._replica),
            lease_set_files=structure_files(self._node.router, self._node.masters.keys),
            counters={
                **self._applied_state.records,
                "structures_published": self._background_tasks.published,
                "disk_groups": server.groups,
                "disk_persists": server.persists,
                "entries_reread": server.entries_reread,
                **_named("dropped", dict(server.dropped)),
                **_named("ignored", dict(server.raft.dropped)),
            },
        )

    def _address_of(self, destination: str) -> str:
        known = self._addresses.get(destination)
        if known is None:
            try:
                known = destination_from_base64(destination).address
            except I2pError:
                known = _UNREADABLE
            if len(self._addresses) > 1024:  # noqa: PLR2004 - a bound, not a meaning
                self._addresses.clear()
            self._addresses[destination] = known
        return known


def _links(replica: Replica) -> tuple[Link, ...]:
    """The connections to the other servers, with what each handshake agreed on."""
    return tuple(
        Link(integer_id(each.peer), each.connected, tuple(sorted(extension.value for extension in each.extensions)))
        for each in sorted(replica.links.describe(), key=lambda link: link.peer)
    )


def _named(prefix: str, values: Mapping[str, int]) -> dict[str, int]:
    return {f"{prefix}_{''.join(c if c.isalnum() else '_' for c in name)}": value for name, value in values.items()}


def _version() -> str:
    try:
        return metadata.version("garlicfarm")
    except metadata.PackageNotFoundError:
        return "unknown"
