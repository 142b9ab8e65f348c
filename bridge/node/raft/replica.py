"""This node's Raft server with its storage, core, transport in both directions, and a client to the leader.

    GarlicFarmServer (accepts) ──▶ RequestGateway ──▶ ConsensusServer ◀── PeerLinks (dials)
                                                    │
                                   submit ──────────┴──▶ this server, if it leads; else GarlicFarmClient to the leader

The founding and admissions in the log bind Raft ids to node ids. So a server's address and certificate come from the
signed gossip metadata of its node. Both sides of a connection prove their identity in the handshake (`farm_peers`). The
farm key alone does not allow a holder to act as a server.

`storage_note` prevents a second run under the same Raft id after the storage is lost.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.formation.founding import Founding
from bridge.core.log.kinds import KINDS
from bridge.core.log.records import LeadersRecord
from bridge.node.events.durations import Durations, MeasuredDisk, MeasuredStateMachine
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.commit_store import keep_commit_index
from bridge.node.raft.farm_content import CHECKS
from bridge.node.raft.member_rules import farm_member_rules, member_request_tuning
from bridge.node.raft.storage_note import StorageNote
from bridge.node.settings.timing import Patience, Profile
from bridge.wire.log.entries import decode
from consensus import (
    GARLIC_FARM,
    Configuration,
    ConfigurationChanged,
    ConsensusServer,
    Histogram,
    Index,
    Notice,
    Outcome,
    ProposalResolved,
    Reply,
    Request,
    Role,
    RoleChanged,
    Server,
    ServerId,
    ServerParts,
    integer_id,
    prepare_server,
)
from consensus.protocols import garlic_farm as protocol
from consensus.storage import Recovery, StorageOptions

LOG = logging.getLogger(__name__)
UNKNOWN_ENDPOINT = "tcp://unknown.invalid:7669"
SUBMIT_RETRY_SECONDS = 0.1
SUBMIT_GRACE_SECONDS = 1.0
_LEADERS_WORDS = (b"\\", *(b'"%b"' % each.member.encode() for each in KINDS if issubclass(each.record, LeadersRecord)))
LEADERS_OWN_TEXT = "a client sent a clock entry, or an entry about identities; only the leader writes these entries"
NO_ANSWER = "no reply in time: the entry may be committed or not; check the log"


class ReplicaSettings(Struct, frozen=True, kw_only=True):
    """The settings of a replica. `endpoint_of` returns a founder's endpoint, if gossip knows it.

    `node_id_of` returns the node of a Raft id that the log does not (yet) name.
    """

    state_dir: Path
    node_id: bytes
    generation: int
    server_id: int
    founding: Founding
    node_id_of: Callable[[int], bytes | None]
    cluster: str
    dialer: Callable[[Callable[[], protocol.Identity], protocol.ConnectionRole], protocol.Dialer]
    """Makes connections under the given identity and role."""
    profile: Profile
    segment_bytes: int
    voters_max: int
    endpoint_of: Callable[[bytes], str | None]
    address_of: Callable[[bytes], protocol.PeerAddress | None]
    had_storage: bool = False
    """True if another source than the storage and its note shows that the node had a storage."""


@dataclass(slots=True, eq=False)
class Replica:
    """The running parts, made by `open_replica`."""

    server: ConsensusServer
    links: protocol.PeerLinks
    client: protocol.GarlicFarmClient | None
    server_id: int
    sessioned: protocol.SessionStateMachine
    members: protocol.Members
    identity: protocol.Identity
    """The identity of this server in handshakes."""
    patience: Patience
    commits: Histogram = field(default_factory=Histogram)
    clients: protocol.ClientRequests = field(init=False)
    alone: bool = field(default=False, init=False)
    """True if this server is the only voter, so that no other server can report a leader."""
    _role_changed: trio.Event = field(default_factory=trio.Event, init=False)

    def __post_init__(self) -> None:
        self.clients = protocol.ClientRequests(self.server, self.server_id, self.sessioned)

    @property
    def leads(self) -> bool:
        """True if this server is the leader, to its knowledge."""
        return self.server.role.role is Role.LEADER

    def has_stored(self) -> bool:
        """Return True if the storage has an entry, a snapshot or a vote, so that it cannot serve another Raft id."""
        raft = self.server.describe().raft
        return raft.last.index > 0 or raft.voted_for is not None

    def group(self) -> frozenset[int]:
        """Return the Raft ids of the group in effect, to this server's knowledge."""
        return frozenset(map(integer_id, self.server.describe().raft.configuration.member_ids))

    def connected(self) -> frozenset[int]:
        """Return the Raft ids of the servers that this server is connected to."""
        return frozenset(integer_id(link.peer) for link in self.links.describe() if link.connected)

    async def role_changes(self) -> None:
        """Wait until the role or the known leader changes."""
        await self._role_changed.wait()

    def on_notice(self, notice: Notice) -> None:
        """Follow a change of role or configuration of the server."""
        match notice:
            case ConfigurationChanged(configuration):
                self.voters_are(configuration)
            case RoleChanged(leader=leader):
                if self.client is not None and leader is not None:
                    self.client.leader_is(integer_id(leader))
                self._role_changed.set()
                self._role_changed = trio.Event()
            case _:
                pass

    def voters_are(self, configuration: Configuration) -> None:
        """Set the voters from the configuration in effect."""
        others = sorted(map(integer_id, configuration.voter_ids - {self.server_id}))
        self.alone = not others
        if self.client is not None:
            self.client.servers_are(others)

    @property
    def _others(self) -> protocol.GarlicFarmClient | None:
        return None if self.alone else self.client

    async def submit(self, command: bytes, *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Have one entry committed, through the leader; see `submit_all`."""
        return await self.submit_all((command,), repeat_unknown=repeat_unknown)

    async def submit_all(self, commands: tuple[bytes, ...], *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Commit entries through the leader, adjacent and in order; return the index of the last one.

        With `repeat_unknown` entries of unknown fate are submitted again; this is only for entries that tolerate
        copies. Entries reserved for the leader are refused: the leader's own tasks submit them directly to its server.
        """
        if any(map(is_leaders_own, commands)):
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=LEADERS_OWN_TEXT)
        deadline = trio.current_time() + self.patience.submit_s
        doubtful = False
        while True:
            answer = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason=NO_ANSWER)
            # Never negative: after a pause of the process the deadline may have passed.
            left_s = max(0.0, deadline - trio.current_time())
            with trio.move_on_after(left_s + SUBMIT_GRACE_SECONDS):
                answer = await self._submit_once(commands, left_s, repeat_unknown=repeat_unknown)
            doubtful |= answer.outcome is SubmitOutcome.UNKNOWN
            again = answer.outcome is SubmitOutcome.REFUSED or (
                answer.outcome is SubmitOutcome.UNKNOWN and repeat_unknown
            )
            if not again or trio.current_time() + SUBMIT_RETRY_SECONDS >= deadline:
                break
            await trio.sleep(SUBMIT_RETRY_SECONDS)
        if doubtful and answer.outcome not in {SubmitOutcome.COMMITTED, SubmitOutcome.EXPIRED}:
            # After an attempt of unknown fate, a refusal is not final: a copy of that attempt may still be committed.
            return replace(answer, outcome=SubmitOutcome.UNKNOWN)
        return answer

    async def read_barrier(self) -> Index:
        """Wait until this node has applied all entries acknowledged before the call; see `read_barrier_anywhere`."""
        return await protocol.read_barrier_anywhere(self.server, self._others, timeout_s=self.patience.submit_s)

    async def _submit_once(
        self, commands: tuple[bytes, ...], timeout_s: float, *, repeat_unknown: bool
    ) -> SubmitAnswer:
        began_s = trio.current_time()
        answer = await self._submit_somewhere(commands, timeout_s, repeat_unknown=repeat_unknown)
        if answer.outcome is SubmitOutcome.COMMITTED:
            self.commits.observe(trio.current_time() - began_s)
        return answer

    async def _submit_somewhere(
        self, commands: tuple[bytes, ...], timeout_s: float, *, repeat_unknown: bool
    ) -> SubmitAnswer:
        client = self._others
        if self.leads or client is None:
            return _answer_of(await self.server.propose(commands))
        try:
            sent = await client.submit(
                commands, timeout_s=min(self.patience.client_s, timeout_s), repeat_unknown=repeat_unknown
            )
        except protocol.GarlicFarmError as error:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=str(error))
        if sent.expired:
            return SubmitAnswer(outcome=SubmitOutcome.EXPIRED, reason=sent.reason)
        resolve = ProposalResolved(proposal_id=0, outcome=sent.outcome, position=sent.position, leader=sent.leader)
        return _answer_of(resolve, sent.reason)


