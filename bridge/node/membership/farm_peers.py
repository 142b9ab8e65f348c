"""Which connecting peers belong to this farm: the directory that the handshakes of the Raft port ask.

    key of the proof ──▶ NodeId ──▶ evicted or retired?                   refused, whatever else it shows
                               ├──▶ the founding, the log, admissions.json: the Raft id is bound to another identity?
                               └──▶ a server that the log has removed and that is out of the group?     no server's role

A copied key file is an invitation to ask: a holder may connect as a client and introduce itself. A Raft id needs the
identity to which the founding or an admission in the log has bound it. Before this node knows its farm it believes no
peer; a claim is then answered by "not yet", and its peers try again.

This node's log may be behind, as a newcomer's empty one is. So a Raft id that it does not tell of is believed if the
handshake brings the signed admissions that lead from a founder to that identity (`admission_chain`). What the log says
of an id or an identity goes before.

*A member can sign an admission and never submit it.* This node cannot tell such a server from a newcomer. Therefore a
chain is accepted only for what the committed log of a leader could hold: an id at most `IDS_AHEAD_MAX` above the
highest known one, one identity for each signer and id, and no signature of an evicted, retired or removed server,
since the log with its removal has all that it admitted before. Connections and bytes of such a peer count on its signer
(`voucher_of`) until the log names the peer. So a member gets a second share of places, however many servers it invents.

A server that an operator has removed speaks as a server as long as the group still needs it: it votes until another one
is in its place, and what it alone has in its log has to reach the others. An evicted server does not.

*An accepted peer is judged again* by the same rules whenever the log changes what they depend on. A connection lasts
for weeks, and what was shown at its beginning may be worth nothing by now: the log has given the id to another
identity, the admission has lapsed, or its signer was evicted.

*While the log is replayed* `admissions.json` names evicted members before the log names the members that they had
admitted. The latter are believed all the same: `AdmissionStore` writes both into one file in one write, so a file that
names an identity as out also names every member that the log had admitted before. Such a member needs no chain.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from bridge.core.formation.founding import Founding
from bridge.core.membership.admission import Admitted, is_lapsed, out_refusal, raft_id_of
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.admission_chain import flaw_of
from consensus.protocols.garlic_farm import Claim, ConnectionRole, Fault, ProvenPeer, Refusal
from gossip.node import NodeIdentity
from gossip.wire import node_id_of

IDS_AHEAD_MAX = 256
"""How far above the highest known Raft id an id may be that a chain of admissions proves. Each reporting period gives
out one id at most, so a node may miss two hours of admissions that all lapse again."""
UNNAMED_OF_SIGNER_MAX = 64
"""Ids of one signer for which this node remembers the identity: as many as a farm has servers."""


@dataclass(frozen=True, slots=True)
class KnownFarm:
    """What this node knows of who belongs, once it knows its farm."""

    founding: Founding
    admissions: AdmissionStore
    applied_state: AppliedState
    group: Callable[[], Collection[int]] = tuple
    """The Raft ids of the configuration in effect; none before the server runs."""

    def is_lapsed(self, server_id: int) -> bool:
        """Whether the log gave this Raft id out, and its identity never came alive."""
        return is_lapsed(self.applied_state.state.admitted, server_id)

    def holder_of(self, server_id: int) -> Admitted | None:
        """Whose Raft id it is: by the log, else by what was noted of it before the log was replayed."""
        admitted = self.applied_state.state.admitted.get(server_id)
        if admitted is None:
            node_id = self.admissions.node_id_of(server_id)
            admitted = None if node_id is None else Admitted(node_id)
        return admitted

    def raft_id_of(self, node_id: bytes) -> int | None:
        """Which Raft id an identity has, as far as this node knows."""
        known = raft_id_of(self.applied_state.state.admitted, node_id)
        if known is not None:
            return known
        noted = self.admissions.raft_id_of(node_id)
        return None if noted is None or self.is_lapsed(noted) else noted

    def expulsion(self, node_id: bytes) -> str | None:
        """Return the reason why this identity is refused permanently, or None."""
        if node_id in self.admissions.out:
            return (
                f"the identity {node_id.hex()} was retired or evicted, and is never admitted again: to let the node"
                " return, give it a new state directory, and so a new identity"
            )
        return out_refusal(self.applied_state.state.admitted, node_id)

    def is_out(self, server_id: int) -> bool:
        """Return True if the log retired or evicted this server's identity."""
        each = self.applied_state.state.admitted.get(server_id)
        return each is not None and not each.is_member

    def may_tell_keys(self, node_id: bytes) -> bool:
        """Whether what this identity says of the gossip keys counts: the farm admitted it.

        What is on disk of the farm counts until the log has been replayed. Otherwise a copied key could tell keys to
        every node that restarts, which would pass them on under its own signature.
        """
        if node_id in self.admissions.out:
            return False
        admitted = self.applied_state.state.admitted
        known = raft_id_of(admitted, node_id)
        if known is not None:
            return admitted[known].is_member
        noted = self.admissions.raft_id_of(node_id)
        return noted is not None and not self.is_lapsed(noted)

    def is_removed(self, server_id: int) -> bool:
        """Whether an operator has removed this server, and the group does not need it any more."""
        return server_id in self.applied_state.state.removed and server_id not in self.group()

    def highest_id(self) -> int:
        """The highest Raft id that this node knows to be given out; an empty log tells those of the founders."""
        return max((*self.applied_state.state.admitted, *self.group()), default=0)

    def grounds(self) -> tuple[object, ...]:
        """All that verdicts rest on and that changes: equal grounds, equal verdicts."""
        state = self.applied_state.state
        table = frozenset((number, each.node_id, each.key, each.standing) for number, each in state.admitted.items())
        return table, self.admissions.out, frozenset(number for number in state.removed if self.is_removed(number))


