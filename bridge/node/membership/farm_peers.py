"""The directory of peers for handshakes on the Raft port: it accepts or refuses the ids that peers claim.

    key of the proof ──▶ NodeId ──▶ evicted or retired?              refused, regardless of other proofs
                               ├──▶ founding, log, admissions.json: is the Raft id bound to another identity?
                               └──▶ a removed server outside the group?   refused in the role of a server

With a copied key file alone, a peer may only connect as a client and introduce itself. To use a Raft id, a peer needs
the identity that the founding or an admission in the log binds to this id. Before this node knows its farm it refuses
claims of a Raft id with `Fault.BUSY`, and its peers try again.

The log of this node may be incomplete. So this node accepts an unknown Raft id if the handshake contains a chain of
signed admissions from a founder to the peer's identity (`admission_chain`). The log's data on an id or identity takes
precedence.

A removed server may act as a server while the group needs its vote and its entries. An evicted server may not. When the
log changes the data that verdicts depend on, accepted peers are judged again (`follow`).
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from msgspec import Struct

from bridge.core.formation.founding import Founding
from bridge.core.membership.admission import Admitted, is_lapsed, raft_id_of, retired_or_evicted_refusal
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.admission_chain import flaw_of
from consensus import Configuration, integer_id
from consensus.protocols.garlic_farm import Claim, ConnectionRole, Fault, ProvenPeer, Refusal
from gossip.node import NodeIdentity
from gossip.wire import node_id_of

IDS_AHEAD_MAX = 256
"""A Raft id proven by a chain of admissions may exceed the highest known Raft id by this number.

A leader with `admit = "all"` admits one identity per reporting period (30 s by default). So a node that missed two
hours of the log still accepts the next ids.
"""
UNNAMED_OF_SIGNER_MAX = 64
"""Limit for the stored ids of one signer."""


class KnownFarm(Struct, frozen=True):
    """This node's data on members, after it knows its farm.

    During the replay of the log, `admissions.json` already lists an evicted member as evicted. The nodes that this
    member had admitted are still accepted, because the file lists them, too (`AdmissionStore` writes both in one step).
    """

    founding: Founding
    admissions: AdmissionStore
    applied_state: AppliedState
    group: Callable[[], Collection[int]] = tuple
    """Returns the Raft ids of the configuration in effect; empty before the server runs."""

    def is_lapsed(self, server_id: int) -> bool:
        """Return True if the log assigned this Raft id, and the admission expired or was dropped."""
        return is_lapsed(self.applied_state.state.admitted, server_id)

    def holder_of(self, server_id: int) -> Admitted | None:
        """Return the identity with this Raft id: from the log, or from the file before the log is replayed."""
        admitted = self.applied_state.state.admitted.get(server_id)
        if admitted is None:
            node_id = self.admissions.node_id_of(server_id)
            admitted = None if node_id is None else Admitted(node_id)
        return admitted

    def unapplied(self, configuration: Configuration) -> dict[int, Admitted]:
        """Return the identities of servers whose admission this node has not applied since its start."""
        admitted = self.applied_state.state.admitted
        servers = map(integer_id, configuration.member_ids)
        holders = {each: self.holder_of(each) for each in servers if each not in admitted}
        return {server_id: each for server_id, each in holders.items() if each is not None}

    def raft_id_of(self, node_id: bytes) -> int | None:
        """Return the Raft id of an identity, if this node knows it."""
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
        return retired_or_evicted_refusal(self.applied_state.state.admitted, node_id)

    def is_out(self, server_id: int) -> bool:
        """Return True if the log retired or evicted this server's identity."""
        each = self.applied_state.state.admitted.get(server_id)
        return each is not None and not each.is_member

    def may_send_keys(self, node_id: bytes) -> bool:
        """Return True if this identity may announce gossip keys: the farm admitted it.

        Until the log is replayed, the farm's data on disk decides. Otherwise the holder of a copied key file could
        announce keys to a restarting node, which would pass them on under its own signature.
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
        """Return True if an operator has removed this server, and the group does not need it any more."""
        return server_id in self.applied_state.state.removed and server_id not in self.group()

    def highest_id(self) -> int:
        """Return the highest Raft id known to be assigned; with an empty log, the highest of the founders."""
        return max((*self.applied_state.state.admitted, *self.group()), default=0)

    def grounds(self) -> tuple[object, ...]:
        """Return the changing data that verdicts depend on. Equal data cause equal verdicts."""
        state = self.applied_state.state
        table = frozenset((number, each.node_id, each.key, each.standing) for number, each in state.admitted.items())
        return table, self.admissions.out, frozenset(number for number in state.removed if self.is_removed(number))


class _Vouched:
    """Identities that each signer has admitted under Raft ids that this node's log does not contain yet."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[int, bytes]] = {}
        """Identities by signer and Raft id, ordered by the last handshake with this id."""

    def take(self, signer: bytes, server_id: int, node_id: bytes) -> bool:
        """Store an admission; return False if the signer has admitted another identity under this id."""
        ids = self._of.setdefault(signer, {})
        if ids.get(server_id, node_id) != node_id:
            return False
        ids.pop(server_id, None)
        ids[server_id] = node_id
        if len(ids) > UNNAMED_OF_SIGNER_MAX:
            del ids[next(iter(ids))]
        return True

    def signer_of(self, server_id: int, node_id: bytes) -> bytes | None:
        return next((signer for signer, ids in self._of.items() if ids.get(server_id) == node_id), None)

    def drop_up_to(self, highest: int) -> None:
        """Drop the ids that the log has reached: it contains their identities."""
        kept = {signer: {at: each for at, each in ids.items() if at > highest} for signer, ids in self._of.items()}
        self._of = {signer: ids for signer, ids in kept.items() if ids}


