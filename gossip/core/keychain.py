"""The farm's gossip keys as a value that merges: whatever order changes arrive in, all members end with the same ring.

    install   a key opens                                 a key's `since` is the chain's clock, plus one
    use       it seals (the primary)                      the register (used_at, key): the highest wins
    remove    it opens nothing but a JoinReq              retired is for good: it wins over installed

Rotation by commands that are broadcast, as serf does it, leaves a member that misses one with another ring for ever.
Here members compare digests on every ping and send the whole chain where they differ, so that one message of many is
enough. Two operators who act at once are settled by the rules above; a key that one of them uses while the other
removes it stays primary until the next use.

A chain has at most `KEYS_LIMIT` keys. Beyond that the oldest retired one is forgotten, and its age becomes the `floor`:
what only one of two chains has, and is as old as the other's floor, was forgotten there and goes, or a member that
slept through the removal would bring it to life again. What both have stays, however old: all keys of a key file begin
with the same age, and those that still open must not go with one that is retired.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final

from gossip.core.horizon import CLOCK_LIMIT

KEY_BYTES: Final = 32
KEYS_LIMIT: Final = 16
INSTALLED_LIMIT: Final = 8
"""How many keys may be open at once by installing: the rest of the chain's places remember retired ones."""
DIGEST_BYTES: Final = 8
KEY_ID_BYTES: Final = 4


class KeyChainError(ValueError):
    """A change that the chain does not allow; the text says why. It never holds key material."""


class KeyState(Enum):
    """What a member does with a key; the values travel."""

    RETIRED = 0
    OPEN = 1
    PRIMARY = 2


def key_id(key: bytes) -> bytes:
    """A short public name of a key."""
    return sha256(b"garlic farm, gossip 1: key id" + key).digest()[:KEY_ID_BYTES]


@dataclass(frozen=True, slots=True, order=True, repr=False)
class ChainKey:
    """One key, when it was installed by the chain's clock, and whether it is retired."""

    since: int
    key: bytes
    retired: bool = False

    def __repr__(self) -> str:
        """Without the key."""
        return f"ChainKey(since={self.since}, retired={self.retired})"


