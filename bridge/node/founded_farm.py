"""The farm from the view of one of its servers: all parts that exist only while this node is a server of a farm.

    KnownFarm (founding, admissions.json, an empty applied state) ─┐
    JoinedNode ────────────────────────────────────────────────────┴─▶ open_founded_farm ──▶ FoundedFarm
         Replica ──▶ log ──▶ AppliedState ──▶ BackgroundTasks      reports, log time, publishing
                                         ├──▶ Reconciling          members of the group
                                         └──▶ Identities           evictions, eras of keys, the feature level

A `FoundedFarm` is complete when the replica runs, and its tasks end with the replica. Only `CurrentFarm` refers to the
present farm, if any. A listener, the control endpoint and gossip read `CurrentFarm` at each request. `CurrentFarm` is
empty before the node is a server, and for a moment when the node gets another Raft id.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.alarms import ROUTER
from bridge.api.control import Refused
from bridge.core.farm.state_machine import Change
from bridge.core.formation.member import FarmMember, MemberStatus
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import SharedAlarm
from bridge.node.events.event_log import clock_ms
from bridge.node.joined_node import JoinedNode
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.membership.identities import Identities
from bridge.node.membership.last_addresses import LastAddresses
from bridge.node.membership.level_raising import LevelRaising
from bridge.node.membership.reconciling import Reconciling, settings_of
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.handover_orders import HandoverOrders
from bridge.node.raft.notices import RaftNotices
from bridge.node.raft.replica import Replica, ReplicaSettings, open_replica
from bridge.node.raft.submitting import Submitting
from bridge.node.settings.configuration import reported_settings
from bridge.node.tasks.background_tasks import BackgroundTasks
from bridge.node.tasks.directory import Directory
from bridge.node.tasks.known_structures import KnownStructures
from bridge.node.tasks.published_store import PublishedStore
from bridge.node.tasks.task_context import TaskContext
from bridge.sam.connection import SamBridge
from consensus import NotLeaderError, ServerBusyError, ServerStoppedError, integer_id
from consensus.protocols.garlic_farm import PeerAddress
from gossip import Group, KeyOffered, NodeInfo

KEYS_PATIENCE_S = 5.0
"""Longest wait for the storage of a new key, in seconds."""
NO_SERVER = "this node is not a server of a farm yet (`garlicfarm status`): wait if it has just started, or use a voter"


class FoundedFarm(Struct, frozen=True, kw_only=True):
    """The parts of a server of the farm."""

    known: KnownFarm
    replica: Replica
    signer: EntrySigner
    submitting: Submitting
    """The submission of entries from clients and operators."""
    background_tasks: BackgroundTasks
    reconciling: Reconciling
    identities: Identities
    level_raising: LevelRaising
    notices: RaftNotices
    """Notices of the Raft server."""
    contact_within_ms: int
    """Longest age of a healthy member's last reply to the leader, in milliseconds."""
    in_contact: Callable[[bytes, float], bool]
    """Returns True if gossip reached an identity within this number of seconds (`MemberDirectory.is_in_contact`)."""
    endpoint_of: Callable[[bytes], str | None]
    """Returns the endpoint of an identity's Raft server, from its own description."""

    def is_present(self, server_id: int, within_s: float) -> bool:
        """Return True if another server was reachable within that time, by gossip or as a Raft server.

        Gossip alone would miss a server whose UDP is blocked. By Raft, a leader reaches all other servers, and a
        follower only the leader.
        """
        admitted = self.state.admitted.get(server_id)
        if admitted is not None and self.in_contact(admitted.node_id, within_s):
            return True
        server = self.replica.server
        if server.role.leader is not None and integer_id(server.role.leader) == server_id:
            return True
        ages_ms = [
            each.contact_ms
            for each in server.describe().raft.followers
            if each.contact_ms is not None and integer_id(each.server_id) == server_id
        ]
        return any(age_ms < within_s * 1000 for age_ms in ages_ms)

    async def catch_up(self, no_quorum: Callable[[], str | None] = lambda: None) -> None:
        """Apply all entries acknowledged before the call; raise `Refused` with the reason if that fails.

        If nothing can be committed now, `no_quorum` returns the reason.
        """
        try:
            await self.replica.read_barrier()
        except NotLeaderError as error:
            text = "no leader has confirmed the commit index in time, so this node may lack changes; try again"
            raise Refused(503, "no-leader", no_quorum() or text) from error
        except ServerBusyError as error:
            raise Refused(503, "busy", f"{error}; try again in a moment") from error
        except ServerStoppedError as error:
            raise Refused(503, "stopping", f"this node stops: {error}") from error

    async def wait_keys(self) -> None:
        """Wait until this node has stored the keys of the applied log; raise `Refused` if that takes too long."""
        with trio.move_on_after(KEYS_PATIENCE_S) as limit:
            await self.identities.wait_era()
        if limit.cancelled_caught:
            text = (
                f"the farm's keys were replaced (era {self.state.rekeying.era}), and this node has not stored the new"
                f" key within {KEYS_PATIENCE_S:g} s: try again, or use another node of the farm"
            )
            raise Refused(503, "busy", text)

    @property
    def applied_state(self) -> AppliedState:
        """The result of the log on this node."""
        return self.known.applied_state

    @property
    def state(self) -> FarmState:
        """The state that all servers share, after the last entry that this server has applied."""
        return self.known.applied_state.state

    @property
    def has_recent_state(self) -> bool:
        """True if a leader is known and this node has applied all entries of earlier terms."""
        role = self.replica.server.role
        # The first entry of a leader's term is a configuration, after all entries of earlier terms.
        return role.leader is not None and self.state.applied_term >= role.term


