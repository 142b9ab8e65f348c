"""The state of all parts of the node, gathered into the view that all interfaces of the node show."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bridge import VERSION
from bridge.api.building.build_view import OTHERS_MAX, ViewInputs, build_view, encode_whole_view
from bridge.api.building.log_part import FarmInputs, ServerLink, directory_view
from bridge.api.events import event_sentence
from bridge.api.farm_facts import ContactWatch
from bridge.api.trace import TraceEvent
from bridge.api.view import EventView, FarmIdentity, FarmView, NodeView, Phase
from bridge.core.formation.messages import FormationPhase
from bridge.node.client_endpoints import ClientEndpoints
from bridge.node.control.counters import GossipTraffic, NodeEvent, RaftWork, by_key
from bridge.node.control.routes import ControlEvent
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.history.recorder import HistoryEvent
from bridge.node.joined_node import JoinedNode
from bridge.node.local_node import LocalNode
from bridge.node.raft.replica import Replica
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.wire.i2p.structures import I2pError, destination_from_base64
from consensus import integer_id, now_ms

RECENT_EVENTS = 50
_UNREADABLE = "unreadable"


@dataclass(slots=True, eq=False)
class ViewBuilder:
    """The builder of this node's view: of the farm, and of the node itself."""

    node: JoinedNode
    current: CurrentFarm
    control_counters: Mapping[ControlEvent, int]
    is_stopping: Callable[[], bool]
    clients: ClientEndpoints
    history_counters: Mapping[HistoryEvent, int]
    contact: ContactWatch
    _started_at: float = field(default_factory=time.monotonic, init=False)
    _addresses: dict[str, str] = field(default_factory=dict, init=False)
    _recent: tuple[tuple[TraceEvent, ...], tuple[EventView, ...]] = field(default=((), ()), init=False)

    def build(self) -> FarmView:
        """Return the present view of the farm."""
        return build_view(self._inputs())

    def build_for_verdict(self) -> FarmView:
        """Return the present view with the members that affect the verdict and the history."""
        return build_view(self._inputs(), OTHERS_MAX)

    def encode(self) -> bytes:
        """Return the JSON of the present view."""
        inputs = self._inputs()
        return encode_whole_view(inputs, build_view(inputs, OTHERS_MAX))

    def _inputs(self) -> ViewInputs:
        node, local, farm = self.node, self.node.local, self.current.farm
        directory = None if farm is None else farm.background_tasks.directory
        gossip = node.provider.describe()
        return ViewInputs(
            taken_at_ms=time.time_ns() // 1_000_000,
            node=self._node_view(farm),
            farm=self._identity(farm),
            endpoint=local.endpoint,
            gossip=gossip.core,
            gossip_counters=by_key(
                (
                    (GossipTraffic.DATAGRAMS_RECEIVED, gossip.wire.received),
                    (GossipTraffic.DATAGRAMS_SENT, gossip.wire.sent),
                    (GossipTraffic.BYTES_RECEIVED, gossip.wire.received_bytes),
                    (GossipTraffic.BYTES_SENT, gossip.wire.sent_bytes),
                    (GossipTraffic.EVENTS_LOST, gossip.wire.events_lost),
                    (GossipTraffic.PIGGYBACK_LEFT_OUT, gossip.wire.piggyback_left_out),
                ),
                gossip.wire.dropped.items(),
                gossip.core.dropped.items(),
            ),
            other_farms=gossip.wire.other_farms,
            metadata_of=node.member_directory.metadata_of,
            log=None if farm is None else _farm_inputs(local, farm, self.contact),
            address_of=self._address_of,
            alarms=local.alarms.active(),
            events=self._events(),
            counters=by_key(
                self.control_counters.items(),
                self.history_counters.items(),
                node.metrics.counts.items(),
                (
                    (NodeEvent.METADATA_UNREADABLE, node.member_directory.unreadable),
                    (NodeEvent.FOUNDINGS_IGNORED, node.forming.ignored_count),
                ),
                () if directory is None else directory.counts.items(),
                *(endpoint.counters.items() for endpoint in self.clients.values()),
            ),
        )

    def _node_view(self, farm: FoundedFarm | None) -> NodeView:
        configuration, provider = self.node.local.configuration, self.node.provider
        directory = None if farm is None else farm.background_tasks.directory
        return NodeView(
            name=configuration.name,
            node_id=provider.node_id.hex(),
            raft_id=None if farm is None else farm.replica.server_id,
            generation=provider.generation,
            pid=os.getpid(),
            version=VERSION,
            uptime_ms=int((time.monotonic() - self._started_at) * 1000),
            phase=self._phase(farm),
            control_address=str(configuration.state_dir / SOCKET_NAME),
            state_directory=str(configuration.state_dir),
            zmq_address=self.clients["zmq"].url if "zmq" in self.clients else None,
            kafka_address=self.clients["kafka"].url if "kafka" in self.clients else None,
            directory=None if directory is None else directory_view(directory.status),
        )

    def _phase(self, farm: FoundedFarm | None) -> Phase:
        if self.is_stopping():
            return Phase.STOPPING
        if farm is not None:
            votes = farm.replica.server_id in farm.replica.server.describe().raft.configuration.voter_ids
            return Phase.FOUNDED if votes else Phase.OBSERVER
        match self.node.forming.phase:
            case FormationPhase.FOUNDED:
                return Phase.FOUNDED
            case FormationPhase.OBSERVER:
                return Phase.OBSERVER
            case FormationPhase.PROMISED:
                return Phase.FORMING
            case FormationPhase.WATCHING:
                return Phase.DISCOVERING

    def _identity(self, farm: FoundedFarm | None) -> FarmIdentity:
        local, cluster_id = self.node.local, self.node.forming.cluster_id
        return FarmIdentity(
            label=local.farm_key.label.hex(),
            cluster=local.farm_key.cluster,
            cluster_id=None if cluster_id is None else cluster_id.hex(),
            expect=local.farm_key.expect,
            demo=local.configuration.demo,
            level=None if farm is None else farm.state.level,
        )

    def _events(self) -> tuple[EventView, ...]:
        """Return the last events; `recent` returns the same tuple until another event follows."""
        events = self.node.local.trace.recent(RECENT_EVENTS)
        if events is not self._recent[0]:
            shown = tuple(EventView(each.time_ms, each.kind, event_sentence(each) or each.kind) for each in events)
            self._recent = events, shown
        return self._recent[1]

    def _address_of(self, destination: str) -> str:
        known = self._addresses.get(destination)
        if known is None:
            try:
                known = destination_from_base64(destination).address
            except I2pError:
                known = _UNREADABLE
            if len(self._addresses) > 1024:  # noqa: PLR2004 - the limit of the cache
                self._addresses.clear()
            self._addresses[destination] = known
        return known


