"""This node's Raft server with all that it needs: storage, core, transport out and in, and a client to the leader.

    GarlicFarmServer (accepts) ──▶ RequestGateway ──▶ ConsensusServer ◀── PeerLinks (dials)
                                                    │
                                   submit ──────────┴──▶ this server, if it leads; else GarlicFarmClient to the leader

Raft ids are bound to node ids by the founding and by admissions in the log, so the address and the certificate of a
server are those that its node announces, signed, in its gossip metadata. Both sides of a connection prove their
identity in the handshake (`farm_peers`): a holder of the farm's key alone speaks as no server and answers as none.

`storage_note` keeps a lost storage from a second life under the same Raft id.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import trio
from msgspec.structs import replace

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.formation.founding import Founding
from bridge.core.log.kinds import KINDS
from bridge.core.log.records import LeadersRecord
from bridge.node.events.durations import Durations
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.commit_store import keep_commit_index
from bridge.node.raft.farm_content import CHECKS
from bridge.node.raft.measured import MeasuredDisk, MeasuredStateMachine
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
from consensus.protocols.garlic_farm import (
    Cancel,
    ClientAnswer,
    ClientRequests,
    ConnectionRole,
    Dialer,
    Fault,
    GarlicFarmClient,
    GarlicFarmError,
    Identity,
    Joining,
    MemberRequests,
    Members,
    MembershipRequest,
    Metrics,
    PeerAddress,
    PeerLinks,
    SessionStateMachine,
    ask_server,
    nothing_to_cancel,
    read_barrier_anywhere,
)
from consensus.protocols.garlic_farm import Reply as WireReply
from consensus.storage import Recovery, StorageOptions

LOG = logging.getLogger(__name__)
UNKNOWN_ENDPOINT = "tcp://unknown.invalid:7669"
SUBMIT_RETRY_SECONDS = 0.1
SUBMIT_GRACE_SECONDS = 1.0
_LEADERS_WORDS = (b"\\", *(b'"%b"' % each.member.encode() for each in KINDS if issubclass(each.record, LeadersRecord)))
LEADERS_OWN_TEXT = "a client sent a clock entry, or one about who belongs to the farm; only the leader writes those"
NO_ANSWER = "no answer in time: the entry may be committed or not; look into the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What a replica is made of. `endpoint_of` tells where a founder listens, as far as gossip knows.

    `node_id_of` tells whose Raft id it is, of those that the log does not tell (yet).
    """

    state_dir: Path
    node_id: bytes
    generation: int
    server_id: int
    founding: Founding
    node_id_of: Callable[[int], bytes | None]
    cluster: str
    dialer: Callable[[Callable[[], Identity], ConnectionRole], Dialer]
    """Makes connections in the name and role that it is given."""
    profile: Profile
    segment_bytes: int
    voters_max: int
    endpoint_of: Callable[[bytes], str | None]
    address_of: Callable[[bytes], PeerAddress | None]
    had_storage: bool = False
    """Whether the node knows by something else than its storage, and the note of it, that it had one."""


