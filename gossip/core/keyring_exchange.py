"""How a change of the farm's keys reaches everybody: told to all peers at once, then compared on every ping.

    changed here ──KeyringUpdate──▶ each peer ──(changed there)──▶ its peers ...        a flood, once per change
    every ping and answer carries the chain's digest; where they differ both send their chain, at a bounded rate

The flood is quick and may lose a member; the digests find it within a few periods. A member that cannot read us any
more, because it missed the new key before we began to seal with it, is found by the agent: what it sends is sealed with
a key that still opens but is no longer ours, and the answer is our chain sealed with that key.

*Rings that split.* Whoever tells two members different keys could make them deaf to each other. So a chain is merged
only if some key that opens now still opens afterwards. Several such steps in a row may leave no common key all the
same. Then each of the two gets datagrams from the other's address that it cannot open, and answers with its chain in a
box for the other's identity (`gossip.wire.box`), which needs no common key; merging is the same in any order, so both
end with the same ring. Keyring updates is signed by who tells it, and the application says whose it is to be believed.

A chain that begins an era is put to use first and told afterwards, under its own key: who lacks that key is not to read
it. And a chain of another era is not taken from anybody's telling: who began it has other ways.

Any holder of a current key may change the chain: rotation is hygiene. A clock beyond the horizon is refused until the
time of day has reached it (see `clock_bound`). Nothing here acts without a chain (unsealed).
"""

from typing import Final

from gossip.core.clock_bound import ClockBound
from gossip.core.effects import UseKeyring
from gossip.core.keyring import Keyring
from gossip.core.member import Address
from gossip.core.membership import Membership
from gossip.core.messages import KeyringUpdate
from gossip.core.outbox import DropReason, Outbox
from gossip.core.token_bucket import TokenBucket

KEYS_QUERY: Final = "gossip:keys"
"""The name of the query that every member answers with its chain's summary, by itself."""

_CHANGES_PER_SECOND = 2
_CHANGES_BURST = 20
_REPAIRS_PER_SECOND = 20
_REPAIRS_BURST = 100
_TOLD_WITHOUT_PEERS = 64


class KeyringExchange:
    """This node's keyring, if its datagrams are sealed."""

    def __init__(self, chain: Keyring | None, membership: Membership, outbox: Outbox, unix_ms: int) -> None:
        self._membership = membership
        self._outbox = outbox
        self.clock_bound = ClockBound(unix_ms)
        self._changes = TokenBucket(_CHANGES_PER_SECOND, _CHANGES_BURST)
        self._repairs = TokenBucket(_REPAIRS_PER_SECOND, _REPAIRS_BURST)
        self.chain = chain
        self.digest = b"" if chain is None else chain.digest

    @property
    def summary(self) -> bytes:
        """What this node tells of its keys when it is asked."""
        return b"" if self.chain is None else self.chain.summary

    def change(self, chain: Keyring) -> None:
        """Our operator changed the chain (merged: a change may have come from elsewhere meanwhile)."""
        if self.chain is not None:
            self._become(self.chain.merge(chain))

    def hear(self, chain: Keyring, now: int, *, boxed: bool = False) -> None:
        """Another member's chain. `boxed`: it came in a box for our identity, which needs no common key."""
        if self.chain is None or not chain.is_sound() or chain.clock > self.clock_bound.at(now):
            self._outbox.drop(DropReason.BAD_KEYRING)
            return
        if chain.era != self.chain.era:
            self._outbox.drop(DropReason.OTHER_ERA)
            return
        merged = self.chain.merge(chain)
        if merged == self.chain:
            return
        if not merged.is_sound():
            self._outbox.drop(DropReason.BAD_KEYRING)
            return
        if not boxed and not merged.open_keys & self.chain.open_keys:
            self._outbox.drop(DropReason.KEYRING_WOULD_SPLIT)
            return
        if not self._changes.take(now):
            self._outbox.drop(DropReason.RATE_LIMITED)
            return
        self._become(merged)

    def compare(self, source: Address, digest: bytes, now: int) -> None:
        """A member's digest came with a ping or an answer."""
        if self.chain is not None and digest and digest != self.digest and self._repairs.take(now):
            self._outbox.send(source, KeyringUpdate(self.chain), None)

    def repair(self, source: Address, now: int) -> None:
        """No key of ours opens what `source` sends: the member there, if we know one, gets our chain in a box."""
        if self.chain is None or not self._repairs.take(now):
            return
        entry = next((each for each in self._membership.entries() if each.address == source), None)
        if entry is not None and entry.info.credential:
            self._outbox.send_boxed(source, KeyringUpdate(self.chain), entry.node_id, entry.info.credential)

    def _told_of_changes(self) -> list[Address]:
        """The peers. Without any everybody known, the lost as well: nobody could read what we seal from now on."""
        told = self._membership.peers() or self._membership.entries()[:_TOLD_WITHOUT_PEERS]
        return list(dict.fromkeys(entry.address for entry in told))

    def _become(self, chain: Keyring) -> None:
        before = self.chain
        if chain == before:
            return
        self.chain = chain
        self.digest = chain.digest
        if before is not None and chain.era != before.era:
            self._outbox.emit(UseKeyring(chain))
            self._tell(chain)
        else:
            # Told before it is used: what a peer has not yet installed it could not open.
            self._tell(chain)
            self._outbox.emit(UseKeyring(chain))

    def _tell(self, chain: Keyring) -> None:
        for address in self._told_of_changes():
            self._outbox.send(address, KeyringUpdate(chain), None)
