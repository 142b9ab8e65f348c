"""Operator commands for the group's keys: install, use, remove, list.

    install   all members open the datagrams that a new key has sealed
    use       all members seal their datagrams with this key
    remove    with the old key, members open only JoinReqs, and report to the senders that the key is retired

Each step must reach every member before the next step. A member that misses two steps is cut off, because the group
refuses its key. The group repairs smaller gaps automatically, but only a member itself can report its keys. So `list`
queries the members, and `use` and `remove` refuse while a live member has not confirmed the previous step (`force`
overrides this). The operators' commands name a key by its id, because only the group's members hold the keys.
"""

import os
from typing import Final

import trio
from msgspec import Struct

from gossip.core.keyring import (
    DIGEST_BYTES,
    KEY_BYTES,
    KEY_ID_BYTES,
    TICKS_PER_MS,
    Keyring,
    KeyringError,
    KeyState,
    key_id,
)
from gossip.core.keyring_exchange import KEYS_QUERY
from gossip.core.member import NodeId, Status
from gossip.node.group import Group

_SURVEY_TIMEOUT_S: Final = 2.0
_CLOCKS_DIFFER_MS: Final = 1_000
"""The tolerated difference between the members' times of day. A member refuses a keyring whose logical clock is ahead
of the member's time of day (`ClockBound`). A hostile member can cause such a logical clock.
"""
_SURVEYS: Final = 5
"""The maximum number of surveys. Each reply is one datagram, which the network may lose."""
_STORE_SURVEYS: Final = 3
_STORE_PAUSE_S: Final = 0.2
"""Pause between surveys: a member may reply some milliseconds before its disk has the keys."""
_NOT_STORED: Final = bytes([False])
_OPENING: Final = frozenset({KeyState.OPEN.value, KeyState.PRIMARY.value})


class NotEverywhereError(KeyringError):
    """The step would cut off the members in `behind`, which have not confirmed or not stored the previous step."""

    def __init__(self, name: str, step: str, behind: tuple[NodeId, ...]) -> None:
        named = ", ".join(node_id.hex() for node_id in behind[:8])
        super().__init__(
            f"not all members have confirmed that key {name} is {step}, and stored this change. The others (in total"
            f" {len(behind)}: {named}) would lose the connection: wait for them (their disks may need repair), make"
            " them leave, or use force"
        )
        self.name = name
        self.step = step
        self.behind = behind


class ListedKey(Struct, frozen=True):
    """One key by its id: its use at this node, its date by the keyring's clock, and the members that use it."""

    name: str
    state: KeyState
    since: int
    opened_by: tuple[NodeId, ...]
    """Members that open all datagrams sealed with the key, this node included; empty when all have removed the key."""
    sealed_by: tuple[NodeId, ...]
    """Members that seal with it."""


class KeyListing(Struct, frozen=True):
    """This node's keys by id, and the live members with the same keyring, with another, or without a reply."""

    primary: str
    others: tuple[str, ...]
    retired: tuple[str, ...]
    agreeing: tuple[NodeId, ...]
    differing: tuple[NodeId, ...]
    silent: tuple[NodeId, ...]
    epoch: int
    """The time of the choice of the primary."""
    keys: tuple[ListedKey, ...]
    """All keys, newest first."""
    unstored: tuple[NodeId, ...] = ()
    """Live members that have not stored their keyring: after a restart they would have an older one."""

    @property
    def is_everywhere(self) -> bool:
        """True if every live member has this keyring."""
        return not self.differing and not self.silent


