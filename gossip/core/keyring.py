"""The farm's gossip keys as a value that merges: all members end with the same keyring in any order of changes.

    install   the key opens                               dated by the keyring's clock, plus one
    use       the key seals (the primary)                 the register (used_at, key): the highest wins
    remove    the key opens only JoinReqs                 dated again: the later date wins; at equal dates, "retired"

docs/explanation/gossip.md ("Keys") explains why keyrings merge, and why eras do not. docs/reference/gossip-protocol.md
("A full keyring") has the rules for the entries that a merge drops: they must not depend on the order of merges.

`rekeyed` begins an era: it replaces all keys, to exclude a member. A KeyringUpdate never begins an era
(`keyring_exchange`): the application decides which source of an era it accepts. The author of an era chooses its time
of use, and `rekeyed` replaces a time out of range. Any time is safe: the number of the era excludes members, not its
time, and keyrings with different times merge.

Members refuse an unsound keyring. A node repairs times out of range in its stored keyring, and refuses to load a
keyring with other faults. So each change here returns a sound keyring or raises `KeyringError`. At the end of the scale
of times, a member can only merge keyrings or begin an era, which begins a new scale.
"""

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

KEY_BYTES: Final = 32
KEYS_LIMIT: Final = 16
INSTALLED_LIMIT: Final = 8
"""`install` refuses another key if so many are open. A merge may exceed this number, but not `KEYS_LIMIT`."""
DATED_LIMIT: Final = KEYS_LIMIT - 1
"""The maximum number of entries with a date. The last place is for a primary without a date (0)."""
DIGEST_BYTES: Final = 8
KEY_ID_BYTES: Final = 4
ERA_LIMIT: Final = 2**32
LABEL_BYTES: Final = 8
CLOCK_LIMIT: Final = 1 << 53
"""The end of the scale of times: greater numbers lose digits in some programming languages."""
ERA_CLOCK_LIMIT: Final = CLOCK_LIMIT // 2
"""The latest beginning of an era if the time of day is not known: half of the scale remains for changes."""
HEAD_START: Final = 1 << 32
"""Minimum of a `ClockBound`. Even a machine whose time of day is in 1970 accepts a clock raised only by changes."""
TICKS_PER_MS: Final = 1 << 10


class ClockBound:
    """The highest acceptable Lamport clock. `unix_ms` is the time of day when the core's own clock is 0."""

    def __init__(self, unix_ms: int) -> None:
        self._unix_ms = max(unix_ms, 0)

    def at(self, now: int) -> int:
        """Return the latest time that is acceptable now."""
        return min(HEAD_START + (self._unix_ms + max(now, 0)) * TICKS_PER_MS, CLOCK_LIMIT - 1)


class KeyringError(ValueError):
    """A change that the keyring does not allow; the text is the reason. It never holds key material."""


class KeyState(Enum):
    """A member's use of a key; the values are on the wire."""

    RETIRED = 0
    OPEN = 1
    PRIMARY = 2


def key_id(key: bytes) -> bytes:
    """Return a short public name of a key."""
    return sha256(b"garlic farm, gossip 1: key id" + key).digest()[:KEY_ID_BYTES]


def farm_label(founding_key: bytes) -> bytes:
    """Return the farm's label, a hash of its first key; sealed datagrams have it unencrypted, to distinguish farms."""
    return sha256(b"garlic farm, gossip 1: label" + founding_key).digest()[:LABEL_BYTES]


