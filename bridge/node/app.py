"""One router node: the composition root, where the parts are made and joined, and nothing is decided.

    keys, identity, certificate
      │
    Garlic Farm listener ──▶ RequestGateway                  (refuses until there is a replica)
    company (gossip) ──▶ members ──▶ Forming ──▶ founded, or admitted ──▶ Replica + Ledger ──▶ Duties, Reconciling
      ▲                             │                                    │
      └── metadata (notice, endpoint, fingerprint, Raft id) ◀────────────┘
    control endpoint ──▶ NodePort ──▶ picture

A node that sees a farm which others founded waits until the leader tells it that the log has admitted it, and under
which Raft id; then it is a server like the founders, of which the leader makes a learner, and a voter if there is room.

The node ends when it is told to (signal, `leave`, or its parent's pipe closing), and when going on would be wrong: a
twin of its identity lives, its storage is damaged, a task failed. Then the reason is the last line that it writes.
"""

import logging
import os
import signal
import sys

import trio

from bridge.api.trace import TraceEvent, event_text
from bridge.core.farm.state_machine import Change
from bridge.core.formation.founding import FormationNotice, FormationState, Founding
from bridge.core.publishing.publication import Pace
from bridge.node.control.access import open_remote_access
from bridge.node.control.identity_admin import IdentityAdmin
from bridge.node.control.key_admin import key_port
from bridge.node.control.node_port import NodePort
from bridge.node.control.server import ControlLimits, ControlServer
from bridge.node.control.view_builder import ViewBuilder
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog, cause_of, clock_ms
from bridge.node.events.stopped import NodeStopped
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.membership.farm_peers import FarmPeers, KnownFarm
from bridge.node.membership.forming import Forming, load_formation
from bridge.node.membership.gossip_events import GossipEvents
from bridge.node.membership.identities import Identities
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider, acquaint, open_membership
from bridge.node.membership.node_metadata import OwnMetadata
from bridge.node.membership.own_raft_id import OwnRaftId
from bridge.node.membership.reconciling import OwnIdentity, Reconciling, ReconcilingParts, settings_of
from bridge.node.membership.startup_guard import wait_for_conflicts
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.connecting import Connecting
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.farm_content import RejectedContent
from bridge.node.raft.handover import hand_over_before_stop, until_removed
from bridge.node.raft.ineffective_entries import IneffectiveEntries
from bridge.node.raft.raft_events import note_raft
from bridge.node.raft.refused_connections import RefusedConnections
from bridge.node.raft.replica import RAFT_DIRECTORY, Replica, ReplicaSettings, RequestGateway, open_replica
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.security.control_socket import SOCKET_NAME, answers
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.local_trust import UntrustedPathError, make_state_directory
from bridge.node.settings.choices import Pace as PaceSetting
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.descriptors import descriptor_shares
from bridge.node.settings.masters import load_masters
from bridge.node.settings.reported import reported_settings
from bridge.node.settings.router_choice import make_router
from bridge.node.settings.timing import profile_of
from bridge.node.tasks.background_tasks import BackgroundTasks
from bridge.node.tasks.published_store import PublishedStore
from bridge.node.tasks.task_context import TaskContext, router_alarm
from consensus import ContentRejected, Notice, RoleChanged, integer_id
from consensus.protocols.garlic_farm import ConnectionRole, Identity, Metrics, PeerAddress
from consensus.storage import check_place
from gossip.node import load_identity

LOG = logging.getLogger("garlicfarm")
NOT_ADMITTED_ALARM = "not-admitted"