@dataclass(frozen=True, slots=True)
class KeyChain:
    """The keys (sorted by age), which of them seals, when it was chosen, and below which age keys are forgotten."""

    keys: tuple[ChainKey, ...]
    primary: bytes
    used_at: int
    floor: int = 0

    def __repr__(self) -> str:
        """Without the keys."""
        return f"KeyChain(keys={len(self.keys)}, used_at={self.used_at}, digest={self.digest.hex()})"

    @classmethod
    def of(cls, primary: bytes, others: tuple[bytes, ...], retired: tuple[bytes, ...], epoch: int) -> "KeyChain":
        """The chain of a ring whose history is not known."""
        keys = [ChainKey(epoch, key) for key in (primary, *others)]
        keys.extend(ChainKey(epoch, key, retired=True) for key in retired)
        return cls(tuple(sorted(keys)), primary, epoch)

    @property
    def clock(self) -> int:
        """The highest time in the chain."""
        return max(self.used_at, *(each.since for each in self.keys))

    @property
    def others(self) -> tuple[bytes, ...]:
        """The keys that open beside the primary, newest first."""
        return tuple(each.key for each in reversed(self.keys) if not each.retired and each.key != self.primary)

    @property
    def retired(self) -> tuple[bytes, ...]:
        """The keys that open a JoinReq only, newest first."""
        return tuple(each.key for each in reversed(self.keys) if each.retired and each.key != self.primary)

    @property
    def digest(self) -> bytes:
        """Equal digests, equal chains. Says nothing about the keys to those who do not have them."""
        parts = [b"%d %d %d " % (each.since, each.retired, len(each.key)) + each.key for each in self.keys]
        head = b"%d %d " % (self.used_at, self.floor) + self.primary
        return sha256(b"garlic farm, gossip 1: key chain " + b"".join([head, *parts])).digest()[:DIGEST_BYTES]

    def state_of(self, each: ChainKey) -> KeyState:
        """What holders of this chain do with one of its keys. One that was used while it was removed seals still."""
        if each.key == self.primary:
            return KeyState.PRIMARY
        return KeyState.RETIRED if each.retired else KeyState.OPEN

    @property
    def summary(self) -> bytes:
        """What a member tells of its chain when it is asked: the digest, then the id and the state of each key."""
        told = (key_id(each.key) + bytes([self.state_of(each).value]) for each in self.keys)
        return self.digest + b"".join(told)

    def is_sound(self) -> bool:
        """Whether a chain told by somebody keeps the rules."""
        keys = [each.key for each in self.keys]
        times = [self.used_at, self.floor, *(each.since for each in self.keys)]
        return (
            0 < len(keys) <= KEYS_LIMIT
            and self.primary in keys
            # Datagrams name their key by its id. Two with one id are made on purpose, and one of them would not open.
            and len({key_id(key) for key in keys}) == len(keys)
            and all(len(key) == KEY_BYTES for key in keys)
            and all(0 <= time < CLOCK_LIMIT for time in times)
            and all(each.since > 0 for each in self.keys)
            # A floor above the keys would, merged, take everybody's open keys and every later one.
            and self.floor <= self.clock
        )

    def install(self, key: bytes) -> "KeyChain":
        """With a further key that opens."""
        if len(key) != KEY_BYTES:
            raise KeyChainError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        known = self._find(key)
        if known is not None and known.retired and key != self.primary:
            raise KeyChainError("this key was removed, and removed keys do not come back: make a new one")
        if known is not None:
            return self
        if sum(not each.retired for each in self.keys) >= INSTALLED_LIMIT:
            raise KeyChainError(f"{INSTALLED_LIMIT} keys are installed already: remove one first")
        if key_id(key) in {key_id(each.key) for each in self.keys}:
            raise KeyChainError("this key has the id of another one in the chain: make a new one")
        return _cut((*self.keys, ChainKey(self.clock + 1, key)), self.primary, self.used_at, self.floor)

    def use(self, key: bytes) -> "KeyChain":
        """Sealing with another of its keys."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyChainError("this key is not installed: install it first, and give that time to spread")
        if key == self.primary:
            return self
        now = self.clock + 1
        # A former primary may have been kept for being primary. Others still seal with it: it stays open for all.
        keys = (ChainKey(each.since if each.since > self.floor else now, each.key, each.retired) for each in self.keys)
        return KeyChain(tuple(sorted(keys)), key, now, self.floor)

    def remove(self, key: bytes) -> "KeyChain":
        """With a key retired."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyChainError("this key is not installed")
        if key == self.primary:
            raise KeyChainError("this key is in use: use another first")
        keys = (ChainKey(each.since, each.key, retired=each.retired or each.key == key) for each in self.keys)
        return KeyChain(tuple(sorted(keys)), self.primary, self.used_at, self.floor)

    def merge(self, other: "KeyChain") -> "KeyChain":
        """What both know. Commutative, associative, idempotent, as long as neither had to forget an open key."""
        found: dict[bytes, ChainKey] = {}
        for each in (*self.keys, *other.keys):
            known = found.get(each.key, each)
            found[each.key] = ChainKey(max(known.since, each.since), each.key, retired=known.retired or each.retired)
        used_at, primary = max((self.used_at, self.primary), (other.used_at, other.primary))
        forgotten = (_forgotten(self, other) | _forgotten(other, self)) - {primary}
        kept = tuple(each for each in found.values() if each.key not in forgotten)
        return _cut(kept, primary, used_at, max(self.floor, other.floor))

    def _find(self, key: bytes) -> ChainKey | None:
        return next((each for each in self.keys if each.key == key), None)


def _forgotten(chain: KeyChain, other: KeyChain) -> set[bytes]:
    """The keys of a chain that the other one had and has no more."""
    theirs = {each.key for each in other.keys}
    return {each.key for each in chain.keys if each.since <= other.floor and each.key not in theirs}


def _cut(keys: tuple[ChainKey, ...], primary: bytes, used_at: int, floor: int) -> KeyChain:
    """Within the limit: the oldest retired key goes first, then (many operators at once) the oldest open one."""
    kept = sorted(keys)
    while len(kept) > KEYS_LIMIT:
        able = [each for each in kept if each.key != primary]
        victim = next((each for each in able if each.retired), able[0])
        floor = max(floor, victim.since)
        kept.remove(victim)
    return KeyChain(tuple(kept), primary, used_at, floor)
