"""Handlers of the requests about identities: list, approve and evict them.

    GET  /v1/nodes                                   the identities in the log, and up to 64 that wait for approval
    POST /v1/nodes/approve  {"node": NAME or ID}     admits a new node; if a stopped identity has its name, retires that
                                                     identity
    POST /v1/nodes/evict    {"node": NAME or ID}     evicts an identity and replaces all keys
    POST /v1/keys/replace   {"force": false}         replaces all keys and evicts no identity
    POST /v1/backup                                  the farm's committed state, as a backup file

The leader writes approvals, evictions and new keys. Each voter accepts these orders at its own control endpoint, and
first takes over leadership (`bridge.node.control.orders.leading`). No server forwards them, because otherwise a stolen
node could evict other nodes.
"""

from collections.abc import Callable, Mapping

import trio
from msgspec import UNSET, Struct, field

from bridge.api import control_routes as routes
from bridge.api.control import (
    CheckedAnswer,
    ClientKeyView,
    IdentityView,
    KeysReplaced,
    NodeApproved,
    NodeEvicted,
    NodesAnswer,
    Refused,
    RetiredIdentity,
)
from bridge.api.events import BACKUP_MADE, KEYS_REPLACEMENT_COMMITTED, NODE_APPROVED, NODE_EVICTED
from bridge.api.requests import NodeRequest, ReplaceKeysRequest
from bridge.core.formation.member import FarmMember
from bridge.core.log.feature_level import BOUNDS_LEVEL, EVICTION_LEVEL, SUPPORTED_LEVEL
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import Admission, Approval, Eviction, IdentityRecord, KeyReplacement
from bridge.core.membership.admission import (
    Admitted,
    LeaderShare,
    Standing,
    approval_refusal,
    holder_of,
    next_raft_id,
    raft_id_of,
    refusal,
    share_refusal,
    with_room,
)
from bridge.core.membership.eviction import LAST_ERA, NO_ERA_LEFT, majority_lost, too_few_answer, vote_goes_first
from bridge.core.state.farm_state import FarmState
from bridge.node.control.orders.era_sealing import SealedEra, eras_behind, is_era_left, not_admitted, seal_era, staying
from bridge.node.control.orders.leading import HandOver, check_can_lead, commit_as_leader, lead
from bridge.node.control.orders.order_level import OrderLevel, check_level, reach_level
from bridge.node.control.routes import Answer, Call, Handlers
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.node.membership.reconciling import PASSING, group_of
from bridge.node.security.farm_keys import FarmKeys
from bridge.wire.keys.backup import Backup, BackupHead, encode_backup
from consensus import (
    ChangeOutcome,
    ChangeRefusal,
    Configuration,
    LogId,
)

BACKUP_TYPE = "application/octet-stream"
UNADMITTED_LISTED_MAX = 64
"""Limit for listed nodes without an admission: a holder of the farm's key can announce any number of nodes."""
VOTE_PATIENCE_S = 10.0
VOTE_AGAIN_S = 0.1
WAITED_FOR = PASSING - {ChangeRefusal.NOT_LEADER, ChangeRefusal.LEADERSHIP_LOST}
"""Refusals of a request that may succeed later with this leader."""