class Replica:
    """The running parts. Made by `open_replica`."""

    def __init__(
        self,
        server: ConsensusServer,
        links: PeerLinks,
        client: GarlicFarmClient | None,
        server_id: int,
        sessioned: SessionStateMachine,
        members: Members,
        identity: Identity,
        patience: Patience,
        commits: Histogram | None = None,
    ) -> None:
        self.patience = patience
        self._commits = commits or Histogram()
        self.server = server
        self.members = members
        self.identity = identity
        """What it says of itself in handshakes."""
        self.clients = ClientRequests(server, server_id, sessioned)
        self.links = links
        self.server_id = server_id
        self.alone = False
        """It is the only voter: there is no other server to ask for the leader."""
        self._client = client
        self._role_changed = trio.Event()

    @property
    def leads(self) -> bool:
        """Whether this server is the leader, as far as it knows."""
        return self.server.role.role is Role.LEADER

    def has_stored(self) -> bool:
        """Whether this server's storage holds an entry, a snapshot or a vote, so that it can serve no other Raft id."""
        raft = self.server.describe().raft
        return raft.last.index > 0 or raft.voted_for is not None

    def group(self) -> frozenset[int]:
        """The Raft ids of the group in effect, as far as this server knows."""
        return frozenset(map(integer_id, self.server.describe().raft.configuration.member_ids))

    def connected(self) -> frozenset[int]:
        """The Raft ids of the servers that this one has a connection to."""
        return frozenset(integer_id(link.peer) for link in self.links.describe() if link.connected)

    async def role_changes(self) -> None:
        """Returns when another server leads, or this one, or none any more."""
        await self._role_changed.wait()

    def on_notice(self, notice: Notice) -> None:
        """Follow a change of role or configuration of the server."""
        match notice:
            case ConfigurationChanged(configuration):
                self.voters_are(configuration)
            case RoleChanged():
                self._role_changed.set()
                self._role_changed = trio.Event()
            case _:
                pass

    def voters_are(self, configuration: Configuration) -> None:
        """The configuration in effect names these voters from here on."""
        others = sorted(map(integer_id, configuration.voter_ids - {self.server_id}))
        self.alone = not others
        if self._client is not None:
            self._client.servers_are(others)

    @property
    def _others(self) -> GarlicFarmClient | None:
        return None if self.alone else self._client

    async def submit(self, command: bytes, *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Have one entry committed, wherever the leader is; see `submit_all`."""
        return await self.submit_all((command,), repeat_unknown=repeat_unknown)

    async def submit_all(self, commands: tuple[bytes, ...], *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Have entries committed, adjacent and in order, wherever the leader is; the index is the last one's.

        With `repeat_unknown` entries of unknown fate are submitted again: only for entries that may be there twice.
        What the leader alone writes is refused here too: it goes to the server directly, from those who make it.
        """
        if any(map(is_leaders_own, commands)):
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=LEADERS_OWN_TEXT)
        deadline = trio.current_time() + self.patience.submit_s
        doubtful = False
        while True:
            answer = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason=NO_ANSWER)
            left_s = deadline - trio.current_time()
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
            # Of an earlier try a copy may be committed: only what never can be is refused.
            return replace(answer, outcome=SubmitOutcome.UNKNOWN)
        return answer

    async def read_barrier(self) -> Index:
        """Wait until this node has applied everything acknowledged before the call. Raises what `refusals` lists."""
        return await read_barrier_anywhere(self.server, self._others, patience_s=self.patience.submit_s)

    async def _submit_once(
        self, commands: tuple[bytes, ...], patience_s: float, *, repeat_unknown: bool
    ) -> SubmitAnswer:
        began_s = trio.current_time()
        answer = await self._submit_somewhere(commands, patience_s, repeat_unknown=repeat_unknown)
        if answer.outcome is SubmitOutcome.COMMITTED:
            self._commits.observe(trio.current_time() - began_s)
        return answer

    async def _submit_somewhere(
        self, commands: tuple[bytes, ...], patience_s: float, *, repeat_unknown: bool
    ) -> SubmitAnswer:
        client = self._others
        if self.leads or client is None:
            return _answer_of(await self.server.propose(commands))
        try:
            sent = await client.submit(
                commands, patience_s=min(self.patience.client_s, patience_s), repeat_unknown=repeat_unknown
            )
        except GarlicFarmError as error:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=str(error))
        if sent.expired:
            return SubmitAnswer(outcome=SubmitOutcome.EXPIRED, reason=sent.reason)
        resolve = ProposalResolved(proposal_id=0, outcome=sent.outcome, position=sent.position, leader=sent.leader)
        return _answer_of(resolve, sent.reason)


