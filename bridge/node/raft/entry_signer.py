"""Signs what this node submits: every entry with an effect on the farm carries its author's proof.

    entry ──▶ next number of this node ──▶ `bridge.wire.log.proof.sign_entry` ──▶ submitted, and resubmitted, as it is

Numbers rise over all lives of the node without a file: the first one of a life is the machine's clock in milliseconds,
and each further one is one more than the one before, unless the farm has applied a higher one of this node. So a clock
that was set back costs nothing, and one that was set ahead only makes the next numbers high. Within a life the clock
has no say: the farm tells so many *numbers* below the highest apart (`bridge.core.membership.authors`), and an entry
that another one overtakes, however long it takes, must be among them.
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
    """The signer of one node: `sign` for its own entries, `sign_for_operator` for those of users with access to it."""

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
        """The entry with this node's proof; ValueError if it is too large to carry one."""
        applied = self._applied_state.state.numbers.get(self.node_id, AuthorNumbers()).highest
        following = self._last + 1 if self._last else self._clock_ms()
        self._last = max(following, applied + 1)
        return sign_entry(entry, self._key, self._cluster_id, self._last)

    def vouch(self, entry: bytes) -> bytes:
        """A foreign entry with this node's proof, for what it names; ValueError as above.

        The farm does not ask for the number of such an entry, so it takes none that another entry could need.
        """
        return sign_entry(entry, self._key, self._cluster_id, max(1, self._last))

    def sign_for_operator(self, entry: bytes) -> bytes:
        """What an operator of this node submits, in the node's name; ValueError as above.

        What has no effect on the farm, and what another key has signed, is returned unchanged.
        """
        if ends_like_proof(entry):
            return entry
        return self.sign(entry) if isinstance(decode(entry), Report | OperatorCommand) else entry
