"""Opens a voter or an observer of a KRaft quorum: its directory, its listener, and the server between them.

    meta.properties ─▶ key, first voters ┐
    settings ─▶ times, listener ─────────┴▶ KraftTransport ─▶ open_server ─▶ QuorumLog
                                                 ▲               │  └─▶ LogTopic
                                            QuorumNames ◀────────┤
                       listener ─▶ QuorumService, AdminService ◀─┘

*Order.* The storage is read before the listener opens, so that no request waits for it; another server finds the port
closed and retries.

*Voters.* With `controller.quorum.voters` they are fixed and absent from the log (kraft.version 0). Otherwise the log
names them. A new quorum begins with the controllers of the formatted directory. A server formatted without controllers
learns the voters by DescribeQuorum from the bootstrap servers. It is an observer until a leader makes it a voter, at
the request of an operator or, with `controller.quorum.auto.join.enable`, of the server. A server whose log names voters
does not wait for DescribeQuorum: if all servers start together, no leader could reply. If the server is not one of
these voters, they may no longer exist. So it queries them and the bootstrap servers in turns for the leader.

*quorum-state* is written after each change by a separate task, after the storage. The file may lack the last change,
since it is only a copy (`quorum_directory`).
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import time
from typing import Final

import trio
from msgspec import Struct, field

from consensus.core.effects import ConfigurationChanged, Effect, Role
from consensus.core.features import KRAFT, KRAFT_STATIC, LeaderRecords
from consensus.core.model import Configuration, ReplicaKey, Server, endpoint_text
from consensus.net.failed_connection import connection_failure
from consensus.protocols.kafka.connections.connection import DialOptions
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions, open_listener
from consensus.protocols.kafka.connections.security import ClientSecurity, ListenerSecurity
from consensus.protocols.kafka.connections.service import Service
from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import Topic
from consensus.protocols.kraft.operators.quorum_client import QuorumClient, QuorumClientError, QuorumDescription
from consensus.protocols.kraft.operators.quorum_directory import (
    STATE_FILE,
    QuorumDirectory,
    QuorumState,
    read_directory,
)
from consensus.protocols.kraft.operators.settings import (
    BATCH_RECORDS,
    Endpoint,
    NamedVoter,
    VoterSettings,
    check_settings,
    core_options,
    is_of_one_server,
)
from consensus.protocols.kraft.replica.admin_service import AdminService
from consensus.protocols.kraft.replica.announcing import AddressRefused, Announcing
from consensus.protocols.kraft.replica.log_topic import LogTopic
from consensus.protocols.kraft.replica.metrics import PollIdle, QuorumFigures, QuorumMeasurements, figures_of
from consensus.protocols.kraft.replica.peer_transport import KraftTransport, Place, RetryTimes, TransportEvent
from consensus.protocols.kraft.replica.quorum_names import QuorumNames, server_of
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader, FetchDispatch, QuorumService
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from consensus.protocols.kraft.wire.control_records import KRAFT_VERSION, KRAFT_VERSION_1, by_id_alone
from consensus.protocols.kraft.wire.entries import (
    batch_continues_after,
    batches_for_replicas,
    control_data,
    fetched_entries,
    leader_head,
)
from consensus.protocols.kraft.wire.replica_names import replica
from consensus.protocols.kraft.wire.snapshot_form import KafkaSnapshotForm
from consensus.server.block_nursery import block_nursery
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.opening import open_server
from consensus.server.options import ServerOptions
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.directory import FULL
from consensus.storage.planner import StorageOptions

_DISCOVERY_S: Final = 1.0
_REGISTRATION_PAUSE_S: Final = 1.0
_STATE_RETRY_S: Final = 1.0
_STATE_WAIT_S: Final = 0.02


class VoterError(Exception):
    """The voter cannot be opened; the text contains the reason and the remedy."""


class VoterOptions(Struct, frozen=True):
    """Options that are not in a properties file."""

    client_security: ClientSecurity = field(default_factory=ClientSecurity)
    listener_security: ListenerSecurity = field(default_factory=ListenerSecurity)
    takes_records: bool = True
    """True if clients may produce to the log."""
    max_state_bytes: int = 64 * 1024 * 1024
    """Size limit of the records in a snapshot; a log with more is not compacted (`state_machine`)."""
    is_metadata: bool = False
    """True if the log is the metadata of Kafka's controllers in the same quorum (`kept_records`)."""
    topic: Topic = field(default_factory=Topic)
    """Name of the log for the other servers: only Kafka's test programs use a different one."""
    address_refused: Callable[[AddressRefused], None] = lambda _refused: None
    """Called when the leader, which may be this server, does not record the address that this server advertises."""
    services: Callable[[LogTopic], tuple[Service, ...]] = lambda _topic: ()
    """Further services of the listener, such as the consumers' Fetch."""