class CurrentFarm:
    """The farm that this node serves at the moment, if any."""

    def __init__(self, farm: FoundedFarm | None = None) -> None:
        self.farm = farm
        self._news = trio.Event()
        self._end = trio.Event()

    @contextmanager
    def of(self, farm: FoundedFarm) -> Iterator[None]:
        """Set the farm while the block lasts."""
        self.farm = farm
        self._news.set()
        try:
            yield
        finally:
            self.farm, self._news = None, trio.Event()
            self._end.set()
            self._end = trio.Event()

    def required(self) -> FoundedFarm:
        """Return the farm; raise `Refused` without one, for commands that only a server can carry out."""
        if self.farm is None:
            raise Refused(409, "no-server", NO_SERVER)
        return self.farm

    def serving(self) -> FoundedFarm:
        """Return the farm; raise `ServerStoppedError` without one, for endpoints of other clients."""
        if self.farm is None:
            raise ServerStoppedError(NO_SERVER)
        return self.farm

    async def founded(self) -> FoundedFarm:
        """Wait until there is a farm; return it."""
        while self.farm is None:
            await self._news.wait()
        return self.farm

    async def ended(self, farm: FoundedFarm) -> None:
        """Wait until the current farm is not this one any more."""
        while self.farm is farm:
            await self._end.wait()

    def replica(self) -> Replica | None:
        """Return the running Raft server, if any."""
        return None if self.farm is None else self.farm.replica

    def connected(self) -> frozenset[int]:
        """Return the Raft ids of the servers that this node's server is connected to."""
        return frozenset() if self.farm is None else self.farm.replica.connected()

    def offer_keys(self, applicant: NodeInfo) -> bytes:
        """Return this farm's reply to a node with a retired key."""
        return b"" if self.farm is None else self.farm.identities.offer_to(applicant)

    async def keys_offered(self, event: KeyOffered) -> None:
        """Handle a member's offer of another key. Without the farm an offer cannot be judged."""
        if self.farm is not None:
            await self.farm.identities.offered(event)


@asynccontextmanager
async def open_founded_farm(
    node: JoinedNode, known: KnownFarm, server_id: int, halt: Callable[[str], None]
) -> AsyncIterator[FoundedFarm]:
    """Run the server `server_id` of the farm while the block lasts; raise StorageError if that is impossible.

    `halt` is called with the reason if the log shows that this node is not a member of the farm any more.
    """
    local, connecting = node.local, node.connecting
    notices = RaftNotices(local.trace, local.alarms, node.name_of_server, node.durations.take_over)
    orders = HandoverOrders(local.trace, node.name_of_server)
    farm: FoundedFarm | None = None

    def changed(change: Change) -> None:
        if farm is not None:  # Set once the replica runs.
            farm.background_tasks.changed(change)

    structures = KnownStructures()
    applied = AppliedState(
        known.founding.log_time_base_ms,
        local.trace,
        known.founding.founders,
        known.founding.cluster_id,
        on_change=changed,
        on_entry_without_effect=local.ineffective.record,
        on_foreign=lambda entry: orders.committed(entry, applied.state.admitted, applied.state.clients),
        on_report=structures.reported,
        name_of=node.name_of_server,
    )
    known = replace(known, applied_state=applied)
    node.peers.farm = known
    state_dir = local.configuration.state_dir
    addresses = await trio.to_thread.run_sync(LastAddresses, state_dir, node.member_directory)
    settings = _replica_settings(node, known, server_id, addresses)
    published = await trio.to_thread.run_sync(PublishedStore, state_dir)
    async with (
        open_replica(settings, applied, node.metrics, node.durations, notices.observe) as replica,
        trio.open_nursery() as nursery,
    ):
        known = replace(known, group=replica.group)
        farm = _founded_farm(node, known, replica, notices, published, structures, halt)
        node.peers.farm = farm.known
        node.own_metadata.server_runs(server_id)
        nursery.start_soon(orders.run, replica)
        nursery.start_soon(notices.run, lambda: replica.server.disk_pending_ms)
        nursery.start_soon(farm.identities.run)
        nursery.start_soon(farm.level_raising.run)
        nursery.start_soon(known.admissions.follow, applied)
        nursery.start_soon(addresses.follow, known.admissions.identities)
        nursery.start_soon(node.peers.follow, farm.known, connecting.end_refused)
        nursery.start_soon(farm.reconciling.run)
        nursery.start_soon(farm.background_tasks.run)
        yield farm
        nursery.cancel_scope.cancel()


