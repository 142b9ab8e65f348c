"""The way from an identity to a founder by the signed entries that admitted each: proof of a Raft id without the log.

    server 7 ──admitted by──▶ identity of server 5 ──admitted by──▶ identity of founder 2, whom the promises name

Each link is an admission or an approval as it stands in the log (`identity_entries`, `entry_proof`), the nearest first.
A server shows its chain in the handshake, for a side whose log does not tell of it yet. Whoever is checked against a
chain is bound by it to one Raft id and one identity; a chain says nothing of what the log has decided since.

What is known to have been thrown out is no link. That refuses nothing that is true: who has heard of an eviction
has all that was in the log before it, and needs no chain.
"""

from collections.abc import Callable, Mapping, Sequence

from bridge.core.log.records import Admission, Approval
from bridge.core.membership.admission import Admitted, raft_id_of
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import proven
from consensus.protocols.garlic_farm import ADMISSIONS_MAX

LINKS_MAX = ADMISSIONS_MAX
"""What a handshake carries. A longer chain is cut, and then shows nothing; it grows by a link where a server leads that
was itself admitted by such a one, and so on. Who has the log needs no chain."""

_WAY_OUT = (
    f", and a handshake carries {LINKS_MAX} at most: who has the log needs none, so let a founder lead, or a server"
    " that was admitted by one, until this node has the log (`garlicfarm transfer --to NODE` at the leader); where none"
    " is left, `garlicfarm recover` founds the farm anew"
)


def chain_of(admitted: Mapping[int, Admitted], server_id: int, cluster_id: bytes) -> tuple[bytes, ...]:
    """The chain of a server by the log, nearest first; empty for a founder, and where the log does not tell."""
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
    """Why a chain does not show that the Raft id and NodeId of `claimed` belong together; None: it does.

    `believed` tells whose signature ends a chain (a founder, or who is known otherwise), by NodeId; `is_out` whose does
    not count.
    """
    if not chain:
        return "it shows no admission"
    server_id, node_id = claimed
    for number, entry in enumerate(chain[:LINKS_MAX]):
        proof, record = proven(entry, cluster_id), decode(entry)
        if proof is None or not isinstance(record, Admission | Approval):
            return "it shows an admission that no identity has signed for this farm"
        if record.node_id != node_id or (number == 0 and record.server_id != server_id):
            return "it shows an admission of somebody else"
        if is_out(proof.author):
            return f"it shows an admission signed by the identity {proof.author.hex()}, which was thrown out"
        if believed(proof.author):
            return None
        node_id = proof.author
    return "the admissions that it shows do not lead to a founder" + (_WAY_OUT if len(chain) >= LINKS_MAX else "")