class KraftVoter(Struct, frozen=True):
    """A voter or observer that runs."""

    key: ReplicaKey
    cluster_id: str
    server: ConsensusServer
    machine: QuorumLog
    topic: LogTopic
    names: QuorumNames
    listener: KafkaListener
    transport: KraftTransport
    measurements: QuorumMeasurements
    idle: PollIdle

    def figures(self) -> QuorumFigures:
        """Return the present metrics of KIP-595."""
        raft = self.server.describe().raft
        return figures_of(raft, self.server.commit_index, self.names, self.measurements, self.idle)

    async def resign(self) -> None:
        """Hand leadership to another voter if this server leads: send EndQuorumEpoch when that voter has the whole log.

        Returns when another server leads, or after the longest election timeout. Committed entries are safe without
        this, but the other voters would start an election only after their fetch timeout.
        """
        if self.server.role.role is Role.LEADER:
            with suppress(ServerBusyError, ServerStoppedError):
                await self.server.transfer_leadership()

    @property
    def counters(self) -> Mapping[TransportEvent, int]:
        """Return the dropped, repeated and refused messages since the start, by reason."""
        return self.transport.counters.copy()


def _ignore(_notice: Notice) -> None:
    """Report nothing."""


def _unix_ms() -> int:
    return int(time() * 1000)


def _leader_head() -> bytes:
    return leader_head(_unix_ms())


@asynccontextmanager
async def open_voter(
    settings: VoterSettings,
    options: VoterOptions | None = None,
    observe: Callable[[Notice], None] = _ignore,
) -> AsyncIterator[KraftVoter]:
    """Run a server for the block. `observe` gets roles, voters and alarms, and must return immediately.

    Raises `SettingsError`, `QuorumDirectoryError`, `VoterError` or `StorageError`, each with the remedy. An error of
    the disk leaves the block without an exception group around it.
    """
    options = options or VoterOptions()
    directory = await trio.to_thread.run_sync(read_directory, check_settings(settings))
    parts = _VoterParts(settings, options, directory)
    notices, measurements = _Notices(observe), QuorumMeasurements()

    def take_notice(notice: Notice) -> None:
        if isinstance(notice, ConfigurationChanged):
            parts.names.change(notice.configuration, notice.newcomers)
        notices.take(notice)

    async with open_server(parts.server(take_notice, measurements.take)) as server:
        raft = server.describe().raft
        await trio.to_thread.run_sync(directory.check_not_older, raft.term)
        parts.names.change(raft.configuration, ())
        topic, administration = parts.topic(server), parts.administration(server)
        services = parts.services(server, administration, topic)
        async with _listening(services, settings, options) as listener, block_nursery() as nursery:
            nursery.start_soon(_write_states, server, directory, settings, notices)
            if settings.is_dynamic:
                nursery.start_soon(parts.announcing(server, administration).run)
            yield KraftVoter(
                key=parts.own,
                cluster_id=directory.cluster_id,
                server=server,
                machine=parts.machine,
                topic=topic,
                names=parts.names,
                listener=listener,
                transport=parts.transport,
                measurements=measurements,
                idle=PollIdle(),
            )