class IdentityAdmin(Struct, eq=False, kw_only=True):
    """The handlers of the routes above."""

    provider: MembershipProvider
    member_directory: MemberDirectory
    farm_keys: FarmKeys
    trace: EventLog
    current: CurrentFarm
    hand_over: HandOver
    """Transfers leadership to a server."""
    evicting: trio.Lock = field(default_factory=trio.Lock)
    """Permits one eviction at a time: the end of a first one must not clear `losing_vote` during a second one."""

    @property
    def handlers(self) -> Handlers:
        """The handlers, by route."""
        return {
            routes.NODES: self._list,
            routes.NODES_APPROVE: self._approve,
            routes.NODES_APPROVE_CHECK: self._check_approval,
            routes.NODES_EVICT: self._evict,
            routes.NODES_EVICT_CHECK: self._check_evict,
            routes.KEYS_REPLACE: self._replace_keys,
            routes.KEYS_REPLACE_CHECK: self._check_replacement,
            routes.BACKUP: self._back_up,
        }

    # -- list ----------------------------------------------------------------------------------------------------------

    async def _list(self, _: Call[None]) -> NodesAnswer:
        farm = self.current.required()
        state, configuration = farm.state, farm.replica.server.describe().raft.configuration
        admitted = {**farm.known.unapplied(configuration), **state.admitted}
        seen = {bytes(each.node_id): each for each in self.member_directory.members()}
        identities = [
            IdentityView(
                id=each.node_id.hex(),
                name=self._name(each),
                raft_id=server_id,
                standing=each.standing.value,
                status=self._status(each.node_id, seen),
                server_role=_role(server_id, configuration),
            )
            for server_id, each in sorted(admitted.items())
            if each.standing is not Standing.LAPSED
        ]
        unadmitted = [each for each in sorted(seen.items()) if raft_id_of(admitted, each[0]) is None]
        identities += [
            IdentityView(
                id=node_id.hex(),
                name=listed.metadata.name,
                raft_id=None,
                standing="waiting for approval",
                status=self._status(node_id, seen),
                server_role="none",
                reason=self._refusal(state, node_id, listed.metadata.name),
            )
            for node_id, listed in unadmitted[:UNADMITTED_LISTED_MAX]
        ]
        clients = tuple(
            ClientKeyView(
                node_id.hex(),
                each.name,
                tuple(scope.value for scope in each.scopes),
                each.admitted,
                each.admitted_by.hex() or UNSET,
            )
            for node_id, each in sorted(state.clients.items())
        )
        return NodesAnswer(
            level=state.level,
            supported_level=SUPPORTED_LEVEL,
            nodes=tuple(identities),
            not_listed=max(0, len(unadmitted) - UNADMITTED_LISTED_MAX),
            clients=clients,
        )

    def _refusal(self, state: FarmState, node_id: bytes, name: str) -> str | None:
        holder = holder_of(state.admitted, name)
        runs = holder is not None and self._runs(state.admitted[holder].node_id)
        return refusal(state.admitted, node_id, name, holder_runs=runs)

    def _name(self, each: Admitted) -> str | None:
        own = each.node_id == self.provider.node_id
        return self.member_directory.name_of(self.provider.node_id) if own else each.name

    def _status(self, node_id: bytes, seen: dict[bytes, FarmMember]) -> str:
        if node_id == self.provider.node_id:
            return "alive"
        listed = seen.get(node_id)
        return "unknown" if listed is None else listed.status.name.lower()

    # -- approve -------------------------------------------------------------------------------------------------------

    async def _check_approval(self, call: Call[NodeRequest]) -> CheckedAnswer:
        farm = self.current.required()
        await self._prepare(farm)
        check_level(farm, _approval_level(farm.state, self._decision(farm.state, call.body.node)))
        return CheckedAnswer()

    async def _approve(self, call: Call[NodeRequest]) -> NodeApproved:
        await self._check_approval(call)
        farm = self.current.required()
        return await self._approved(farm, lambda: self._decision(farm.state, call.body.node))

    async def approve_invited(self, node_id: bytes) -> None:
        """Admit a node with an invitation, if no other identity has its name; raise `Refused`."""
        farm = self.current.required()
        await self._prepare(farm)

        def decision() -> Admission:
            return self._admission(farm.state, self._newcomer(farm.state, node_id.hex()))

        decision()
        await self._approved(farm, decision)

    async def _approved(self, farm: FoundedFarm, decide: Callable[[], Admission | Approval]) -> NodeApproved:
        """Take over leadership, then decide again and commit the decision."""
        await lead(farm, self.hand_over)
        await reach_level(farm, _approval_level(farm.state, decide()))
        decision = decide()
        holder = holder_of(farm.state.admitted, decision.name)
        await self._commit(farm, decision)
        after, name, node_id = farm.state.admitted, decision.name, decision.node_id
        given = raft_id_of(after, node_id)
        if given is None or after[given].name != name:
            raise Refused(
                409, "not-approved", "another decision about this name was committed first: see `garlicfarm node list`"
            )
        self.trace.append(NODE_APPROVED, {"name": name, "id": node_id.hex(), "server": given})
        retired = None
        if isinstance(decision, Approval) and holder is not None:
            retired = RetiredIdentity(decision.replaces.hex(), holder)
        return NodeApproved(name, node_id.hex(), given, retired)

    def _decision(self, state: FarmState, node: str) -> Admission | Approval:
        """Return the entry that admits a node, or transfers a stopped identity's name to it; raise `Refused`."""
        newcomer = self._newcomer(state, node)
        name = newcomer.metadata.name
        holder = holder_of(state.admitted, name)
        if holder is None:
            return self._admission(state, newcomer)
        replaced = state.admitted[holder]
        if self._runs(replaced.node_id):
            raise Refused(
                409,
                "still-runs",
                f"the identity {replaced.node_id.hex()}, which has the name {name}, runs: two nodes cannot have one"
                f" name. Stop that one, or give {newcomer.node_id.hex()} another name",
            )
        server_id = next_raft_id(state.admitted, newcomer.node_id)
        approval = Approval(newcomer.node_id, name, replaced.node_id, newcomer.key or None, server_id)
        reason = self._share_refusal(state, newcomer.node_id) or approval_refusal(_with_room(state), approval)
        if reason is not None:
            raise Refused(409, "not-approved", reason)
        return approval

    def _admission(self, state: FarmState, newcomer: FarmMember) -> Admission:
        """Return the entry that admits a node under a name that no other identity has."""
        node_id, name, table = newcomer.node_id, newcomer.metadata.name, state.admitted
        if raft_id_of(table, node_id) is not None:
            text = f"{node_id.hex()} is already admitted; the leader records its new name {name} automatically"
            raise Refused(409, "not-needed", text)
        reason = self._share_refusal(state, node_id) or refusal(_with_room(state), node_id, name)
        if reason is not None:
            raise Refused(409, "not-approved", reason)
        return Admission(node_id, name, newcomer.key or None, next_raft_id(table, node_id))

    def _share_refusal(self, state: FarmState, node_id: bytes) -> str | None:
        return share_refusal(state.admitted, node_id, LeaderShare(self.provider.node_id, state.admitted_by))

    def _newcomer(self, state: FarmState, name: str) -> FarmMember:
        """Return the running node with this name or id, but without an admission for this name; raise `Refused`."""
        found = [
            each
            for each in self.member_directory.members()
            if each.reachable
            and name in (each.node_id.hex(), each.metadata.name)
            and ((known := raft_id_of(state.admitted, each.node_id)) is None or state.admitted[known].name != name)
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            text = f"no running node waits for approval as {name[:64]!r}; see `garlicfarm node list`"
            raise Refused(404, "no-such-node", text)
        ids = ", ".join(each.node_id.hex() for each in found)
        raise Refused(409, "several", f"several identities match {name[:64]!r}: {ids}; name one by its id")

    # -- evict ---------------------------------------------------------------------------------------------------------

    async def _check_evict(self, call: Call[NodeRequest]) -> CheckedAnswer:
        farm = self.current.required()
        await self._prepare(farm)
        self._check_eviction(farm, call.body)
        return CheckedAnswer()

    async def _evict(self, call: Call[NodeRequest]) -> NodeEvicted:
        async with self.evicting:
            return await self._evicted(call)

    async def _evicted(self, call: Call[NodeRequest]) -> NodeEvicted:
        await self._check_evict(call)
        farm, which = self.current.required(), call.body
        await lead(farm, self.hand_over)
        node_id, server_id, obstacle = self._check_eviction(farm, which)
        each = None if server_id is None else farm.state.admitted[server_id]
        group, expect = group_of(farm.replica.server.describe().raft, farm.contact_within_ms), self._expect
        going = frozenset(() if server_id is None else (server_id,))
        farm.reconciling.losing_vote |= going
        try:
            if obstacle is None and server_id is not None and vote_goes_first(group.voters, server_id, expect):
                await self._take_vote(farm, server_id)
            await reach_level(farm, _eviction_level(farm.state, server_id))
            await self._catch_up_eras(farm)
            eviction, left_out = self._eviction(farm.state, node_id)
            await self._commit(farm, eviction)
        finally:
            farm.reconciling.losing_vote -= going
        if farm.state.rekeying.era != eviction.era or not self._is_evicted(farm.state, node_id):
            raise Refused(409, "not-evicted", "another eviction was committed first: try again")
        chain = self.provider.keyring
        boxes = len(eviction.boxes)
        self.trace.append(NODE_EVICTED, {"id": node_id.hex(), "era": eviction.era, "sealedFor": boxes})
        raft = farm.replica.server.describe().raft
        return NodeEvicted(
            id=node_id.hex(),
            era=eviction.era,
            sealed_for=boxes,
            name=None if each is None else each.name,
            raft_id=raft_id_of(farm.state.admitted, node_id),
            keys_replaced=chain is not None and boxes > 0,
            keys_not_replaced=NO_ERA_LEFT if chain is not None and boxes == 0 else UNSET,
            left_out=left_out,
            votes_still=server_id is not None and server_id in raft.configuration.voter_ids,
            client_keys=_client_keys_of(farm.state, node_id) or UNSET,
            client_keys_of_unknown=_client_keys_of(farm.state, b"") or UNSET,
        )

    def _check_eviction(self, farm: FoundedFarm, which: NodeRequest) -> tuple[bytes, int | None, str | None]:
        """Return the identity, its Raft id and the obstacle that the order overrides; raise `Refused`.

        Only the leader knows if the remaining voters in contact are a majority.
        """
        state = farm.state
        node_id, server_id = self._target(state, which.node)
        if node_id == self.provider.node_id:
            text = "a node cannot evict itself: run the command at another voter; `garlicfarm servers` lists them"
            raise Refused(409, "itself", text)
        each = None if server_id is None else state.admitted[server_id]
        if each is not None and each.standing is Standing.EVICTED and not which.force:
            text = f"{node_id.hex()} is evicted already. To replace the farm's keys once more, force it"
            raise Refused(409, "evicted-already", text)
        check_level(farm, _eviction_level(state, server_id))
        if not farm.replica.leads:
            return node_id, server_id, None
        group = group_of(farm.replica.server.describe().raft, farm.contact_within_ms)
        obstacle = majority_lost(group.voters, group.answering | {group.own_id}, server_id, self._expect)
        if obstacle is not None and not which.force:
            raise Refused(409, "no-majority", obstacle)
        return node_id, server_id, obstacle

    @property
    def _expect(self) -> int:
        return self.farm_keys.current.expect

    async def _take_vote(self, farm: FoundedFarm, server_id: int) -> None:
        """Change a voter to a learner. A learner still receives the log, including the entry with its eviction."""
        server, ended = farm.replica.server, None
        with trio.move_on_after(VOTE_PATIENCE_S):
            while True:
                now = server.describe().raft.configuration
                leaving = tuple(each for each in now.voters if each.server_id == server_id)
                staying = tuple(each for each in now.voters if each.server_id != server_id)
                ended = await server.change_configuration(staying, (*now.learners, *leaving))
                if ended.outcome is ChangeOutcome.COMMITTED:
                    return
                if ended.outcome is not ChangeOutcome.REFUSED or ended.refusal not in WAITED_FOR:
                    break
                await trio.sleep(VOTE_AGAIN_S)
        why = "no majority answers" if ended is None or ended.refusal is None else ended.refusal.value
        text = f"the group could not remove the vote of server {server_id}: {why}. No node was evicted; try again"
        raise Refused(503, "not-evicted", text)

    def _target(self, state: FarmState, name: str) -> tuple[bytes, int | None]:
        known = {each.node_id: number for number, each in state.admitted.items()}
        named = [each.node_id for each in state.admitted.values() if each.name == name and each.is_member]
        named += [bytes(each.node_id) for each in self.member_directory.members() if each.metadata.name == name]
        identities = {
            *known,
            *(bytes(each.node_id) for each in self.member_directory.members()),
            bytes(self.provider.node_id),
        }
        by_id = [node_id for node_id in identities if node_id.hex() == name]
        found = set(by_id or named)
        if len(found) != 1:
            what = "several identities have" if found else "no identity has"
            text = f"{what} the name or id {name[:64]!r}; `garlicfarm node list` shows the ids"
            raise Refused(404 if not found else 409, "no-such-node", text)
        node_id = found.pop()
        return node_id, known.get(node_id)

    def _eviction(self, state: FarmState, node_id: bytes) -> tuple[Eviction, tuple[str, ...]]:
        """Return the entry, and the names of remaining members without a box (the new key, sealed for a member)."""
        chain, seen = self.provider.keyring, self._present_members()
        if chain is None or not is_era_left(state, chain):
            # Without gossip the operator replaces the key file of every node by hand. If no further era is possible,
            # the entry evicts the identity but does not replace keys.
            members = staying(state, self.provider.node_id, {}, without=node_id)
            era = state.rekeying.era if state.rekeying.era == LAST_ERA else state.rekeying.era + 1
            return Eviction(node_id, era, ()), tuple(each.name or "?" for each in members)
        sealed = seal_era(state, chain, self.provider, self.farm_keys.current.label, seen, without=node_id)
        return Eviction(node_id, sealed.era, sealed.boxes), (*sealed.left_out, *not_admitted(state, seen))

    def _is_evicted(self, state: FarmState, node_id: bytes) -> bool:
        server_id = raft_id_of(state.admitted, node_id)
        return server_id is not None and state.admitted[server_id].standing is Standing.EVICTED

    async def _catch_up_eras(self, farm: FoundedFarm) -> None:
        """Commit an entry without keys for each era that this node's keyring has begun and the log lacks."""
        chain = self.provider.keyring
        if chain is None or not is_era_left(farm.state, chain):
            return
        for _ in range(eras_behind(farm.state, chain)):
            await self._commit(farm, KeyReplacement(farm.state.rekeying.era + 1, ()))

    # -- replace the keys ----------------------------------------------------------------------------------------------

    async def _check_replacement(self, call: Call[ReplaceKeysRequest]) -> CheckedAnswer:
        farm = self.current.required()
        await self._prepare(farm)
        self._next_era(farm, force=call.body.force)
        return CheckedAnswer()

    async def _replace_keys(self, call: Call[ReplaceKeysRequest]) -> KeysReplaced:
        farm, force = self.current.required(), call.body.force
        await self._prepare(farm)
        if not farm.replica.leads:
            # Checked first, because a refused replacement must not transfer leadership.
            self._next_era(farm, force=force)
        await lead(farm, self.hand_over)
        state, sealed = farm.state, self._next_era(farm, force=force)
        await self._catch_up_eras(farm)
        await self._commit(farm, KeyReplacement(sealed.era, sealed.boxes))
        if farm.state.rekeying.era != sealed.era:
            text = "another operator's replacement of the keys was committed first: see `garlicfarm keys list`"
            raise Refused(409, "not-replaced", text)
        names = {each.node_id: each.name or each.node_id.hex() for each in state.admitted.values()}
        away = [names[node_id] for node_id, _ in sealed.boxes if not self._runs(node_id)]
        self.trace.append(KEYS_REPLACEMENT_COMMITTED, {"era": sealed.era, "sealedFor": len(sealed.boxes)})
        left_out = (*sealed.left_out, *not_admitted(state, self._present_members()))
        return KeysReplaced(sealed.era, len(sealed.boxes), tuple(sorted(away)), left_out)

    def _next_era(self, farm: FoundedFarm, *, force: bool) -> SealedEra:
        """Return new keys for all members; raise `Refused`. Only the leader detects the loss of a majority."""
        state, chain = farm.state, self.provider.keyring
        if chain is None:
            text = (
                'with transport = "i2p" gossip does not distribute keys: replace the key file of each node by'
                " hand (`garlicfarm help stolen-node`)"
            )
            raise Refused(409, "no-gossip", text)
        if farm.replica.leads:
            group = group_of(farm.replica.server.describe().raft, farm.contact_within_ms)
            missing = too_few_answer(group.voters, group.answering | {group.own_id}, None, len(group.voters))
            if missing is not None:
                text = f"{missing} answer, less than a majority: nothing could be committed"
                raise Refused(409, "no-majority", text)
        if not is_era_left(state, chain):
            raise Refused(409, "no-era-left", NO_ERA_LEFT)
        sealed = seal_era(state, chain, self.provider, self.farm_keys.current.label, self._present_members())
        if sealed.left_out and not force:
            text = (
                f"{len(sealed.left_out)} of {len(sealed.left_out) + len(sealed.boxes)} members would not get a key,"
                f" because their public key is not known yet: {', '.join(sealed.left_out)}. Start them once, so that"
                " the leader records it; or use --force, and give them the new key file"
            )
            raise Refused(409, "left-out", text)
        return sealed

    def _present_members(self) -> dict[bytes, FarmMember]:
        return {bytes(each.node_id): each for each in self.member_directory.members()}

    # -- back up -------------------------------------------------------------------------------------------------------

    async def _back_up(self, _: Call[None]) -> Answer:
        farm = self.current.required()
        state = farm.state
        image = farm.applied_state.snapshot()
        configuration = farm.replica.server.describe().raft.configuration
        key = self.farm_keys.current
        head = BackupHead(
            node_id=self.provider.node_id,
            cluster_id=farm.known.founding.cluster_id,
            founding=farm.known.founding,
            configuration=configuration,
            last=LogId(state.applied_index, state.applied_term),
            made_at_ms=clock_ms(),
            cluster=key.cluster,
            label=key.label.hex(),
            epoch=key.epoch,
        )
        self.trace.append(BACKUP_MADE, {"index": state.applied_index})
        return Answer(200, encode_backup(Backup(head, b"".join(image))), BACKUP_TYPE)

    # -- common --------------------------------------------------------------------------------------------------------

    @staticmethod
    async def _prepare(farm: FoundedFarm) -> None:
        """Raise `Refused` unless this node can lead; a follower applies all entries acknowledged before this call."""
        check_can_lead(farm)
        if not farm.replica.leads:
            await farm.catch_up()

    def _runs(self, node_id: bytes) -> bool:
        if node_id == self.provider.node_id:
            return True
        return any(each.node_id == node_id and each.reachable for each in self.member_directory.members())

    async def _commit(self, farm: FoundedFarm, record: IdentityRecord) -> None:
        level = farm.state.level
        if level < (needed := kind_of(record).level):
            raise Refused(
                409,
                "level-too-low",
                f"the farm is at feature level {level}, and this order needs level {needed}: a voter announces no"
                " higher level, or its announcement has not arrived yet. Wait; `garlicfarm doctor` names the voters."
                " Remove a voter that will not return: `garlicfarm servers remove NAME`",
            )
        await commit_as_leader(farm, record, "`garlicfarm node list` shows whether it was done")


def _approval_level(state: FarmState, decision: Admission | Approval) -> OrderLevel:
    """Return the level that a decision needs. The identity that loses its name need not announce this level."""
    return OrderLevel("approval", holder_of(state.admitted, decision.name), kind_of(decision).level)


def _eviction_level(state: FarmState, server_id: int | None) -> OrderLevel:
    if state.rekeying.era == LAST_ERA:
        return OrderLevel("eviction", server_id, BOUNDS_LEVEL, f": {NO_ERA_LEFT}", is_eviction=True)
    return OrderLevel("eviction", server_id, EVICTION_LEVEL, is_eviction=True)


def _role(server_id: int, configuration: Configuration) -> str:
    if server_id in configuration.voter_ids:
        return "voter"
    return "learner" if server_id in configuration.learner_ids else "none"


def _client_keys_of(state: FarmState, admitted_by: bytes) -> tuple[str, ...]:
    """Return the names of client keys that one node admitted; an empty id means keys without a recorded node."""
    found = (each for each in state.clients.values() if each.admitted and each.admitted_by == admitted_by)
    return tuple(sorted(each.name for each in found))


def _with_room(state: FarmState) -> Mapping[int, Admitted]:
    """Return the table of identities after the state machine has made room for one more."""
    return with_room(state.admitted) if state.level >= BOUNDS_LEVEL else state.admitted
