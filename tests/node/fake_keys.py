"""A fake key administration with one key ring per member; a test makes members slow, unresponsive or absent."""

import os
from collections.abc import Callable

import trio
from msgspec import UNSET

from bridge.api.control import FarmKeyState, FarmKeyView, KeysAnswer, Refused
from bridge.node.control.key_admin import KeyAdmin
from bridge.wire.keys.farm_key import farm_key_text, new_farm_key
from gossip.core.keyring import Keyring, KeyringError, KeyState, key_id

STATES = {
    KeyState.PRIMARY: FarmKeyState.PRIMARY,
    KeyState.OPEN: FarmKeyState.INSTALLED,
    KeyState.RETIRED: FarmKeyState.REMOVED,
}


class FakeKeys(KeyAdmin):
    """Key administration. When the ring is listed, its members adopt earlier changes, except for `deaf` members."""

    def __init__(self) -> None:
        self.farm_key = new_farm_key(3)
        chain = self.farm_key.key_ring
        self.chains: dict[str, Keyring] = {"node-1": chain, "node-2": chain, "node-3": chain}
        self.deaf: set[str] = set()
        self.unwritable: tuple[str, ...] = ()
        self.silent: tuple[str, ...] = ()
        self.absent: tuple[str, ...] = ()
        self.has_leader = True
        self.steps: list[str] = []
        self.before_step: Callable[[str], None] = lambda _step: None

    @property
    def chain(self) -> Keyring:
        """Return the key ring of the queried node."""
        return self.chains["node-1"]

    def change(self, step: str, changed: Callable[[], Keyring]) -> None:
        """Apply an operator's change."""
        self.before_step(step)
        try:
            self.chains["node-1"] = changed()
        except KeyringError as error:
            raise Refused(409, "key-refused", str(error)) from error
        self.steps.append(step)

    def named(self, name: str) -> bytes:
        return next((each.key for each in self.chain.keys if key_id(each.key).hex() == name), bytes(32))

    async def listing(self) -> KeysAnswer:
        """Return the key ring, and the members that lack each key."""
        await trio.lowlevel.checkpoint()
        for name in self.chains.keys() - self.deaf:
            self.chains[name] = self.chains[name].merge(self.chain)
        behind = tuple(name for name, chain in self.chains.items() if chain.digest != self.chain.digest)
        keys = []
        for each in reversed(self.chain.keys):
            opens = [
                name
                for name, chain in self.chains.items()
                if any(one.key == each.key and chain.state_of(one) is not KeyState.RETIRED for one in chain.keys)
            ]
            state = STATES[self.chain.state_of(each)]
            keys.append(
                FarmKeyView(
                    key_id(each.key).hex(),
                    state,
                    each.since,
                    opened_by=len(opens),
                    sealed_by=sum(chain.primary == each.key for chain in self.chains.values()),
                    missing=() if state is FarmKeyState.REMOVED else tuple(sorted(self.chains.keys() - set(opens))),
                )
            )
        return KeysAnswer(
            self.farm_key.label.hex(),
            self.chain.used_at,
            key_id(self.chain.primary).hex(),
            len(self.chains),
            "/etc/garlicfarm/farm.key",
            self.farm_key.epoch,
            tuple(keys),
            behind,
            self.silent,
            self.absent,
            unstored=self.unwritable or UNSET,
        )

    async def install(self) -> str:
        await trio.lowlevel.checkpoint()
        key = os.urandom(32)
        self.change("install", lambda: self.chain.install(key))
        return key_id(key).hex()

    async def use(self, name: str, *, force: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.change(f"use{' by force' * force}", lambda: self.chain.use(self.named(name)))

    async def check_removal(self, name: str, *, force: bool) -> None:
        await trio.lowlevel.checkpoint()
        if self.absent and not force:
            raise Refused(409, "members-absent", f"{self.absent[0]} is down. The farm refuses it after the removal")
        try:
            self.chain.remove(self.named(name))
        except KeyringError as error:
            raise Refused(409, "key-refused", str(error)) from error

    async def remove(self, name: str, *, force: bool) -> None:
        await self.check_removal(name, force=force)
        self.change(f"remove{' by force' * force}", lambda: self.chain.remove(self.named(name)))

    async def export(self, *, unconfirmed: bool = False) -> str:
        await trio.lowlevel.checkpoint()
        if not (unconfirmed or self.has_leader):
            raise Refused(503, "no-quorum", "no leader")
        return farm_key_text(self.farm_key.following(self.chain))