class _VoterParts:
    """The parts of one voter that exist before its server, and the methods that make the other parts."""

    def __init__(self, settings: VoterSettings, options: VoterOptions, directory: QuorumDirectory) -> None:
        self._settings = settings
        self._options = options
        self._directory = directory
        self._connection = DialOptions(
            client_id=f"raft-client-{settings.node_id}",
            security=options.client_security,
            request_timeout_ms=settings.request_timeout_ms,
            connect_timeout_ms=settings.request_timeout_ms,
        )
        # The directory's id is part of the key if the log names the voters: a server with a new disk is another voter.
        self.own = ReplicaKey(settings.node_id, directory.directory_id.bytes if settings.is_dynamic else b"")
        self._first_voters = _first_voters(settings, directory)
        self.names = QuorumNames(self.own, settings.advertised, self._first_voters, options.topic)
        self.transport = self._transport()
        self.machine = QuorumLog(options.max_state_bytes, metadata=options.is_metadata)

    def _transport(self) -> KraftTransport:
        """Return the transport; an observer queries the bootstrap servers as well.

        A voter knows the other voters from the log. If a voter is not at its recorded address, addresses from messages
        and the bootstrap servers are tried.
        """
        names, settings = self.names, self._settings

        def bootstrap() -> tuple[Place, ...]:
            return () if names.votes else settings.bootstrap_servers

        def elsewhere(peer: ReplicaKey) -> tuple[Place, ...]:
            return (*names.elsewhere(peer), *(settings.bootstrap_servers if names.votes else ()))

        return KraftTransport(
            names,
            fetched_entries,
            self._connection,
            retry=RetryTimes(settings.retry_backoff_ms, settings.retry_backoff_max_ms),
            learned=names.learned,
            bootstrap=bootstrap,
            elsewhere=elsewhere,
        )

    def server(self, observe: Callable[[Notice], None], on_effects: Callable[[Sequence[Effect]], None]) -> ServerParts:
        settings = self._settings
        return ServerParts(
            path=self._directory.storage,
            server_id=self.own,
            configuration=self._first_voters if self._first_voters.voters else self._learned_voters,
            transport=self.transport,
            state_machine=self.machine,
            features=KRAFT if settings.is_dynamic else KRAFT_STATIC,
            options=core_options(settings),
            server_options=_server_options(settings),
            storage_options=StorageOptions(snapshot_form=KafkaSnapshotForm(lambda: self.machine.captured_ms)),
            cluster_id=self._directory.cluster_id,
            leader_records=leader_records(_unix_ms, is_dynamic=settings.is_dynamic),
            observe=observe,
            snapshot_index=self.machine.snapshot_index,
            on_effects=on_effects,
        )

    async def _learned_voters(self) -> Configuration:
        """Return the voters, as soon as a leader describes them."""
        client = QuorumClient(self._settings.bootstrap_servers, self._connection)
        while True:
            with suppress(QuorumClientError):
                voters = Configuration(_described(await client.describe()))
                if voters.voters:
                    self.names.change(voters, ())
                    return voters
            await trio.sleep(_DISCOVERY_S)

    def topic(self, server: ConsensusServer) -> LogTopic:
        """Return the topic that clients of Kafka read, and may write to."""
        return LogTopic(
            server,
            self.machine,
            self.names,
            self._directory.cluster_id,
            _unix_ms,
            self._connection,
            takes_records=self._options.takes_records,
            is_metadata=self._options.is_metadata,
        )

    def administration(self, server: ConsensusServer) -> AdminService:
        """Return the service that changes the voters."""
        return AdminService(
            server,
            self.names,
            self._directory.cluster_id,
            _unix_ms,
            _leader_head,
            self._connection,
            is_dynamic=self._settings.is_dynamic,
            registration_pause_s=_REGISTRATION_PAUSE_S,
        )

    def services(self, server: ConsensusServer, administration: AdminService, topic: LogTopic) -> tuple[Service, ...]:
        """Return the listener's services; a service with the consumers' Fetch is combined with the replicas' Fetch."""
        quorum = QuorumService(
            server,
            self.names,
            batches_for_replicas,
            AnsweringLeader(server.soft_state).now,
            learned=self.names.learned,
            ends_batch=lambda entry: not batch_continues_after(entry),
        )
        others = self._options.services(topic)
        fetching = next((each for each in others if ApiKey.FETCH in each.apis()), None)
        if fetching is None:
            return quorum, administration, *others
        return FetchDispatch(quorum, fetching), administration, *(each for each in others if each is not fetching)

    def announcing(self, server: ConsensusServer, administration: AdminService) -> Announcing:
        """Return the task that announces the address of this server to the leader."""
        return Announcing(
            server,
            administration,
            self.names,
            self._settings,
            self._connection,
            self._directory.cluster_id,
            _leader_head,
            self._options.address_refused,
        )