class KeyManager:
    """The keys of the group that a node belongs to: `gossip.KeyManager(group)`."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.survey_timeout_s = _SURVEY_TIMEOUT_S

    async def list(self) -> KeyListing:
        """Return this node's keys, and compare the keyrings of the live members.

        Query the members until each of them has replied, at most `_SURVEYS` times.
        """
        missing, answers = self._living(), {}
        for _ in range(_SURVEYS):
            if not missing:
                break
            async with self._group.query(KEYS_QUERY, timeout_s=self.survey_timeout_s) as replies:
                async for answer in replies:
                    answers[NodeId(answer.responder)] = answer.body
                    missing = self._living() - answers.keys()
                    if not missing:
                        break
        return self._listing(answers)

    def _listing(self, answers: dict[NodeId, bytes]) -> KeyListing:
        chain, living = self._chain, self._living()
        agreeing = {node_id for node_id, body in answers.items() if body[:DIGEST_BYTES] == chain.digest}
        states = {self._group.node_id: _states(chain.summary)}
        states.update((node_id, _states(body)) for node_id, body in answers.items() if node_id in living)
        unstored = {node_id for node_id, body in answers.items() if _is_unstored(body)}
        if not self._group.keyring_is_stored:
            unstored.add(self._group.node_id)
        return KeyListing(
            primary=key_id(chain.primary).hex(),
            others=tuple(key_id(key).hex() for key in chain.others),
            retired=tuple(key_id(key).hex() for key in chain.retired),
            agreeing=tuple(sorted(living & agreeing)),
            differing=tuple(sorted(living & (answers.keys() - agreeing))),
            silent=tuple(sorted(living - answers.keys())),
            epoch=chain.used_at,
            unstored=tuple(sorted(unstored & {*living, self._group.node_id})),
            keys=tuple(
                ListedKey(
                    key_id(each.key).hex(),
                    chain.state_of(each),
                    each.since,
                    opened_by=_nodes_with_status(states, key_id(each.key), _OPENING),
                    sealed_by=_nodes_with_status(states, key_id(each.key), frozenset({KeyState.PRIMARY.value})),
                )
                for each in reversed(chain.keys)
            ),
        )

    async def install(self, key: bytes | None = None) -> str:
        """Add a key that every member opens, by default a random one; return its id."""
        key = os.urandom(KEY_BYTES) if key is None else key
        await self._change(self._chain.install(key))
        return key_id(key).hex()

    async def use(self, name: str, *, force: bool = False) -> None:
        """Make every member seal with an installed key."""
        key = self._named(name)
        changed = self._chain.use(key)
        if not force:
            await self._require_everywhere(name, "installed")
        await self._change(changed)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Retire a key at every member: it then opens only JoinReqs.

        It cannot be installed again while the keyring records it.
        """
        await self._change(await self.without(name, force=force))

    async def without(self, name: str, *, force: bool = False) -> Keyring:
        """Return the keyring after a removal. Raise KeyringError if the removal is refused."""
        changed = self._chain.remove(self._named(name))
        if not force:
            await self._require_everywhere(name, "replaced")
        return changed

    async def _change(self, changed: Keyring) -> None:
        if changed.clock > self._group.latest_clock + TICKS_PER_MS * _CLOCKS_DIFFER_MS:
            raise KeyringError(
                "the clock of the keyring is ahead of the time of day, so members would refuse this change: begin a new"
                " era, which replaces all keys"
            )
        await self._group.change_keyring(changed)

    async def _require_everywhere(self, name: str, step: str) -> None:
        listing = await self.list()
        for _ in range(_STORE_SURVEYS):
            if not (listing.is_everywhere and listing.unstored):
                break
            await trio.sleep(_STORE_PAUSE_S)
            listing = await self.list()
        if not listing.is_everywhere or listing.unstored:
            behind = dict.fromkeys((*listing.differing, *listing.silent, *listing.unstored))
            raise NotEverywhereError(name, step, tuple(behind))

    @property
    def _chain(self) -> Keyring:
        chain = self._group.keyring
        if chain is None:
            raise KeyringError("this group sends datagrams in clear: it does not have keys")
        return chain

    def _named(self, name: str) -> bytes:
        chain = self._chain
        for key in (chain.primary, *chain.others, *chain.retired):
            if key_id(key).hex() == name:
                return key
        raise KeyringError(f"no key has the id {name[: 2 * KEY_ID_BYTES]!r}; the list of keys shows all ids")

    def _living(self) -> set[NodeId]:
        # A suspect may be alive, and would be cut off like any other member.
        return {each.node_id for each in self._group.members() if each.status in {Status.ALIVE, Status.SUSPECT}}


def _states(summary: bytes) -> dict[bytes, int]:
    """Return the state of each key in a member's summary of its keyring, by the key's id."""
    size = KEY_ID_BYTES + 1
    entries = (summary[at : at + size] for at in range(DIGEST_BYTES, len(summary) - KEY_ID_BYTES, size))
    return {each[:KEY_ID_BYTES]: each[KEY_ID_BYTES] for each in entries}


def _is_unstored(summary: bytes) -> bool:
    """Return True if a member reports that its keyring is not stored; earlier versions do not report it."""
    rest = (len(summary) - DIGEST_BYTES) % (KEY_ID_BYTES + 1)
    return rest == 1 and summary[-1:] == _NOT_STORED


def _nodes_with_status(
    states: dict[NodeId, dict[bytes, int]], name: bytes, statuses: frozenset[int]
) -> tuple[NodeId, ...]:
    return tuple(sorted(node_id for node_id, known in states.items() if known.get(name) in statuses))