class FarmPeers:
    """The directory of one node; `farm` is set once the node knows its farm."""

    def __init__(self, identity: NodeIdentity, farm: KnownFarm | None) -> None:
        """Start with the stored data of the farm, if any."""
        self._identity = identity
        self._public_key = identity.key.public_key().public_bytes_raw()
        self._vouched = _Vouched()
        self.farm = farm

    @property
    def public_key(self) -> bytes:
        """The public key of this node's identity."""
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        """Sign data with this node's identity key."""
        return self._identity.key.sign(data)

    def admissions(self) -> tuple[bytes, ...]:
        """Return the proof of this node's admission, for peers whose log does not contain it yet."""
        return () if self.farm is None else self.farm.admissions.chain

    def judge(self, claim: Claim) -> Refusal | None:
        """Return the objection to this claim, with the identity and the reason; None if it is accepted."""
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
        """Return the identity that vouches for an accepted claim; None if no id is claimed or its holder is known.

        The connections of the new server count against the limits of this identity until the log contains the server.
        """
        if self.farm is None or claim.server_id is None or self.farm.holder_of(claim.server_id) is not None:
            return None
        return self._vouched.signer_of(claim.server_id, node_id_of(claim.public_key))

    def is_out(self, node_id: bytes) -> bool:
        """Return True if this identity was retired or evicted: no node connects to it."""
        return self.farm is not None and self.farm.expulsion(node_id) is not None

    def may_send_keys(self, node_id: bytes) -> bool:
        """Return True if this identity may announce gossip keys.

        Before a node knows its farm, it accepts every identity, because each may become a founder.
        """
        return self.farm is None or self.farm.may_send_keys(node_id)

    def is_server_out(self, server_id: int) -> bool:
        """Return True if the log retired or evicted this server's identity: no node exchanges messages with it."""
        return self.farm is not None and self.farm.is_out(server_id)

    async def follow(self, farm: KnownFarm, end_connections: Callable[[Callable[[ProvenPeer], bool]], None]) -> None:
        """Close the connections of peers that would now be refused, until canceled.

        While a connection is open, the log may bind the peer's id to another identity. The peer's admission may expire,
        or the signer of the admission may be evicted.
        """
        grounds: tuple[object, ...] = ()
        refused: dict[ProvenPeer, bool] = {}
        while True:
            # Each entry wakes this task, and checking a chain may verify sixteen signatures. So verdicts are kept while
            # the data are equal.
            before = refused if grounds == (now := farm.grounds()) else {}
            grounds, refused = now, {}
            end_connections(partial(self._is_refused, before, refused))
            await farm.applied_state.news()

    def _is_refused(self, before: Mapping[ProvenPeer, bool], now: dict[ProvenPeer, bool], proven: ProvenPeer) -> bool:
        if proven not in now:
            now[proven] = before[proven] if proven in before else self.judge(proven) is not None
        return now[proven]


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
            f"{_named(server_id, holder)} was removed from the farm by an operator, and is not accepted as a server",
        )
    return None


def _flaw_of(farm: KnownFarm, vouched: _Vouched, claim: Claim, node_id: bytes, server_id: int) -> str | None:
    """Return the flaw in the proofs of a peer that the log does not contain; None if they are valid.

    A member can sign an admission and never submit it. This node cannot distinguish a peer with such an admission from
    a new server. So the chain must be possible in a leader's log. The claimed id is at most `IDS_AHEAD_MAX` above the
    highest known id. Each signer admits one identity for each id, and is not evicted, retired or removed. Until the log
    has the peer, its connections and bytes count against the limits of its signer (`voucher_of`). So all servers that
    a member invents share one limit.
    """
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
        # The log of a new node is empty, but a member has sent the node its own id.
        highest = max(highest, farm.admissions.own_id or 0)
    if server_id > highest + IDS_AHEAD_MAX:
        return (
            f"the highest Raft id known here is {highest}, and an admission counts up to {IDS_AHEAD_MAX} above it; if"
            " this node was down for long, let a server lead that this node knows (`garlicfarm transfer NODE` at"
            " the leader) until it has the log"
        )
    vouched.drop_up_to(highest)
    if not vouched.take(signers[-1], server_id, node_id):
        return f"the identity {signers[-1].hex()} has signed an admission of another identity with the same Raft id"
    return None


def _is_void(farm: KnownFarm, author: bytes) -> bool:
    """Return True if this identity can no longer admit servers, because it is evicted, retired or removed."""
    server_id = farm.raft_id_of(author)
    return farm.expulsion(author) is not None or (server_id is not None and farm.is_removed(server_id))


def _named(server_id: int, holder: Admitted) -> str:
    return f"server {server_id}" if holder.name is None else f"server {server_id} ({holder.name})"
