"""A node in contact with others: its parts with or without a farm.

    MembershipProvider ──▶ MemberDirectory ──▶ Forming ──▶ the farm is known
         └── metadata (notice, endpoint, fingerprint, Raft id) ◀──┘
    FarmKeys, FarmPeers, RequestGateway ──▶ Connecting: handshakes, both ways

When membership is open, these parts are made in this order, each from the earlier parts.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

import trio
from msgspec import Struct

from bridge import VERSION
from bridge.api.events import ADMITTED, FARM_FOUNDED, FARM_KNOWN, FARM_RESUMED, FOUNDING_PROMISED, EventType
from bridge.core.formation.founding import FormationNotice, Founding
from bridge.core.formation.messages import Founded
from bridge.core.state.farm_state import FarmState
from bridge.node.events.durations import Durations
from bridge.node.events.event_log import clock_ms
from bridge.node.local_node import Beginning, LocalNode
from bridge.node.membership.address_watch import AddressWatch
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.membership.farm_peers import FarmPeers, KnownFarm
from bridge.node.membership.forming import Forming
from bridge.node.membership.founding_clocks import CLOCK_QUERY, watch_founding_clocks
from bridge.node.membership.member_directory import MemberDirectory, OwnMetadata, first_metadata, metadata_bytes
from bridge.node.membership.membership_provider import (
    GroupKeys,
    MembershipProvider,
    introduce,
    open_membership,
    words_of,
)
from bridge.node.membership.own_name import watch_name
from bridge.node.membership.perspectives import OwnPerspective
from bridge.node.membership.user_messages import UserMessages
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.connecting import Connecting, Transport
from bridge.node.raft.refused_connections import RefusedConnections
from bridge.node.raft.replica import RequestGateway
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.settings.configuration import NodeConfiguration
from bridge.wire.membership.round_trips import ROUND_TRIPS_QUERY, write_round_trips
from bridge.wire.membership.short_view import VIEW_QUERY
from consensus.protocols.garlic_farm import Metrics
from gossip import NodeId, NodeInfo


class JoinedNode(Struct, frozen=True, kw_only=True):
    """The parts, made by `join`."""

    local: LocalNode
    provider: MembershipProvider
    own_metadata: OwnMetadata
    member_directory: MemberDirectory
    user_messages: UserMessages
    own_perspective: OwnPerspective
    forming: Forming
    peers: FarmPeers
    farm_keys: FarmKeys
    connecting: Connecting
    metrics: Metrics
    refused: RefusedConnections
    durations: Durations
    name_of_server: Callable[[int], str | None]
    """Returns the name that the log has; before that, the name that the member announces."""

    async def introduce(self, connected: Callable[[], Collection[int]]) -> None:
        """Introduce this node to others until canceled; with gossip, return immediately without an effect.

        `connected` returns the Raft ids of the servers that this node's server is connected to.
        """
        await introduce(
            self.provider,
            self.connecting,
            self.member_directory,
            settled=lambda: self.forming.outcome is not None,
            connected=connected,
            is_out=self.peers.is_out,
        )

    async def watch(self, written: NodeConfiguration, farm_state: Callable[[], FarmState | None]) -> None:
        """Watch the name, the addresses and the clock of this node until canceled.

        `written` is the operator's configuration. `farm_state` returns None while this node is not a server. Raise
        `NameTakenError` or `AddressChangedError` if the node must restart with other settings.
        """
        local, own_id, directory = self.local, self.provider.node_id, self.member_directory

        def is_recorded() -> bool:
            state = farm_state()
            admitted = () if state is None else state.admitted.values()
            return any(each.node_id == own_id and each.name is not None for each in admitted)

        def is_server() -> bool:
            return farm_state() is not None

        def knows_farm() -> bool:
            return self.forming.cluster_id is not None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(AddressWatch(local.configuration, written, local.alarms).run)
            cluster, name = local.farm_key.cluster, local.configuration.name
            nursery.start_soon(watch_name, local.configuration, own_id, cluster, directory, is_recorded, knows_farm)
            nursery.start_soon(watch_founding_clocks, self.provider, directory, name, local.alarms, is_server)


@asynccontextmanager
async def join(
    local: LocalNode,
    beginning: Beginning,
    transport: Transport,
    peers: FarmPeers,
    gateway: RequestGateway,
    offer_keys: Callable[[NodeInfo], bytes],
) -> AsyncIterator[JoinedNode]:
    """Stay in contact with others while the block lasts. `gateway` handles their connections."""
    metadata = first_metadata(local.farm_key.cluster, local.configuration.name, local.endpoint, transport.fingerprint)
    keys = GroupKeys(local.farm_key.key_ring, offer_keys, peers.may_send_keys)

    def name_of_server(server_id: int) -> str | None:
        admitted = None if peers.farm is None else peers.farm.applied_state.state.admitted.get(server_id)
        if admitted is None:
            return directory.name_of_server(server_id)  # assigned below
        name = admitted.name or directory.name_of(NodeId(admitted.node_id))
        return None if name == admitted.node_id.hex() else name

    refused = RefusedConnections(local.trace, local.alarms, name_of_server)
    metrics = Metrics(refused.incident, refused.connected)
    async with open_membership(local.configuration, metadata_bytes(metadata), keys, metrics) as provider:
        name = local.configuration.name
        directory = MemberDirectory(provider.node_id, name, provider.members)
        own_metadata = OwnMetadata(metadata, provider.set_metadata)
        forming = _forming(local, beginning, provider.node_id, own_metadata)
        farm_keys = FarmKeys(
            local.configuration.farm_key,
            local.farm_key,
            keyring=lambda: provider.keyring,
            cluster_id=lambda: forming.cluster_id,
        )
        own_perspective = OwnPerspective(
            lambda: 0 if peers.farm is None else peers.farm.applied_state.state.applied_index
        )
        answers = {**_answers(name, provider), VIEW_QUERY: own_perspective.answer}
        yield JoinedNode(
            local=local,
            provider=provider,
            own_metadata=own_metadata,
            member_directory=directory,
            user_messages=UserMessages(
                provider=provider,
                member_directory=directory,
                trace=local.trace,
                answers=answers,
                quiet=(CLOCK_QUERY, VIEW_QUERY),
            ),
            own_perspective=own_perspective,
            forming=forming,
            peers=peers,
            farm_keys=farm_keys,
            connecting=Connecting(
                local.configuration,
                transport,
                farm_keys,
                peers,
                gateway,
                lambda: gateway.identity,
                metrics,
                words_of(provider),
            ),
            metrics=metrics,
            refused=refused,
            durations=Durations(metrics.answers),
            name_of_server=name_of_server,
        )


def _answers(name: str, provider: MembershipProvider) -> dict[str, Callable[[], str]]:
    """Return the functions that make this node's replies to queries."""

    def round_trips() -> str:
        return write_round_trips(
            (member.node_id.hex(), float(member.round_trip_ms))
            for member in provider.describe().core.members
            if member.round_trip_ms is not None
        )

    return {
        "ping": lambda: name,
        "version": lambda: VERSION,
        ROUND_TRIPS_QUERY: round_trips,
        CLOCK_QUERY: lambda: str(clock_ms()),
    }