def _farm_inputs(local: LocalNode, farm: FoundedFarm, contact: ContactWatch) -> FarmInputs:
    server, applied_state = farm.replica.server.describe(), farm.applied_state
    return FarmInputs(
        state=farm.state,
        tuning=applied_state.farm.tuning,
        pace=local.pace,
        log_time_ms=applied_state.log_time.paced(now_ms()),
        raft=server.raft,
        first_index=server.raft.log_start.index + 1,
        applied_index=server.applied,
        waits=farm.reconciling.waits,
        election_timeout_ms=local.profile.raft.election_timeout_min_ms,
        leaderless_ms=farm.notices.leaderless_ms if server.raft.leader is None else None,
        alone=farm.background_tasks.view_without_quorum(),
        stands_still=farm.background_tasks.log_is_stalled,
        udp_blocked=contact.udp_blocked,
        not_reporting=contact.not_reporting,
        unapplied=farm.known.unapplied(server.raft.configuration),
        links=_links(farm.replica),
        lease_set_files=local.structure_files(),
        handed_over={task.master: task.last_published_ms // 1000 for task in farm.background_tasks.publishing},
        look_ups=applied_state.look_ups,
        counters=by_key(
            applied_state.records.items(),
            (
                (RaftWork.STRUCTURES_PUBLISHED, farm.background_tasks.published),
                (RaftWork.FIGURES_DROPPED, farm.background_tasks.figures_dropped),
                (RaftWork.DISK_GROUPS, server.groups),
                (RaftWork.DISK_PERSISTS, server.persists),
                (RaftWork.ENTRIES_REREAD, server.entries_reread),
            ),
            server.dropped,
            server.raft.dropped,
        ),
    )


def _links(replica: Replica) -> tuple[ServerLink, ...]:
    """Return the connections to other servers, with the extensions agreed in each handshake."""
    return tuple(
        ServerLink(
            integer_id(each.peer), each.connected, tuple(sorted(extension.value for extension in each.extensions))
        )
        for each in sorted(replica.links.describe(), key=lambda link: link.peer)
    )
