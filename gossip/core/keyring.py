"""The farm's gossip keys as a value that merges: in whatever order changes arrive, all members end with the same one.

    install   a key opens                                 dated by the keyring's clock, plus one
    use       it seals (the primary)                      the register (used_at, key): the highest wins
    remove    it opens nothing but a JoinReq              dated anew: the later date of a key wins, then retired

Rotation by commands that are broadcast, as serf does it, leaves a member that misses one with another keyring for ever.
Here members compare digests on every ping and send the whole keyring where they differ, so that one message of many is
enough. The rules above settle two operators that act at once; a key that one of them uses while the other removes it
stays primary until the next use.

*Limit.* A keyring is bounded, and what a merge forgets must not depend on the order of merges: otherwise two halves of
a group forget different keys and cannot read each other any more. So a merge knows one rule: of each key the latest
entry, of all entries the `DATED_LIMIT` latest. Any order, grouping and repetition of merges gives the same. The oldest
entry of a full keyring is its floor, since nothing below it comes in: a member that missed a removal which was
forgotten since revives no key. The primary has a place of its own, whatever its age (`since` 0 if it is not among the
latest).

That rule alone would forget an open key for being old. So a change of a full keyring forgets the oldest retired key
instead, and dates the open ones below it anew, one above it: no later than necessary, since a removal of such a key
that happens elsewhere at this moment must win. It does, unless that member missed as many changes as a keyring
remembers.

*Eras.* A merge trusts every holder of a key, and an evicted member holds one: it could choose a later key
than the one that is to keep it out. So there are changes that do not merge. `rekeyed` begins an era: one new key, all
others retired. Of two keyrings of different eras the later one counts, whole, and changes of the earlier one at the
same time are void. An era is never taken from a KeyringUpdate (`keyring_exchange`); the application, which knows of
more than keys, decides where it comes from.

*Clocks.* Keyrings and user messages are ordered by Lamport clocks, which honest members raise by one at a time. A
holder of the farm's key can claim any time, and a member could treat a claim far ahead in three ways:

    believe it          one false claim at the end of the scale leaves no later time to any member, for good
    believe a step of   a member that misses one such claim is behind the others by more than a step, refuses all that
    at most so much     they say from then on, and is cut off for good: the bound itself does the harm
    believe what the    one bound for all members, wherever their clocks are. A member that missed every false claim
    time of day allows  follows at once, and the scale lasts until the year 2248

The bound is 1,024 per millisecond since 1970: no group is so quick, so honest clocks never come near it, and after a
false claim that uses it up there is room for the next change one millisecond later. Members whose times of day differ
by a second may disagree for a second about such a claim; nothing else depends on the time of day. `HEAD_START` serves
machines that begin in 1970 because nothing tells them the time: they understand every group without false claims.

*Limits.* A keyring that is not sound is refused by every member and by the file of the state directory. So each change
here returns a sound one or raises `KeyringError`. The author of an era chooses its time of use alone, hence
`rekeyed` replaces a time out of range by one of its own: the era, not its time, keeps members out, and members that
chose different times merge. A keyring at the end of the scale has no next time; only an era, which begins its own
scale, changes it.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from typing import Final

KEY_BYTES: Final = 32
KEYS_LIMIT: Final = 16
INSTALLED_LIMIT: Final = 8
"""How many keys may be open at once by installing: the rest of the keyring's places remember retired ones."""
DATED_LIMIT: Final = KEYS_LIMIT - 1
"""How many entries have a date. The last place is for a primary that is older than all of them."""
DIGEST_BYTES: Final = 8
KEY_ID_BYTES: Final = 4
ERA_LIMIT: Final = 2**32
LABEL_BYTES: Final = 8
CLOCK_LIMIT: Final = 1 << 53
"""The end of the scale: numbers beyond it lose digits in other languages."""
ERA_CLOCK_LIMIT: Final = CLOCK_LIMIT // 2
"""The latest time at which an era begins if the time of day is unknown: half of the scale remains for changes."""
HEAD_START: Final = 1 << 32
TICKS_PER_MS: Final = 1 << 10


class ClockBound:
    """How far a Lamport clock may be. `unix_ms` is the time of day when the core's own clock is 0."""

    def __init__(self, unix_ms: int) -> None:
        self._unix_ms = max(unix_ms, 0)

    def at(self, now: int) -> int:
        """The latest time that may be believed now."""
        return min(HEAD_START + (self._unix_ms + max(now, 0)) * TICKS_PER_MS, CLOCK_LIMIT - 1)


class KeyringError(ValueError):
    """A change that the keyring does not allow; the text says why. It never holds key material."""


class KeyState(Enum):
    """What a member does with a key; the values travel."""

    RETIRED = 0
    OPEN = 1
    PRIMARY = 2