def _forming(local: LocalNode, beginning: Beginning, node_id: NodeId, own_metadata: OwnMetadata) -> Forming:
    def advertise(notice: FormationNotice) -> None:
        if notice.promise is not None and own_metadata.now.notice.promise is None:
            local.trace.append(FOUNDING_PROMISED, {"founders": len(notice.promise.founders)})
        own_metadata.notice_changed(notice)

    return Forming(
        local.configuration.state_dir,
        node_id,
        local.farm_key.expect,
        beginning.formation,
        advertise=advertise,
        alarms=local.alarms,
        trace=local.trace,
        cluster_id=local.farm_key.cluster_id,
        founders=local.configuration.founders or local.farm_key.founders or None,
        tuning=local.profile.formation,
    )


async def remembered_peers(local: LocalNode, beginning: Beginning) -> FarmPeers:
    """Return the peers, with the farm as stored on disk; raise UnusableFormationError."""
    return FarmPeers(beginning.identity, await _remembered_farm(local, beginning))


async def _remembered_farm(local: LocalNode, beginning: Beginning) -> KnownFarm | None:
    formation = beginning.formation
    founding = formation.founding or formation.known
    if founding is None:
        return None
    return await _known_farm(local, founding, beginning.identity.node_id, founded=formation.founding is not None)


async def _known_farm(local: LocalNode, founding: Founding, node_id: bytes, *, founded: bool) -> KnownFarm:
    """Return a farm before this node has its log. Raise UnusableFormationError.

    `founded`: this node is one of its founders.
    """
    state_dir = local.configuration.state_dir
    admissions = await trio.to_thread.run_sync(partial(AdmissionStore, state_dir, founding, node_id, founded=founded))
    empty = AppliedState(founding.log_time_base_ms, local.trace, founding.founders, founding.cluster_id)
    return KnownFarm(founding, admissions, empty)


async def settled_farm(node: JoinedNode) -> tuple[KnownFarm, EventType]:
    """Wait until the farm is created; return it, and the event that will report this node's Raft id."""
    local, is_known = node.local, node.peers.farm is not None
    outcome = await node.forming.until_settled()
    founded = isinstance(outcome, Founded)
    if not founded and not is_known:
        local.trace.append(FARM_KNOWN, {"cluster": outcome.founding.cluster_id.hex()})
    known = await _known_farm(local, outcome.founding, node.provider.node_id, founded=founded)
    return known, FARM_RESUMED if is_known else FARM_FOUNDED if founded else ADMITTED