class _Vouched:
    """Which identity each signer has admitted under each Raft id that the log of this node has not reached."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[int, bytes]] = {}
        """By signer, the ids in the order in which they were last shown."""

    def take(self, signer: bytes, server_id: int, node_id: bytes) -> bool:
        """Note an admission; False if the signer has admitted another identity under this id."""
        ids = self._of.setdefault(signer, {})
        if ids.get(server_id, node_id) != node_id:
            return False
        ids.pop(server_id, None)
        ids[server_id] = node_id
        if len(ids) > UNNAMED_OF_SIGNER_MAX:
            del ids[next(iter(ids))]
        return True

    def signer_of(self, server_id: int, node_id: bytes) -> bytes | None:
        """The identity that has admitted this one; None if none did."""
        return next((signer for signer, ids in self._of.items() if ids.get(server_id) == node_id), None)

    def drop_up_to(self, highest: int) -> None:
        """Drop the ids that the log has reached: it says itself whose they are."""
        kept = {signer: {at: each for at, each in ids.items() if at > highest} for signer, ids in self._of.items()}
        self._of = {signer: ids for signer, ids in kept.items() if ids}


class FarmPeers:
    """The directory of one node. `farm` is None for as long as the node does not know its farm."""

    def __init__(self, identity: NodeIdentity, farm: KnownFarm | None) -> None:
        """`farm`: what this node remembers of it."""
        self._identity = identity
        self._public_key = identity.key.public_key().public_bytes_raw()
        self._vouched = _Vouched()
        self.farm = farm

    @property
    def public_key(self) -> bytes:
        """Of this node's identity."""
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        """By this node's identity."""
        return self._identity.key.sign(data)

    def admissions(self) -> tuple[bytes, ...]:
        """What shows this node's identity to who has not heard of it."""
        return () if self.farm is None else self.farm.admissions.chain

    def judge(self, claim: Claim) -> Refusal | None:
        """What is against this claim; the sentence says who, and why."""
        farm, node_id = self.farm, node_id_of(claim.public_key)
        if farm is None:
            if claim.server_id is None:
                return None
            text = f"the identity {node_id.hex()} claims to be server {claim.server_id}, and this node does not know"
            return Refusal(Fault.BUSY, f"{text} its farm yet; it will try again")
        expulsion = farm.expulsion(node_id)
        if expulsion is not None:
            return Refusal(Fault.EXPELLED, expulsion)
        if claim.server_id is None:
            return None
        return _judged(farm, self._vouched, claim, node_id, claim.server_id)

    def voucher_of(self, claim: Claim) -> bytes | None:
        """The identity that answers for an accepted claim; None if this node knows whose id it is, or none is claimed.

        The log names a newcomer soon, and from then on the newcomer answers for itself.
        """
        if self.farm is None or claim.server_id is None or self.farm.holder_of(claim.server_id) is not None:
            return None
        return self._vouched.signer_of(claim.server_id, node_id_of(claim.public_key))

    def is_out(self, node_id: bytes) -> bool:
        """Return True if this identity was retired or evicted: no node connects to it."""
        return self.farm is not None and self.farm.expulsion(node_id) is not None

    def may_tell_keys(self, node_id: bytes) -> bool:
        """Whether what this identity says of the gossip keys counts.

        Before a node knows its farm no node is admitted: an identity that signs may be a founder-to-be, and is
        believed.
        """
        return self.farm is None or self.farm.may_tell_keys(node_id)

    def is_server_out(self, server_id: int) -> bool:
        """Return True if the log retired or evicted this server's identity: no node exchanges messages with it."""
        return self.farm is not None and self.farm.is_out(server_id)

    async def follow(self, farm: KnownFarm, end_connections: Callable[[Callable[[ProvenPeer], bool]], None]) -> None:
        """Close the connections of peers that would now be refused, until cancelled."""
        grounds: tuple[object, ...] = ()
        refused: dict[Claim, bool] = {}
        while True:
            # News come with every entry, and a chain costs up to sixteen signatures: verdicts stand with their grounds.
            before = refused if grounds == (now := farm.grounds()) else {}
            grounds, refused = now, {}
            end_connections(partial(self._is_refused, before, refused))
            await farm.applied_state.news()

    def _is_refused(self, before: Mapping[Claim, bool], now: dict[Claim, bool], proven: ProvenPeer) -> bool:
        claim = proven.claim
        if claim not in now:
            now[claim] = before[claim] if claim in before else self.judge(claim) is not None
        return now[claim]