def key_id(key: bytes) -> bytes:
    """A short public name of a key."""
    return sha256(b"garlic farm, gossip 1: key id" + key).digest()[:KEY_ID_BYTES]


def farm_label(founding_key: bytes) -> bytes:
    """What tells farms apart in clear: a hash of the first key of the farm."""
    return sha256(b"garlic farm, gossip 1: label" + founding_key).digest()[:LABEL_BYTES]


@dataclass(frozen=True, slots=True, order=True, repr=False)
class DatedKey:
    """One key, when it was installed or removed by the keyring's clock, and whether it is retired.

    The order is that of merging: by date, and of one key with one date the retired entry is the higher.
    """

    since: int
    key: bytes
    retired: bool = False

    def __repr__(self) -> str:
        """Without the key."""
        return f"DatedKey(since={self.since}, retired={self.retired})"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys (sorted by age), which of them seals, and when that was chosen."""

    keys: tuple[DatedKey, ...]
    primary: bytes
    used_at: int
    era: int = 0
    """How often all keys were replaced at once, to keep a member out."""
    label: bytes = field(default=b"", compare=False)
    """The farm's. It stays when the keys rotate; no KeyringUpdate carries it."""

    def __repr__(self) -> str:
        """Without the keys."""
        told = f"keys={len(self.keys)}, used_at={self.used_at}, era={self.era}, digest={self.digest.hex()}"
        return f"Keyring({told})"

    @classmethod
    def of(
        cls,
        primary: bytes,
        others: tuple[bytes, ...] = (),
        retired: tuple[bytes, ...] = (),
        epoch: int = 1,
        era: int = 0,
        label: bytes = b"",
    ) -> "Keyring":
        """A keyring whose history is not known; `label` is by default that of the primary (a farm's first key)."""
        given = (primary, *others, *retired)
        if any(len(key) != KEY_BYTES for key in given) or len(given) > KEYS_LIMIT:
            raise ValueError(f"a keyring has up to {KEYS_LIMIT} keys of {KEY_BYTES} bytes each")
        if len({key_id(key) for key in given}) != len(given):
            raise ValueError("a key is in the keyring twice")
        if label and len(label) != LABEL_BYTES:
            raise ValueError(f"a farm label has {LABEL_BYTES} bytes, not {len(label)}")
        keys = [DatedKey(epoch, key) for key in others]
        keys.extend(DatedKey(epoch, key, retired=True) for key in retired)
        keys.append(DatedKey(epoch if len(keys) < DATED_LIMIT else 0, primary))
        made = cls(tuple(sorted(keys)), primary, epoch, era, label or farm_label(primary))
        if not made.is_sound():
            raise ValueError(f"a keyring's epoch is a positive number below 2^53, not {epoch}")
        return made

    @property
    def clock(self) -> int:
        """The highest time in the keyring."""
        return max(self.used_at, *(each.since for each in self.keys))

    @property
    def open_keys(self) -> frozenset[bytes]:
        """The primary and the others: what opens datagrams."""
        return frozenset({self.primary, *self.others})

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
        """Equal digests, equal keyrings. Says nothing about the keys to those who do not have them."""
        parts = [b"%d %d %d " % (each.since, each.retired, len(each.key)) + each.key for each in self.keys]
        head = b"%d " % self.used_at + (b"%d " % self.era if self.era else b"") + self.primary
        return sha256(b"garlic farm, gossip 1: key chain " + b"".join([head, *parts])).digest()[:DIGEST_BYTES]

    def state_of(self, each: DatedKey) -> KeyState:
        """What a holder of this keyring does with a key. One that was used while it was removed still seals."""
        if each.key == self.primary:
            return KeyState.PRIMARY
        return KeyState.RETIRED if each.retired else KeyState.OPEN

    @property
    def summary(self) -> bytes:
        """What a member tells of its keyring when it is asked: the digest, then the id and the state of each key."""
        told = (key_id(each.key) + bytes([self.state_of(each).value]) for each in self.keys)
        return self.digest + b"".join(told)

    def is_sound(self) -> bool:
        """Whether a keyring of another member keeps the rules."""
        keys = [each.key for each in self.keys]
        return (
            len(self.dated) <= DATED_LIMIT
            and self.primary in keys
            # Datagrams name their key by its id. Two with one id are made on purpose, and one of them would not open.
            and len({key_id(key) for key in keys}) == len(keys)
            and all(len(key) == KEY_BYTES for key in keys)
            and 0 <= self.used_at < CLOCK_LIMIT
            and all(0 <= each.since < CLOCK_LIMIT for each in self.keys)
            and all(each.since > 0 or each == DatedKey(0, self.primary) for each in self.keys)
            and 0 <= self.era < ERA_LIMIT
        )

    def install(self, key: bytes) -> "Keyring":
        """The keyring with a further key that opens."""
        if len(key) != KEY_BYTES:
            raise KeyringError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        known = self._find(key)
        if known is not None and known.retired and key != self.primary:
            raise KeyringError("this key was removed, and a removed key cannot return: make a new key")
        if known is not None:
            return self
        if sum(not each.retired for each in self.keys) >= INSTALLED_LIMIT:
            raise KeyringError(f"{INSTALLED_LIMIT} keys are installed already: remove one first")
        if key_id(key) in {key_id(each.key) for each in self.keys}:
            raise KeyringError("this key has the id of another one in the keyring: make a new one")
        dated = _with_room((*self.dated, DatedKey(self._next_time(), key)), self.primary)
        return self._with(dated, self.primary, self.used_at)

    def use(self, key: bytes) -> "Keyring":
        """The keyring that seals with another of its keys."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyringError("this key is not installed: install it first, and give that time to spread")
        if key == self.primary:
            return self
        now = self._next_time()
        dated = self.dated
        if self.primary not in {each.key for each in dated}:  # others still seal with it: it goes on to open
            dated = _with_room((*dated, DatedKey(now, self.primary)), key)
        return self._with(dated, key, now)

    def remove(self, key: bytes) -> "Keyring":
        """The keyring with a key retired."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyringError("this key is not installed")
        if key == self.primary:
            raise KeyringError("this key is in use: use another first")
        kept = (each for each in self.dated if each.key != key)
        return self._with((*kept, DatedKey(self._next_time(), key, retired=True)), self.primary, self.used_at)

    def rekeyed(self, key: bytes, era: int, used_at: int, latest: int = ERA_CLOCK_LIMIT) -> "Keyring":
        """The keyring that begins an era: `key` alone opens, whatever was known before is retired.

        `latest` is the latest time of use that is accepted. Members that knew different keys before begin the era with
        keyrings that differ in what is retired, and merge.
        """
        if len(key) != KEY_BYTES or not self.era < era < ERA_LIMIT:
            raise KeyringError(f"an era begins with a key of {KEY_BYTES} bytes, after era {self.era}, below 2^32")
        latest = min(max(latest, 1), CLOCK_LIMIT - 1)
        if not 0 < used_at <= latest:
            used_at = min(self.clock + 1, latest)
        newest = sorted(self.keys, reverse=True)[: DATED_LIMIT - 1]
        retired = [DatedKey(used_at, each.key, retired=True) for each in newest if key_id(each.key) != key_id(key)]
        return replace(
            self, keys=tuple(sorted((*retired, DatedKey(used_at, key)))), primary=key, used_at=used_at, era=era
        )

    def merge(self, other: "Keyring") -> "Keyring":
        """What both know, or the later era. Commutative, associative and idempotent, whatever either had to forget."""
        if self.era != other.era:
            return replace(max(self, other, key=lambda each: each.era), label=self.label)
        used_at, primary = max((self.used_at, self.primary), (other.used_at, other.primary))
        latest = {each.key: each for each in sorted({*self.dated, *other.dated})}
        return self._with(tuple(sorted(latest.values())[-DATED_LIMIT:]), primary, used_at)

    def repaired(self) -> "Keyring":
        """The keyring with each time that is out of range replaced by one in range, the same at every member."""
        if self.is_sound():
            return self
        own_place = DatedKey(0, self.primary)
        keys = sorted(
            each if each == own_place else replace(each, since=min(max(each.since, 1), HEAD_START))
            for each in self.keys
        )
        return replace(self, keys=tuple(keys), used_at=min(max(self.used_at, 1), HEAD_START))

    @property
    def dated(self) -> tuple[DatedKey, ...]:
        """All entries but a primary that is older than they are."""
        return tuple(each for each in self.keys if each.since)

    def _with(self, dated: tuple[DatedKey, ...], primary: bytes, used_at: int) -> "Keyring":
        """The same farm's keyring with other keys, the primary in its own place if it is not among the dated."""
        own_place = () if primary in {each.key for each in dated} else (DatedKey(0, primary),)
        return replace(self, keys=tuple(sorted((*own_place, *dated))), primary=primary, used_at=used_at)

    def _next_time(self) -> int:
        if self.clock + 1 >= CLOCK_LIMIT:
            raise KeyringError("the keyring's clock is at its end: only a new era, with all keys replaced, helps")
        return self.clock + 1

    def _find(self, key: bytes) -> DatedKey | None:
        return next((each for each in self.keys if each.key == key), None)


def _with_room(dated: tuple[DatedKey, ...], primary: bytes) -> tuple[DatedKey, ...]:
    """Without the oldest retired key if that is one too many, and with what is older and stays dated anew."""
    if len(dated) <= DATED_LIMIT:
        return dated
    victim = min((each for each in dated if each.retired and each.key != primary), default=min(dated))
    return tuple(
        each if each > victim else DatedKey(victim.since + 1, each.key, each.retired)
        for each in dated
        if each != victim
    )
