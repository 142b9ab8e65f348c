"""Signatures of this node's entries: every entry with an effect on the farm carries its author's proof.

    entry ──▶ next number of this node ──▶ `bridge.wire.log.proof.sign_entry` ──▶ submitted and resubmitted unchanged

The numbers rise over all runs of the node, although no file stores them. The first number of a run is the machine's
clock in milliseconds. Each further number is the previous number plus one. If the farm has already applied this or a
higher number of this node, the next higher number is used. So a clock set back does no harm, and a clock set ahead only
raises the next numbers.

Within a run the clock does not matter. After an entry with a higher number, the farm accepts an entry only if its
*number* is within a window below the highest (`bridge.core.membership.authors`). So a delayed entry may have an effect.
"""

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.core.log.records import OperatorCommand, Report
from bridge.core.membership.authors import AuthorNumbers
from bridge.node.events.event_log import clock_ms
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof, sign_entry
from gossip.wire import node_id_of


class EntrySigner:
    """The signer of one node: `sign` for its own entries, `sign_for_operator` for entries of its operators."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        cluster_id: bytes,
        applied_state: AppliedState,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        self._key = key
        self._cluster_id = cluster_id
        self._applied_state = applied_state
        self._clock_ms = clock
        self._last = 0
        self.node_id = node_id_of(key.public_key().public_bytes_raw())

    def sign(self, entry: bytes) -> bytes:
        """Return the entry with this node's proof; raise ValueError if it is too large for a proof."""
        applied = self._applied_state.state.numbers.get(self.node_id, AuthorNumbers()).highest
        next_number = self._last + 1 if self._last else self._clock_ms()
        self._last = max(next_number, applied + 1)
        return sign_entry(entry, self._key, self._cluster_id, self._last)

    def vouch(self, entry: bytes) -> bytes:
        """Return a foreign entry with this node's proof; raise ValueError if it is too large for a proof.

        The farm does not check the number of such an entry, so the entry does not use up a number.
        """
        return sign_entry(entry, self._key, self._cluster_id, max(1, self._last))

    def sign_for_operator(self, entry: bytes) -> bytes:
        """Return an operator's entry, signed in this node's name; raise ValueError if it is too large for a proof.

        Entries without effect on the farm and entries signed by another key are returned unchanged.
        """
        if ends_like_proof(entry):
            return entry
        return self.sign(entry) if isinstance(decode(entry), Report | OperatorCommand) else entry