@asynccontextmanager
async def _listening(
    services: tuple[Service, ...], settings: VoterSettings, options: VoterOptions
) -> AsyncIterator[KafkaListener]:
    """Open the first listener of the settings. Raises `VoterError` if it cannot be opened."""
    first = settings.listeners[0]
    listening = ListenerOptions(first.name, first.host, first.port, options.listener_security)
    async with AsyncExitStack() as opened:
        try:
            listener = await opened.enter_async_context(open_listener(services, listening))
        except (OSError, UnicodeError) as error:
            raise VoterError(
                f"cannot listen on {endpoint_text(first.host, first.port)}: {connection_failure(error)}. Stop the"
                " program that listens there, or change listeners"
            ) from error
        yield listener


class _Notices:
    """Notices for the task that writes `quorum-state`."""

    def __init__(self, observe: Callable[[Notice], None]) -> None:
        self.changed = trio.Event()
        self._observe = observe

    def take(self, notice: Notice) -> None:
        self.changed.set()
        self._observe(notice)


def _server_options(settings: VoterSettings) -> ServerOptions:
    return ServerOptions(
        linger_in_flight_ms=settings.append_linger_ms,
        linger_idle_ms=min(4, settings.append_linger_ms),
        snapshot_log_bytes=settings.snapshot_bytes,
        snapshot_age_ms=settings.snapshot_interval_ms,
        retain_bytes=settings.retention_bytes,
        batch_commands=BATCH_RECORDS,
    )


def leader_records(unix_ms: Callable[[], int], *, is_dynamic: bool) -> LeaderRecords:
    """Return the entries that a leader writes itself.

    The entries contain the time, and `kraft.version` 1 if the log names voters.
    """

    def head() -> bytes:
        return leader_head(unix_ms())

    def controls() -> tuple[bytes, ...]:
        return (control_data(KRAFT_VERSION, KRAFT_VERSION_1, unix_ms()),)

    return LeaderRecords(head, controls if is_dynamic else tuple, by_id_alone)


def _first_voters(settings: VoterSettings, directory: QuorumDirectory) -> Configuration:
    """Return the voters for a log without voters, from the settings or the directory; empty if they must be learned."""
    # A voter of the formatted directory announces its `advertised.listeners` itself.
    name = "CONTROLLER" if settings.voters else settings.listeners[0].name
    voters = settings.voters or directory.initial

    def endpoint(voter: NamedVoter) -> Endpoint:
        # Clients also get the own address. In the list of voters, it may be a wildcard.
        is_own = bool(settings.voters) and voter.key.id == settings.node_id
        found = settings.advertised[0] if is_own and not is_of_one_server(voter.host, voter.port) else voter
        return Endpoint(name, found.host, found.port)

    return Configuration(tuple(server_of(each.key, (endpoint(each),)) for each in voters))


def _described(state: QuorumDescription) -> tuple[Server, ...]:
    """Return the voters in the description by a quorum's leader, except voters without listeners."""
    return tuple(
        server_of(ReplicaKey(each.node_id, each.directory_id.bytes if each.directory_id.int else b""), listeners)
        for each in state.voters
        if (listeners := state.listeners.get(each.node_id))
    )


async def _write_states(
    server: ConsensusServer, directory: QuorumDirectory, settings: VoterSettings, notices: _Notices
) -> None:
    """Repeat the storage's state in `quorum-state`, after each change.

    The file is written only after the storage. Otherwise, after a stop between the two writes, the server would mistake
    its storage for an older copy. If the disk is full, the task waits: the server runs correctly with an old file.
    Raises `VoterError`.
    """
    written: QuorumState | None = None
    while True:
        notices.changed = trio.Event()
        about = server.describe()
        if not about.hard_state_durable:
            await trio.sleep(_STATE_WAIT_S)
            continue
        raft = about.raft
        voted = None if raft.voted_for is None else replica(raft.voted_for)
        leader_id = -1 if raft.leader is None else replica(raft.leader).id
        voters = tuple(voter.key.id for voter in settings.voters) or None
        state = QuorumState(leader_id, raft.term, voted, voters)
        if state != written:
            try:
                await trio.to_thread.run_sync(directory.write_state, state)
            except OSError as error:
                if error.errno not in FULL:
                    raise VoterError(f"'{STATE_FILE}' in '{directory.path}' cannot be written: {error}") from error
                with trio.move_on_after(_STATE_RETRY_S):
                    await notices.changed.wait()
                continue
            written = state
        await notices.changed.wait()
