"""A chain of signed admissions from an identity to a founder: proves a Raft id without the log.

    server 7 ──admitted by──▶ identity of server 5 ──admitted by──▶ identity of founder 2, named in the promises

Each link is an admission or an approval as in the log (`bridge.wire.log.proof`), the nearest first. A server presents
its chain in the handshake, for a peer whose log does not contain its admission yet. A chain binds one Raft id to one
identity; it does not show later decisions of the log.

A signature of an identity that the peer knows as evicted or retired does not count. This does not harm correct servers.
A peer that knows an eviction has applied the earlier log, so it knows the earlier admissions without a chain.
"""

from collections.abc import Callable, Mapping, Sequence

from bridge.core.log.records import Admission, Approval
from bridge.core.membership.admission import Admitted, raft_id_of
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import proven
from consensus.protocols.garlic_farm import ADMISSIONS_MAX

LINKS_MAX = ADMISSIONS_MAX
"""Limit of links in a handshake.

A server's chain has one link more than the chain of the leader that admitted the server. A longer chain is cut, and
then does not prove anything. A peer with the log does not need a chain.
"""

_WAY_OUT = (
    f", and a handshake carries {LINKS_MAX} at most. Nodes with the log do not need them: let a founder lead, or a"
    " server admitted by a founder, until this node has the log (`garlicfarm transfer NODE` at the leader). If"
    " no such server is left, `garlicfarm recover` creates a new cluster"
)


def chain_of(admitted: Mapping[int, Admitted], server_id: int, cluster_id: bytes) -> tuple[bytes, ...]:
    """Return the chain of a server, from the log, nearest first; empty for a founder, or without an admission."""
    chain: list[bytes] = []
    at: int | None = server_id
    while at is not None and at in admitted and len(chain) < LINKS_MAX:
        entry = admitted[at].entry
        proof = proven(entry, cluster_id) if entry else None
        if proof is None:
            break
        chain.append(entry)
        at = raft_id_of(admitted, proof.author)
    return tuple(chain)


def flaw_of(
    chain: Sequence[bytes],
    cluster_id: bytes,
    claimed: tuple[int, bytes],
    believed: Callable[[bytes], bool],
    is_out: Callable[[bytes], bool],
) -> str | None:
    """Return the reason why a chain does not prove the pair of Raft id and NodeId in `claimed`; None if it proves it.

    A chain ends at a signature of a known identity, such as a founder: `believed` returns True for it. Signatures of
    retired and evicted identities do not count: `is_out` returns True for them.
    """
    if not chain:
        return "it does not show an admission"
    server_id, node_id = claimed
    for number, entry in enumerate(chain[:LINKS_MAX]):
        proof, record = proven(entry, cluster_id), decode(entry)
        if proof is None or not isinstance(record, Admission | Approval):
            return "it shows an admission that no identity has signed for this farm"
        if record.node_id != node_id or (number == 0 and record.server_id != server_id):
            return "it shows an admission of another identity"
        if is_out(proof.author):
            return f"it shows an admission signed by the retired or evicted identity {proof.author.hex()}"
        if believed(proof.author):
            return None
        node_id = proof.author
    return "the admissions that it shows do not lead to a founder" + (_WAY_OUT if len(chain) >= LINKS_MAX else "")