class RequestGateway:
    """The handler of the listener: passes requests to the present replica of this node, or refuses them."""

    def __init__(self, replica: Callable[[], Replica | None], is_out: Callable[[int], bool]) -> None:
        """Refuse requests under the ids of expelled servers: `is_out` returns True for them."""
        self._replica = replica
        self._is_out = is_out

    @property
    def identity(self) -> protocol.Identity:
        """The identity of this node in handshakes."""
        replica = self._replica()
        return protocol.Identity() if replica is None else replica.identity

    def request(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> protocol.Cancel:
        """Pass on a peer's request."""
        replica = self._started()
        if self._is_out(integer_id(sender)):
            raise protocol.GarlicFarmError(
                protocol.Fault.EXPELLED,
                f"the identity of server {sender} was retired or evicted; its requests are refused",
            )
        return protocol.call_server(replica.server, sender, request, on_reply)

    def client_request(
        self, commands: tuple[bytes, ...], on_reply: Callable[[protocol.ClientAnswer | None], None]
    ) -> protocol.Cancel:
        """Pass on a client's entries; without entries, return only the leader."""
        replica = self._replica()
        if replica is None:
            return _no_leader_known(on_reply)
        if any(is_leaders_own(command) for command in commands):
            raise protocol.GarlicFarmError(protocol.Fault.OUT_OF_TURN, LEADERS_OWN_TEXT)
        return replica.clients.client_request(commands, on_reply)

    def read_index(self, on_reply: Callable[[protocol.ClientAnswer | None], None]) -> protocol.Cancel:
        """Return the index that a client must apply for a linearizable read."""
        replica = self._replica()
        return _no_leader_known(on_reply) if replica is None else replica.clients.read_index(on_reply)

    def membership_request(
        self, request: protocol.MembershipRequest, on_reply: Callable[[protocol.Reply | None], None]
    ) -> protocol.Cancel:
        """Pass on the request of a server to join or leave."""
        return self._started().members.membership_request(request, on_reply)

    def _started(self) -> Replica:
        replica = self._replica()
        if replica is None:
            raise protocol.GarlicFarmError(protocol.Fault.BUSY, "this node has not started its Raft server yet")
        return replica


def _no_leader_known(on_reply: Callable[[protocol.ClientAnswer | None], None]) -> protocol.Cancel:
    on_reply(protocol.ClientAnswer(term=0))
    return protocol.nothing_to_cancel


def is_leaders_own(command: bytes) -> bool:
    """Return True if an entry would move log time or change the farm's members: clients must not submit it."""
    # Decode an entry only if its bytes contain the JSON name of such a kind or an escape.
    suspicious = any(word in command for word in _LEADERS_WORDS)
    return suspicious and isinstance(decode(command), LeadersRecord)


@asynccontextmanager
async def open_replica(
    settings: ReplicaSettings,
    applied_state: AppliedState,
    metrics: protocol.Metrics,
    durations: Durations,
    observe: Callable[[Notice], None],
) -> AsyncIterator[Replica]:
    """Run this node's Raft server while the block lasts. Raise `StorageError`, with the remedy."""
    profile, server_id = settings.profile, settings.server_id
    identity = protocol.Identity(settings.founding.cluster_id.hex(), server_id, profile.raft.lease_promise_ms)
    resolve = _resolver(
        settings,
        applied_state,
        lambda: server.describe().raft.configuration.member_ids,  # assigned below, like `replica`
    )

    def take_notice(notice: Notice) -> None:
        replica.on_notice(notice)
        observe(notice)

    links = protocol.PeerLinks(
        settings.dialer(lambda: identity, protocol.ConnectionRole.SERVER),
        resolve,
        metrics=metrics,
        random=Random(),
        configuration_before=applied_state.configuration_before,
        options=profile.links,
    )
    await trio.to_thread.run_sync(_check_storage, settings)
    async with prepare_server(_server_parts(settings, applied_state, links, durations, take_notice)) as server:
        dialer = settings.dialer(lambda: identity, protocol.ConnectionRole.CLIENT)
        client = protocol.GarlicFarmClient(dialer, resolve, [server_id], random=Random(), options=profile.client)
        rules = farm_member_rules(applied_state, server, resolve, settings.founding, profile, settings.voters_max)
        requests = protocol.MemberRequests(server, server_id, links, rules, metrics, member_request_tuning(profile))
        members = protocol.Members(protocol.Joining(server, server_id, _log_removal), requests)
        replica = Replica(
            server, links, client, server_id, applied_state, members, identity, profile.patience, durations.commit
        )
        raft = server.describe().raft
        applied_state.history_ends_at(raft.last.index)
        replica.voters_are(raft.configuration)
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await nursery.start(server.run)
            await nursery.start(requests.run)
            nursery.start_soon(keep_commit_index, settings.state_dir, lambda: applied_state.state.applied_index)
            yield replica
            nursery.cancel_scope.cancel()


def _check_storage(settings: ReplicaSettings) -> None:
    StorageNote(settings.state_dir).check_not_lost(had_storage=settings.had_storage)


def _server_parts(
    settings: ReplicaSettings,
    applied_state: AppliedState,
    links: protocol.PeerLinks,
    durations: Durations,
    observe: Callable[[Notice], None],
) -> ServerParts:
    note = StorageNote(settings.state_dir)

    def recovered(recovery: Recovery) -> None:
        note.record(settings.server_id, recovery)
        for line in recovery.report.lines():
            LOG.info("storage: %s", line)

    return ServerParts(
        path=note.storage,
        server_id=settings.server_id,
        configuration=_first_configuration(settings),
        transport=links,
        state_machine=MeasuredStateMachine(applied_state, durations.apply),
        features=GARLIC_FARM,
        options=settings.profile.raft,
        storage_options=StorageOptions(segment_bytes=settings.segment_bytes),
        node_id=settings.node_id,
        generation=settings.generation,
        observe=observe,
        checks=CHECKS,
        keep_from=applied_state.keep_from,
        recovered=recovered,
        wrap_disk=lambda disk: MeasuredDisk(disk, durations.disk),
    )


def _resolver(
    settings: ReplicaSettings, applied_state: AppliedState, group: Callable[[], Collection[ServerId]]
) -> Callable[[ServerId], protocol.PeerAddress | None]:
    """Return a resolver of addresses, which returns None for retired and evicted servers.

    The resolver also returns None for a removed server outside the group.
    """

    def resolve(peer: ServerId) -> protocol.PeerAddress | None:
        admitted = applied_state.state.admitted.get(integer_id(peer))
        if admitted is not None and not admitted.is_member:
            return None
        if peer in applied_state.state.removed and peer not in group():
            return None
        node_id = settings.node_id_of(integer_id(peer)) if admitted is None else admitted.node_id
        return None if node_id is None else settings.address_of(node_id)

    return resolve


def _log_removal(leader: ServerId) -> None:
    LOG.warning("server %s, which leads, is about to remove this server from the group", leader)


def _first_configuration(settings: ReplicaSettings) -> Configuration:
    """Return the configuration of the founders. Its endpoints are for people: gossip has the addresses of peers."""
    return Configuration(
        tuple(
            Server(number, settings.endpoint_of(node_id) or UNKNOWN_ENDPOINT)
            for number, node_id in enumerate(settings.founding.founders, start=1)
        )
    )


def _answer_of(resolve: ProposalResolved, reason: str = "") -> SubmitAnswer:
    position = resolve.position
    leader = None if resolve.leader is None else integer_id(resolve.leader)
    match resolve.outcome:
        case Outcome.COMMITTED:
            return SubmitAnswer(
                outcome=SubmitOutcome.COMMITTED,
                index=None if position is None else position.index,
                term=None if position is None else position.term,
                leader_id=leader,
            )
        case Outcome.NOT_LEADER:
            text = reason or "this server does not lead, and does not know a leader; try again in a moment"
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=text, leader_id=leader)
        case Outcome.BUSY:
            return SubmitAnswer(
                outcome=SubmitOutcome.BUSY, reason=reason or "the leader is busy; try again in a moment"
            )
        case Outcome.UNKNOWN:
            text = reason or "the leader changed during the request: the entry may be committed or not; check the log"
            return SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason=text, leader_id=leader)