def _judged(farm: KnownFarm, vouched: _Vouched, claim: Claim, node_id: bytes, server_id: int) -> Refusal | None:
    if farm.is_lapsed(server_id):
        return Refusal(
            Fault.UNKNOWN_IDENTITY,
            f"the identity {node_id.hex()} claims to be server {server_id}, but that admission expired because the"
            " node did not join in time: give the node a new state directory, and let it be admitted again",
        )
    holder = farm.holder_of(server_id)
    if holder is None:
        flaw = _flaw_of(farm, vouched, claim, node_id, server_id)
        if flaw is None:
            return None
        text = f"the identity {node_id.hex()} claims to be server {server_id}, which this farm does not have: {flaw}"
        return Refusal(Fault.UNKNOWN_IDENTITY, text)
    if holder.node_id != node_id or holder.key not in {None, claim.public_key}:
        return Refusal(
            Fault.UNKNOWN_IDENTITY,
            f"the identity {node_id.hex()} claims to be {_named(server_id, holder)}, which has the identity"
            f" {holder.node_id.hex()}",
        )
    if claim.role is ConnectionRole.SERVER and farm.is_removed(server_id):
        return Refusal(
            Fault.EXPELLED,
            f"{_named(server_id, holder)} was removed from the farm by an operator, and speaks as a server no more",
        )
    return None


def _flaw_of(farm: KnownFarm, vouched: _Vouched, claim: Claim, node_id: bytes, server_id: int) -> str | None:
    """Why a peer that the log does not name is not believed by what it shows either."""
    own_id = farm.raft_id_of(node_id)
    if own_id is not None:
        return f"that identity has the Raft id {own_id}"
    signers: list[bytes] = []

    def is_known(author: bytes) -> bool:
        signers.append(author)
        return farm.raft_id_of(author) is not None

    flaw = flaw_of(claim.admissions, farm.founding.cluster_id, (server_id, node_id), is_known, partial(_is_void, farm))
    if flaw is not None:
        return flaw
    highest = farm.highest_id()
    if server_id > highest + IDS_AHEAD_MAX:
        # A newcomer's log is empty, but a member has told it its own id.
        highest = max(highest, farm.admissions.own_id or 0)
    if server_id > highest + IDS_AHEAD_MAX:
        return (
            f"the highest Raft id known here is {highest}, and an admission counts up to {IDS_AHEAD_MAX} above it; if"
            " this node was away for long, let a server lead that it knows (`garlicfarm transfer --to NODE` at the"
            " leader) until it has the log"
        )
    vouched.drop_up_to(highest)
    if not vouched.take(signers[-1], server_id, node_id):
        return f"the identity {signers[-1].hex()} has signed an admission of another identity with the same Raft id"
    return None


def _is_void(farm: KnownFarm, author: bytes) -> bool:
    """Whether the log of this node has all admissions of this identity that count: it is out, or was removed."""
    server_id = farm.raft_id_of(author)
    return farm.expulsion(author) is not None or (server_id is not None and farm.is_removed(server_id))


def _named(server_id: int, holder: Admitted) -> str:
    return f"server {server_id}" if holder.name is None else f"server {server_id} ({holder.name})"