def _replica_settings(node: JoinedNode, known: KnownFarm, server_id: int, addresses: LastAddresses) -> ReplicaSettings:
    local, own_id = node.local, node.provider.node_id
    consensus = local.configuration.consensus
    own_address = PeerAddress(consensus.advertise.host, consensus.advertise.port, node.own_metadata.now.fingerprint)
    return ReplicaSettings(
        state_dir=local.configuration.state_dir,
        node_id=own_id,
        generation=node.provider.generation,
        server_id=server_id,
        founding=known.founding,
        node_id_of=known.admissions.node_id_of,
        cluster=local.farm_key.cluster,
        dialer=node.connecting.dialer,
        profile=local.profile,
        segment_bytes=consensus.segment_bytes,
        voters_max=consensus.voters_max,
        endpoint_of=_endpoints(node),
        # A submission to the leader may arrive at this server, if this server has just become the leader.
        address_of=lambda node_id: own_address if node_id == own_id else addresses.address_of(node_id),
        had_storage=known.admissions.was_server,
    )


def _founded_farm(
    node: JoinedNode,
    known: KnownFarm,
    replica: Replica,
    notices: RaftNotices,
    published: PublishedStore,
    structures: KnownStructures,
    halt: Callable[[str], None],
) -> FoundedFarm:
    local, provider = node.local, node.provider
    signer = EntrySigner(provider.identity_key, known.founding.cluster_id, known.applied_state)
    context = _task_context(node, known, replica, signer, published, structures)
    name = f"submit-{context.request_prefix}"

    def end_connections() -> None:
        node.connecting.end_connections()
        replica.links.reconnect()

    return FoundedFarm(
        known=known,
        replica=replica,
        signer=signer,
        submitting=Submitting(replica, known.applied_state, signer, name),
        background_tasks=BackgroundTasks(context),
        reconciling=_reconciling(node, known, replica, signer),
        identities=Identities(
            node_id=provider.node_id,
            group=provider if isinstance(provider, Group) else None,
            farm_keys=node.farm_keys,
            known=known,
            replica=replica,
            halt=halt,
            end_connections=end_connections,
            learn_outdated=node.member_directory.learn_outdated,
            trace=local.trace,
            alarms=local.alarms,
        ),
        level_raising=LevelRaising(
            replica, node.member_directory, lambda: known.applied_state.state, signer, local.alarms
        ),
        notices=notices,
        contact_within_ms=local.profile.contact_within_ms,
        in_contact=node.member_directory.is_in_contact,
        endpoint_of=_endpoints(node),
    )


def _endpoints(node: JoinedNode) -> Callable[[bytes], str | None]:
    own_id, own, directory = node.provider.node_id, node.local.endpoint, node.member_directory
    return lambda node_id: own if node_id == own_id else directory.endpoint_of(node_id)


def _reconciling(node: JoinedNode, known: KnownFarm, replica: Replica, signer: EntrySigner) -> Reconciling:
    local = node.local
    configuration = local.configuration
    return Reconciling(
        settings=settings_of(
            configuration.consensus, local.farm_key.expect, configuration.publishing.reporting_period_ms
        ),
        own=FarmMember(
            node.provider.node_id,
            MemberStatus.ALIVE,
            node.own_metadata.now,
            node.provider.public_key,
        ),
        contact_within_ms=local.profile.contact_within_ms,
        cluster=local.farm_key.cluster,
        known=known,
        replica=replica,
        signer=signer,
        member_directory=node.member_directory,
        announce=node.own_metadata.announce_admissions,
        trace=local.trace,
        alarms=local.alarms,
    )


def _task_context(
    node: JoinedNode,
    known: KnownFarm,
    replica: Replica,
    signer: EntrySigner,
    published: PublishedStore,
    structures: KnownStructures,
) -> TaskContext:
    local, applied_state = node.local, known.applied_state
    configuration = local.configuration
    sam = configuration.router.sam
    return TaskContext(
        cluster=local.farm_key.cluster,
        replica=replica,
        applied_state=applied_state,
        signer=signer,
        router=local.router,
        keys=local.masters.keys,
        keyless=local.masters.keyless,
        configuration=reported_settings(configuration),
        pace=local.pace,
        period_ms=configuration.publishing.reporting_period_ms,
        election_timeout_ms=local.profile.raft.election_timeout_min_ms,
        published=published,
        structures=structures,
        directory=None
        if sam is None
        else Directory(
            SamBridge(sam.host, sam.port),
            configuration.state_dir,
            local.trace,
            lambda address_hash: structures.reply_for(address_hash, applied_state.state.masters, clock_ms() // 1000),
        ),
        trace=local.trace,
        alarms=local.alarms,
        router_alarm=SharedAlarm(local.alarms, ROUTER),
        request_prefix=f"{node.provider.node_id.hex()}-{node.provider.generation}",
        reachable=node.member_directory.reachable,
    )