class RequestGateway:
    """What stands behind the listener: asks the replica that this node has at that moment, or refuses."""

    def __init__(self, replica: Callable[[], Replica | None], is_out: Callable[[int], bool]) -> None:
        """`is_out`: whether the log has thrown a server out. What comes under its id is refused."""
        self._replica = replica
        self._is_out = is_out

    @property
    def identity(self) -> Identity:
        """What this node says of itself in handshakes."""
        replica = self._replica()
        return Identity() if replica is None else replica.identity

    def request(self, sender: ServerId, request: Request, answered: Callable[[Reply | None], None]) -> Cancel:
        """A peer's request."""
        replica = self._started()
        if self._is_out(integer_id(sender)):
            raise GarlicFarmError(
                Fault.WRONG_SERVER, f"the identity of server {sender} was retired or evicted; its requests are refused"
            )
        return ask_server(replica.server, sender, request, answered)

    def client_request(self, commands: tuple[bytes, ...], answered: Callable[[ClientAnswer | None], None]) -> Cancel:
        """A client's entries; without any, only who leads."""
        replica = self._replica()
        if replica is None:
            return _no_leader_known(answered)
        if any(is_leaders_own(command) for command in commands):
            raise GarlicFarmError(Fault.OUT_OF_TURN, LEADERS_OWN_TEXT)
        return replica.clients.client_request(commands, answered)

    def read_index(self, answered: Callable[[ClientAnswer | None], None]) -> Cancel:
        """Up to where a client's log must be applied for a linearizable read."""
        replica = self._replica()
        return _no_leader_known(answered) if replica is None else replica.clients.read_index(answered)

    def membership_request(self, request: MembershipRequest, answered: Callable[[WireReply | None], None]) -> Cancel:
        """A server is to come or go."""
        return self._started().members.membership_request(request, answered)

    def _started(self) -> Replica:
        replica = self._replica()
        if replica is None:
            raise GarlicFarmError(Fault.BUSY, "this node has not started its Raft server yet")
        return replica


def _no_leader_known(answered: Callable[[ClientAnswer | None], None]) -> Cancel:
    answered(ClientAnswer(term=0))
    return nothing_to_cancel


def is_leaders_own(command: bytes) -> bool:
    """Whether an entry would move log time or change who belongs to the farm: a client must not."""
    # Only what names it, or hides it behind an escape, is worth decoding.
    suspicious = any(word in command for word in _LEADERS_WORDS)
    return suspicious and isinstance(decode(command), LeadersRecord)


@asynccontextmanager
async def open_replica(
    settings: ReplicaSettings,
    applied_state: AppliedState,
    metrics: Metrics,
    durations: Durations,
    observe: Callable[[Notice], None],
) -> AsyncIterator[Replica]:
    """Run this node's Raft server while the block lasts. Raises `StorageError`, with the remedy."""
    profile, server_id = settings.profile, settings.server_id
    identity = Identity(settings.founding.cluster_id.hex(), server_id, profile.raft.lease_promise_ms)
    resolve = _resolver(
        settings,
        applied_state,
        lambda: server.describe().raft.configuration.member_ids,  # made below, like `replica`
    )

    def take_notice(notice: Notice) -> None:
        replica.on_notice(notice)
        observe(notice)

    links = PeerLinks(
        settings.dialer(lambda: identity, ConnectionRole.SERVER),
        resolve,
        metrics=metrics,
        random=Random(),
        configuration_before=applied_state.configuration_before,
        options=profile.links,
    )
    await trio.to_thread.run_sync(_check_storage, settings)
    async with prepare_server(_server_parts(settings, applied_state, links, durations, take_notice)) as server:
        asking = settings.dialer(lambda: identity, ConnectionRole.CLIENT)
        client = GarlicFarmClient(asking, resolve, [server_id], random=Random(), options=profile.client)
        rules = farm_member_rules(applied_state, server, resolve, settings.founding, profile, settings.voters_max)
        requests = MemberRequests(server, server_id, links, rules, metrics, member_request_tuning(profile))
        members = Members(Joining(server, server_id, _told_to_leave), requests)
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
    links: PeerLinks,
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
) -> Callable[[ServerId], PeerAddress | None]:
    """Return a resolver of addresses; it returns None for retired, evicted and completely removed servers."""

    def resolve(peer: ServerId) -> PeerAddress | None:
        admitted = applied_state.state.admitted.get(integer_id(peer))
        if admitted is not None and not admitted.is_member:
            return None
        if peer in applied_state.state.removed and peer not in group():
            return None
        node_id = settings.node_id_of(integer_id(peer)) if admitted is None else admitted.node_id
        return None if node_id is None else settings.address_of(node_id)

    return resolve


def _told_to_leave(leader: ServerId) -> None:
    LOG.warning("server %s, which leads, is about to remove this server from the group", leader)


def _first_configuration(settings: ReplicaSettings) -> Configuration:
    """What the founders agreed on. Endpoints are for people: peers are found by what they announce."""
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