class Node:
    """The parts of one node while it runs."""

    def __init__(self, configuration: NodeConfiguration) -> None:
        self.configuration = configuration
        self.farm_keys = FarmKeys(configuration.farm_key)
        self.farm_key = self.farm_keys.filed
        self.masters = load_masters(configuration.masters, configuration.leaves)
        self.trace = EventLog(configuration.name, clock_ms, on_event=_log_event)
        self.alarms = Alarms(self.trace)
        self.refused = RefusedConnections(self.trace, self.alarms)
        self.ineffective = IneffectiveEntries(self.alarms)
        self.metrics = Metrics(self.refused.incident, self.refused.connected)
        self.gateway = RequestGateway()
        self.host = HostSampler()
        self.lag = LoopLag()
        self.router = make_router(configuration, self.host, self.lag, self.alarms, self.masters.keys)
        self.stop = trio.Event()
        self.leaving = False
        self._verdict = ""
        self.identities = Identities(self.farm_keys, self.trace, self.alarms, self._halt)
        self.gateway.is_out = self.identities.is_out
        self._background_tasks: BackgroundTasks | None = None

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, *, stop_with_stdin: bool) -> None:
        """Lives until told to stop. Raises NodeStopped, and what the parts raise when they cannot start."""
        settings = self.configuration
        try:
            await trio.to_thread.run_sync(make_state_directory, settings.state_dir)
        except UntrustedPathError as error:
            raise NodeStopped(str(error)) from error
        if answers(settings.state_dir / SOCKET_NAME):
            # Asked first: otherwise its ports would be what is found in use, and blamed.
            raise NodeStopped(
                f"a node already runs with the state directory {settings.state_dir}: look at it with `garlicfarm status"
                f" --node {settings.state_dir}`, or give this one another state_dir and ports",
            )
        settings.router.directory.mkdir(parents=True, exist_ok=True)
        # Before anybody hears this process: a copy that spoke first could make the original take itself for the twin.
        await trio.to_thread.run_sync(check_place, settings.state_dir / RAFT_DIRECTORY)
        identity = await trio.to_thread.run_sync(load_identity, settings.state_dir)
        formation = load_formation(settings.state_dir, identity.node_id)
        self._remember_farm(formation, identity.node_id)
        peers = FarmPeers(identity)
        connecting = await trio.to_thread.run_sync(Connecting, settings, self.farm_keys, self.metrics, peers)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._wait_for_signals)
            if stop_with_stdin:
                nursery.start_soon(self._wait_for_parent)
            nursery.start_soon(self.lag.run)
            nursery.start_soon(self.router.run)
            await self._listen(nursery, connecting)
            nursery.start_soon(connecting.watch, self.alarms)
            nursery.start_soon(self.refused.run)
            nursery.start_soon(self.ineffective.run)
            own_metadata = OwnMetadata(self.farm_key.cluster, settings.name, self.endpoint, connecting.fingerprint)
            async with open_membership(
                settings,
                own_metadata,
                self.farm_key.key_ring,
                connecting,
                self.identities.offer_to,
                self.identities.may_tell_keys,
            ) as agent:
                own_metadata.speak_through(agent.set_metadata)
                self.farm_keys.follow(lambda: agent.keyring)
                self.identities.follow(agent)
                await self._live(agent, own_metadata, connecting, peers, formation)
            nursery.cancel_scope.cancel()
        if self._verdict:
            raise NodeStopped(self._verdict)

    def _remember_farm(self, formation: FormationState, node_id: bytes) -> None:
        """What this node knows of its farm counts from the first datagram on."""
        founding = formation.founding or formation.known
        if founding is not None:
            founded = formation.founding is not None
            self.identities.belongs(AdmissionStore(self.configuration.state_dir, founding, node_id, founded=founded))

    async def _live(
        self,
        agent: MembershipProvider,
        own_metadata: OwnMetadata,
        connecting: Connecting,
        peers: FarmPeers,
        formation: FormationState,
    ) -> None:
        settings = self.configuration
        member_directory = MemberDirectory(agent.node_id, settings.name, agent.members)
        sight = ViewBuilder(self, agent, member_directory)
        forming = Forming(
            settings.state_dir,
            agent.node_id,
            self.farm_key.expect,
            formation,
            advertise=lambda notice: self._advertise(own_metadata, notice),
            alarms=self.alarms,
            trace=self.trace,
            cluster_id=self.farm_key.cluster_id,
            tuning=profile_of(settings.consensus.timing).formation,
        )
        sight.forming = forming
        acquaint(agent, member_directory, forming, self.gateway, peers.is_out)
        port = NodePort(
            make_view=sight.picture,
            trace=self.trace,
            leave=self._leave,
            withdraw=forming.withdraw,
            confirm=forming.confirm,
            keys=key_port(agent, member_directory, self.farm_keys, sight.picture, self.trace),
        )
        remote = open_remote_access(settings.state_dir, settings.control_listen)
        office = IdentityAdmin(agent, member_directory, self.farm_keys, self.trace)
        events = GossipEvents(
            agent=agent,
            member_directory=member_directory,
            forming=forming,
            identities=self.identities,
            farm_keys=self.farm_keys,
            trace=self.trace,
            alarms=self.alarms,
        )
        shares = descriptor_shares()
        limits = ControlLimits(
            connections=shares.control_local,
            remote_connections=shares.control_remote,
            remote_strangers=shares.control_remote,
        )
        control = ControlServer(settings.state_dir / SOCKET_NAME, port, limits, remote, office.handlers)
        sight.control = control
        self.trace.append("node-started", {"pid": os.getpid(), "generation": agent.generation})
        async with trio.open_nursery() as nursery:
            await nursery.start(control.run)
            nursery.start_soon(events.follow)
            nursery.start_soon(forming.run)
            nursery.start_soon(self.farm_keys.watch_file, self.alarms)
            nursery.start_soon(
                self._be_member, agent, own_metadata, member_directory, forming, sight, port, connecting, office, peers
            )
            await self.stop.wait()
            self.trace.append("node-stopping", {"leaving": self.leaving})
            if self.leaving and self._background_tasks is not None:
                await self._background_tasks.resign()
            handed_over = await hand_over_before_stop(self.gateway.replica)
            if handed_over is not None:
                self.trace.append("leadership-handed-over", handed_over)
            if self.leaving:
                await agent.leave()
                if self.gateway.replica is not None and await until_removed(self.gateway.replica, self.farm_key.expect):
                    self.trace.append("removed-from-farm", {})
            nursery.cancel_scope.cancel()

    async def _listen(self, nursery: trio.Nursery, connecting: Connecting) -> None:
        bind = self.configuration.consensus.bind
        try:
            await connecting.listen(nursery, (bind.host, bind.port), self.gateway, lambda: self.gateway.identity)
        except OSError as error:
            raise NodeStopped(
                f"consensus.bind = {bind.host}:{bind.port} cannot be opened ({error.strerror or error}): choose an"
                " address of this machine and a port that no other process uses",
            ) from error

    async def _be_member(
        self,
        agent: MembershipProvider,
        own_metadata: OwnMetadata,
        member_directory: MemberDirectory,
        forming: Forming,
        sight: ViewBuilder,
        port: NodePort,
        connecting: Connecting,
        office: IdentityAdmin,
        peers: FarmPeers,
    ) -> None:
        await forming.until_settled()
        if forming.founded is None:
            cluster = "" if forming.known is None else forming.known.cluster_id.hex()
            self.trace.append("farm-known", {"cluster": cluster})
        founding = forming.known if forming.founded is None else forming.founded.founding
        if founding is None:
            raise AssertionError("formation is settled")
        self.farm_keys.belong_to(founding.cluster_id)
        notes = AdmissionStore(
            self.configuration.state_dir, founding, agent.node_id, founded=forming.founded is not None
        )
        self.identities.belongs(notes)
        cluster_id = founding.cluster_id.hex()
        calls = connecting.dialer(lambda: Identity(cluster_id), ConnectionRole.CLIENT)
        raft_id = OwnRaftId(notes, member_directory, calls, founding, peers.is_out)
        kind = "admitted" if forming.founded is None else "farm-founded"
        while True:
            peers.farm = KnownFarm(founding, notes, self._new_ledger(founding), self._group)
            if notes.own_id is None:
                self.alarms.set(
                    NOT_ADMITTED_ALARM,
                    f"this router ({agent.node_id.hex()}) has found its farm, and is not admitted to it",
                    f"at the router that leads: `garlicfarm node approve {agent.node_id.hex()}`",
                )
            self.trace.append(kind, {"cluster": cluster_id, "raftId": await raft_id.until_known()})
            self.alarms.clear(NOT_ADMITTED_ALARM)
            await wait_for_conflicts(agent, member_directory, self.configuration)
            await self._serve(
                agent, own_metadata, member_directory, sight, port, connecting, office, peers, peers.farm, raft_id
            )
            kind = "raft-id-corrected"

    async def _serve(
        self,
        agent: MembershipProvider,
        own_metadata: OwnMetadata,
        member_directory: MemberDirectory,
        sight: ViewBuilder,
        port: NodePort,
        connecting: Connecting,
        office: IdentityAdmin,
        peers: FarmPeers,
        farm: KnownFarm,
        raft_id: OwnRaftId,
    ) -> None:
        """Be a server of the farm, until it turns out that this node has another Raft id."""
        founding, notes, applied_state = farm.founding, farm.notes, farm.applied_state
        server_id = notes.own_id
        if server_id is None:
            raise AssertionError("who belongs to a farm has a Raft id")
        signer = EntrySigner(agent.identity_key, founding.cluster_id, applied_state)
        settings = self._replica_settings(agent, member_directory, founding, notes, own_metadata, connecting)
        rejected = RejectedContent(self.alarms, member_directory.name_of_server)

        def observe(notice: Notice) -> None:
            if isinstance(notice, ContentRejected):
                rejected.rejected(notice)
            self._observe(notice)

        async with (
            open_replica(settings, applied_state, self.gateway, self.metrics, observe) as replica,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(rejected.run)
            member = self._farm_member(agent, member_directory, replica, applied_state, signer)
            background_tasks = self._background_tasks = BackgroundTasks(member)
            reconciling = Reconciling(
                ReconcilingParts(
                    settings=settings_of(
                        self.configuration.consensus,
                        self.farm_key.expect,
                        self.configuration.publishing.reporting_period_ms,
                    ),
                    own=OwnIdentity(agent.node_id, self.configuration.name, agent.public_key),
                    answered_within_ms=settings.profile.answered_within_ms,
                    cluster=self.farm_key.cluster,
                    cluster_id=founding.cluster_id,
                    replica=replica,
                    applied_state=applied_state,
                    signer=signer,
                    member_directory=member_directory,
                    announce=own_metadata.tell,
                    losing_vote=lambda: office.losing_vote,
                    trace=self.trace,
                    alarms=self.alarms,
                )
            )
            own_metadata.server_runs(server_id)
            sight.founded(replica, applied_state, background_tasks, reconciling)
            port.founded(replica, applied_state, signer, f"submit-{member.request_prefix}")
            office.founded(replica, applied_state, signer, founding, settings.profile.answered_within_ms)
            self.identities.founded(replica, applied_state, notes)

            def end_connections() -> None:
                connecting.end_connections()
                replica.links.reconnect()

            nursery.start_soon(self.identities.run, replica, applied_state, signer, member_directory, end_connections)
            nursery.start_soon(notes.follow, applied_state)
            nursery.start_soon(peers.follow, farm, connecting.end_refused)
            nursery.start_soon(reconciling.run)
            nursery.start_soon(background_tasks.run)
            await raft_id.until_corrected(server_id, applied_state, replica.has_stored)
            nursery.cancel_scope.cancel()

    def _new_ledger(self, founding: Founding) -> AppliedState:
        return AppliedState(
            founding.log_time_base_ms,
            self.trace,
            self._changed,
            founding.founders,
            founding.cluster_id,
            self.ineffective.heard,
        )

    def _group(self) -> frozenset[int]:
        """The Raft ids of the group in effect, as far as this node's server knows."""
        replica = self.gateway.replica
        if replica is None:
            return frozenset()
        return frozenset(map(integer_id, replica.server.describe().raft.configuration.member_ids))

    def _changed(self, change: Change) -> None:
        if self._background_tasks is not None:
            self._background_tasks.changed(change)

    # -- what parts are told -------------------------------------------------------------------------------------------

    def _replica_settings(
        self,
        agent: MembershipProvider,
        member_directory: MemberDirectory,
        founding: Founding,
        notes: AdmissionStore,
        own_metadata: OwnMetadata,
        connecting: Connecting,
    ) -> ReplicaSettings:
        own, advertised = self.endpoint, self.configuration.consensus.advertise
        own_address = PeerAddress(advertised.host, advertised.port, own_metadata.fingerprint)
        return ReplicaSettings(
            state_dir=self.configuration.state_dir,
            node_id=agent.node_id,
            generation=agent.generation,
            server_id=notes.own_id or 0,
            founding=founding,
            node_id_of=notes.node_id_of,
            cluster=self.farm_key.cluster,
            dialer=connecting.dialer,
            profile=profile_of(self.configuration.consensus.timing),
            segment_bytes=self.configuration.consensus.segment_bytes,
            voters_max=self.configuration.consensus.voters_max,
            endpoint_of=lambda node_id: own if node_id == agent.node_id else member_directory.endpoint_of(node_id),
            # A submission that set out for the leader may come home: this server was elected meanwhile.
            address_of=lambda node_id: (
                own_address if node_id == agent.node_id else member_directory.address_of(node_id)
            ),
            had_storage=notes.was_server,
        )

    def _farm_member(
        self,
        agent: MembershipProvider,
        member_directory: MemberDirectory,
        replica: Replica,
        applied_state: AppliedState,
        signer: EntrySigner,
    ) -> TaskContext:
        publishing = self.configuration.publishing
        return TaskContext(
            cluster=self.farm_key.cluster,
            replica=replica,
            applied_state=applied_state,
            signer=signer,
            router=self.router,
            keys=self.masters.keys,
            keyless=self.masters.keyless,
            configuration=reported_settings(self.configuration),
            pace=self.pace,
            period_ms=publishing.reporting_period_ms,
            election_timeout_ms=profile_of(self.configuration.consensus.timing).raft.election_timeout_min_ms,
            published=PublishedStore(self.configuration.state_dir),
            trace=self.trace,
            alarms=self.alarms,
            router_alarm=router_alarm(self.alarms),
            request_prefix=f"{agent.node_id.hex()}-{agent.generation}",
            reachable=member_directory.reachable,
        )

    @property
    def pace(self) -> Pace:
        """How often a structure is published anew."""
        publishing = self.configuration.publishing
        if publishing.pace is PaceSetting.REPORTING_PERIOD:
            return Pace.of_period(publishing.reporting_period_ms)
        return Pace(gather_ms=publishing.reporting_period_ms)

    @property
    def endpoint(self) -> str:
        """Where other servers reach this one's Raft server."""
        address = self.configuration.consensus.advertise
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"tcp://{host}:{address.port}"

    def _advertise(self, own_metadata: OwnMetadata, notice: FormationNotice) -> None:
        if notice.promise is not None and own_metadata.notice.promise is None:
            self.trace.append("founding-promised", {"founders": len(notice.promise.founders)})
        own_metadata.notice_changed(notice)

    # -- what parts tell -----------------------------------------------------------------------------------------------

    def _observe(self, notice: Notice) -> None:
        note_raft(notice, self.trace, self.alarms)
        if isinstance(notice, RoleChanged) and self._background_tasks is not None:
            self._background_tasks.leadership_changed()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self.leaving = True
        self.stop.set()

    def _halt(self, verdict: str) -> None:
        """End in order, for a reason that stands in the log."""
        self._verdict = verdict
        self.stop.set()

    async def _wait_for_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.stop.set()

    async def _wait_for_parent(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
            while await pipe.receive_some(64):
                pass
        self.stop.set()


def _log_event(event: TraceEvent) -> None:
    LOG.info("%s", event_text(event), extra={"cause": cause_of(event)})


async def run_node(configuration: NodeConfiguration, *, stop_with_stdin: bool = False) -> None:
    """Runs one node until it is told to stop; see the module."""
    await Node(configuration).run(stop_with_stdin=stop_with_stdin)