class DatedKey(Struct, frozen=True, order=True):
    """One key, the time of its installation or removal by the keyring's clock, and True if it is retired.

    The order is the order of merging: by date; with equal dates the retired entry of a key is higher.
    """

    since: int
    key: bytes
    retired: bool = False

    def __repr__(self) -> str:
        return f"DatedKey(since={self.since}, retired={self.retired})"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys (sorted by age), the primary (the key that seals), and the time of that choice."""

    keys: tuple[DatedKey, ...]
    primary: bytes
    used_at: int
    era: int = 0
    """The number of complete replacements of the keys, each to exclude a member."""
    label: bytes = field(default=b"", compare=False)
    """The farm's label. It does not change when the keys rotate; KeyringUpdates do not carry it."""

    def __repr__(self) -> str:
        shown = f"keys={len(self.keys)}, used_at={self.used_at}, era={self.era}, digest={self.digest.hex()}"
        return f"Keyring({shown})"

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
        """Return a keyring without history; `label` is by default derived from the primary (a farm's first key)."""
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
        """The keys that open datagrams: the primary and the others."""
        return frozenset({self.primary, *self.others})

    @property
    def others(self) -> tuple[bytes, ...]:
        """The keys that open in addition to the primary, newest first."""
        return tuple(each.key for each in reversed(self.keys) if not each.retired and each.key != self.primary)

    @property
    def retired(self) -> tuple[bytes, ...]:
        """The keys that open a JoinReq only, newest first."""
        return tuple(each.key for each in reversed(self.keys) if each.retired and each.key != self.primary)

    @property
    def digest(self) -> bytes:
        """A hash of the keyring: equal digests mean equal keyrings. It reveals nothing about the keys to others."""
        parts = [b"%d %d %d " % (each.since, each.retired, len(each.key)) + each.key for each in self.keys]
        head = b"%d " % self.used_at + (b"%d " % self.era if self.era else b"") + self.primary
        return sha256(b"garlic farm, gossip 1: key chain " + b"".join([head, *parts])).digest()[:DIGEST_BYTES]

    def state_of(self, each: DatedKey) -> KeyState:
        """Return the use of a key by a holder of this keyring.

        If one member chose the key for sealing while another removed it, the key still seals.
        """
        if each.key == self.primary:
            return KeyState.PRIMARY
        return KeyState.RETIRED if each.retired else KeyState.OPEN

    @property
    def summary(self) -> bytes:
        """The description of the keyring for queries: the digest, then the id and the state of each key."""
        states = (key_id(each.key) + bytes([self.state_of(each).value]) for each in self.keys)
        return self.digest + b"".join(states)

    def is_sound(self) -> bool:
        """Return True if a keyring of another member conforms to the rules."""
        keys = [each.key for each in self.keys]
        return (
            len(self.dated) <= DATED_LIMIT
            and self.primary in keys
            # Datagrams contain the id of their key. Two keys with the same id are an attack: one of them could not open
            # its datagrams.
            and len({key_id(key) for key in keys}) == len(keys)
            and all(len(key) == KEY_BYTES for key in keys)
            and 0 <= self.used_at < CLOCK_LIMIT
            and all(0 <= each.since < CLOCK_LIMIT for each in self.keys)
            and all(each.since > 0 or each == DatedKey(0, self.primary) for each in self.keys)
            and 0 <= self.era < ERA_LIMIT
        )

    def install(self, key: bytes) -> "Keyring":
        """Return the keyring with a further key that opens."""
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
        """Return the keyring that seals with another of its keys."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyringError("this key is not installed: install it first, and give that time to spread")
        if key == self.primary:
            return self
        now = self._next_time()
        dated = self.dated
        if self.primary not in {each.key for each in dated}:  # other members still seal with it, so it must open
            dated = _with_room((*dated, DatedKey(now, self.primary)), key)
        return self._with(dated, key, now)

    def remove(self, key: bytes) -> "Keyring":
        """Return the keyring with a key retired."""
        known = self._find(key)
        if known is None or (known.retired and key != self.primary):
            raise KeyringError("this key is not installed")
        if key == self.primary:
            raise KeyringError("this key is in use: use another first")
        remaining = (each for each in self.dated if each.key != key)
        return self._with((*remaining, DatedKey(self._next_time(), key, retired=True)), self.primary, self.used_at)

    def rekeyed(self, key: bytes, era: int, used_at: int, latest: int = ERA_CLOCK_LIMIT) -> "Keyring":
        """Return the keyring that begins an era: only `key` opens. The newest earlier keys are retired, others dropped.

        `latest` is the latest accepted time of use. If members had different keys before the era, their keyrings
        of the era differ in the retired keys, and merge.
        """
        if len(key) != KEY_BYTES or not self.era < era < ERA_LIMIT:
            raise KeyringError(f"an era begins with a key of {KEY_BYTES} bytes, after era {self.era}, below 2^32")
        latest = min(max(latest, 1), CLOCK_LIMIT - 1)
        if not 0 < used_at <= latest:
            used_at = min(self.clock + 1, latest)
        newest = sorted(self.keys, reverse=True)[: DATED_LIMIT - 1]
        retired = [DatedKey(used_at, each.key, retired=True) for each in newest if key_id(each.key) != key_id(key)]
        return dataclasses.replace(
            self, keys=tuple(sorted((*retired, DatedKey(used_at, key)))), primary=key, used_at=used_at, era=era
        )

    def merge(self, other: "Keyring") -> "Keyring":
        """Return the union of both, or the later era: commutative, associative, idempotent despite dropped entries."""
        if self.era != other.era:
            return dataclasses.replace(max(self, other, key=lambda each: each.era), label=self.label)
        used_at, primary = max((self.used_at, self.primary), (other.used_at, other.primary))
        latest = {each.key: each for each in sorted({*self.dated, *other.dated})}
        return self._with(tuple(sorted(latest.values())[-DATED_LIMIT:]), primary, used_at)

    def repaired(self) -> "Keyring":
        """Return a sound keyring unchanged; otherwise bring its times into the range from 1 to `HEAD_START`.

        An undated primary keeps the time 0, and other faults remain.
        """
        if self.is_sound():
            return self
        own_place = DatedKey(0, self.primary)
        keys = sorted(
            each if each == own_place else replace(each, since=min(max(each.since, 1), HEAD_START))
            for each in self.keys
        )
        return dataclasses.replace(self, keys=tuple(keys), used_at=min(max(self.used_at, 1), HEAD_START))

    @property
    def dated(self) -> tuple[DatedKey, ...]:
        """The entries with a date. Only a primary that is older than the others may lack one (`since` is 0)."""
        return tuple(each for each in self.keys if each.since)

    def _with(self, dated: tuple[DatedKey, ...], primary: bytes, used_at: int) -> "Keyring":
        """Return the same farm's keyring with other keys; a primary that `dated` lacks gets an entry without date."""
        own_place = () if primary in {each.key for each in dated} else (DatedKey(0, primary),)
        return dataclasses.replace(self, keys=tuple(sorted((*own_place, *dated))), primary=primary, used_at=used_at)

    def _next_time(self) -> int:
        if self.clock + 1 >= CLOCK_LIMIT:
            raise KeyringError("the keyring's clock is at its end: begin a new era, which replaces all keys")
        return self.clock + 1

    def _find(self, key: bytes) -> DatedKey | None:
        return next((each for each in self.keys if each.key == key), None)


def _with_room(dated: tuple[DatedKey, ...], primary: bytes) -> tuple[DatedKey, ...]:
    """If there are too many keys, drop the oldest retired one, or else the oldest; date older keys just after it."""
    if len(dated) <= DATED_LIMIT:
        return dated
    victim = min((each for each in dated if each.retired and each.key != primary), default=min(dated))
    return tuple(
        each if each > victim else DatedKey(victim.since + 1, each.key, each.retired)
        for each in dated
        if each != victim
    )
