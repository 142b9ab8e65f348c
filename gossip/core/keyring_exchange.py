"""The distribution of changed keys to every member: sent to all peers immediately, then compared on every ping.

    changed here ──KeyringUpdate──▶ each peer ──(changed there)──▶ its peers ...        a flood, once per change
    direct pings and acks carry a digest     if two digests differ, both nodes send their keyring, at a bounded rate

The flood is quick but may miss a member; the digests reveal this within a few periods. After this node has begun to
seal with the new key, the missed member cannot read this node's datagrams. This node can still read the datagrams of
that member, sealed with a key that is open here, but no longer primary. So this node replies with its keyring, sealed
with that older key.

*Split keyrings.* A node that sends different keys to two members could make them unable to read each other's datagrams.
So a keyring is merged only if at least one open key stays open. After several such steps two members may still lack a
common key. A member that cannot read a datagram from another member's address then sends its keyring there, in a box
for that member's identity (`gossip.wire.box`). Keyrings merge to the same result in any order, so both end with the
same keyring.

A keyring that begins an era is used first and sent afterwards, under its own key: a member without that key must not
read it. A keyring of another era is never taken from a KeyringUpdate. A keyring whose clock is beyond the clock bound
is refused until the time of day has reached that clock. Without a keyring (datagrams in clear) this module does
nothing.
"""

from typing import Final

from gossip.core.effects import Context, UseKeyring
from gossip.core.keyring import ClockBound, Keyring
from gossip.core.member import Address
from gossip.core.messages import DropReason, KeyringUpdate
from gossip.core.options import TokenBucket

KEYS_QUERY: Final = "gossip:keys"
"""The name of the query that every member answers automatically with its keyring's summary."""

_SENT_WITHOUT_PEERS: Final = 64


class KeyringExchange:
    """This node's keyring, if its datagrams are sealed."""

    def __init__(self, context: Context, keyring: Keyring | None, clock_bound: ClockBound) -> None:
        self._context = context
        self._clock_bound = clock_bound
        self._changes = TokenBucket(2, 20)
        self._repairs = TokenBucket(20, 100)
        self.keyring = keyring
        self.digest = b"" if keyring is None else keyring.digest
        self.is_stored = True
        """True if a restart of this node would find this keyring: false from a change until the node has stored it."""

    @property
    def summary(self) -> bytes:
        """The answer to the query about keys: the keyring's summary, and a byte that is 1 if the keyring is stored.

        Earlier versions do not send this byte, and ignore it as an incomplete key at the end.
        """
        return b"" if self.keyring is None else self.keyring.summary + bytes([self.is_stored])

    def stored(self, keyring: Keyring) -> None:
        """Record that the node has stored this keyring; a keyring received since then is not stored yet."""
        self.is_stored = self.is_stored or keyring == self.keyring

    def change(self, keyring: Keyring) -> None:
        """Apply the operator's change of the keyring. It is merged, since another change may have arrived."""
        if self.keyring is not None:
            self._become(self.keyring.merge(keyring))

    def receive(self, keyring: Keyring, *, boxed: bool) -> None:
        """Merge another member's keyring. `boxed`: it came in a box for this node's identity, without a common key."""
        reason = self._apply(keyring, boxed=boxed)
        if reason is not None:
            self._context.drop(reason)

    def _apply(self, keyring: Keyring, *, boxed: bool) -> DropReason | None:  # noqa: PLR0911 - one return per reason
        """Merge a keyring, or return the reason not to."""
        now = self._context.now
        if self.keyring is None or not keyring.is_sound() or keyring.clock > self._clock_bound.at(now):
            return DropReason.BAD_KEYRING
        if keyring.era != self.keyring.era:
            return DropReason.OTHER_ERA
        merged = self.keyring.merge(keyring)
        if merged == self.keyring:
            return None
        if not merged.is_sound():
            return DropReason.BAD_KEYRING
        if not boxed and not merged.open_keys & self.keyring.open_keys:
            return DropReason.KEYRING_WOULD_SPLIT
        if not self._changes.take(now):
            return DropReason.RATE_LIMITED
        self._become(merged)
        return None

    def compare(self, source: Address, digest: bytes) -> None:
        """Send the keyring if the digest from a member's ping or ack differs."""
        if self.keyring is not None and digest and digest != self.digest and self._repairs.take(self._context.now):
            self._context.send(source, KeyringUpdate(self.keyring), None)

    def repair(self, source: Address) -> None:
        """Send the keyring in a box to the known member at `source`, because no key opens this member's datagrams."""
        if self.keyring is None or not self._repairs.take(self._context.now):
            return
        entry = next((each for each in self._context.members.entries() if each.address == source), None)
        if entry is not None and entry.info.credential:
            self._context.send(source, KeyringUpdate(self.keyring), entry.node_id, entry.info.credential)

    def _become(self, keyring: Keyring) -> None:
        before = self.keyring
        if keyring == before:
            return
        self.keyring = keyring
        self.digest = keyring.digest
        self.is_stored = False
        begins_era = before is not None and keyring.era != before.era
        if begins_era:
            self._context.emit(UseKeyring(keyring))
        members = self._context.members
        # Without peers, send the keyring to known members, dead ones included. Without it, they cannot read any
        # datagram sealed from now on.
        receivers = members.peers() or members.entries()[:_SENT_WITHOUT_PEERS]
        for address in dict.fromkeys(entry.address for entry in receivers):
            self._context.send(address, KeyringUpdate(keyring), None)
        if not begins_era:
            # Send it before using it: a peer could not open datagrams under a key that it has not installed yet.
            self._context.emit(UseKeyring(keyring))
