"""Handlers of the requests about the farm's keys: list, install, use, remove, export.

The *ring* is the set of gossip keys that a node has.

    GossipKeyAdmin   with gossip, which carries changes of the ring to all members
    StaticKeyAdmin   without gossip (`transport = "i2p"`): the ring is the content of each node's farm key file. The
                     operator distributes a changed file; a refused request lists the steps

With gossip, the running members must have confirmed the previous step, unless a step is forced. In replies and
refusals, these handlers show the names of members instead of their ids. A stopped node still has its earlier keys. If
these keys are removed, members cannot open its messages when it returns. So a removal is refused while nodes are down,
unless it is forced.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
from msgspec import UNSET

from bridge.api import control_routes as routes
from bridge.api.alarms import KEY_RETIRED
from bridge.api.control import CheckedAnswer, FarmKeyAnswer, FarmKeyState, FarmKeyView, KeyAnswer, KeysAnswer, Refused
from bridge.api.events import KEY_INSTALLED, KEY_REMOVED, KEY_USED, KEYS_EXPORTED
from bridge.api.requests import ExportKeysRequest, KeyRequest
from bridge.api.view import FarmView, Phase, ServerRole, counted_members
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label
from bridge.node.control.routes import Call, Handlers
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import CurrentFarm
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.node.security.farm_keys import FarmKeys
from bridge.wire.keys.farm_key import FarmKey, farm_key_text
from gossip import BusyError, Group, KeyManager, KeyringError, KeyState, ListedKey, NodeId, NotEverywhereError, key_id

_STATES = {
    KeyState.PRIMARY: FarmKeyState.PRIMARY,
    KeyState.OPEN: FarmKeyState.INSTALLED,
    KeyState.RETIRED: FarmKeyState.REMOVED,
}
_RUNNING = frozenset({MemberStatus.ALIVE, MemberStatus.SUSPECT})
_BEFORE_CREATION = frozenset({Phase.DISCOVERING, Phase.FORMING})

_WITHOUT_LEADER = frozenset({"no-leader", "no-quorum"})
_UNCONFIRMED = (
    "If a voter needs the key file before it can start, `garlicfarm keys export FILE --unconfirmed` writes the keys of"
    " this node, although another node may have replaced them since"
)
_BY_HAND = (
    'with transport = "i2p" gossip does not distribute keys: append the new key to `gossip_keys` in the farm key '
    "file of every node and restart each; then put it first everywhere; then remove the old key everywhere"
)


class KeyAdmin(ABC):
    """The requests about the farm's keys. `Refused` contains the reason of a failed step.

    The changes of this class are refused: without gossip, operators change the key files. `GossipKeyAdmin` overrides
    them.
    """

    @property
    def handlers(self) -> Handlers:
        """The handlers, by route."""
        return {
            routes.KEYS: lambda _: self.listing(),
            routes.KEYS_INSTALL: self._install,
            routes.KEYS_USE: self._use,
            routes.KEYS_REMOVE: self._remove,
            routes.KEYS_REMOVE_CHECK: self._check_removal,
            routes.KEYS_EXPORT: self._export,
        }

    async def _install(self, _: Call[None]) -> KeyAnswer:
        return KeyAnswer(await self.install())

    async def _use(self, call: Call[KeyRequest]) -> KeyAnswer:
        await self.use(call.body.key, force=call.body.force)
        return KeyAnswer(call.body.key)

    async def _check_removal(self, call: Call[KeyRequest]) -> CheckedAnswer:
        await self.check_removal(call.body.key, force=call.body.force)
        return CheckedAnswer()

    async def _remove(self, call: Call[KeyRequest]) -> KeyAnswer:
        await self.remove(call.body.key, force=call.body.force)
        return KeyAnswer(call.body.key)

    async def _export(self, call: Call[ExportKeysRequest]) -> FarmKeyAnswer:
        return FarmKeyAnswer(await self.export(unconfirmed=call.body.unconfirmed))

    @abstractmethod
    async def listing(self) -> KeysAnswer:
        """Return this node's ring, and the agreement of the members with it."""

    async def install(self) -> str:
        """Have every member open datagrams with a new key; return its id."""
        raise _by_hand()

    async def use(self, name: str, *, force: bool) -> None:
        """Have every member seal with an installed key."""
        del name, force
        raise _by_hand()

    async def check_removal(self, name: str, *, force: bool) -> None:
        """Raise `Refused` if `remove` would refuse this key."""
        del name, force
        raise _by_hand()

    async def remove(self, name: str, *, force: bool) -> None:
        """Have every member refuse a key."""
        await self.check_removal(name, force=force)

    @abstractmethod
    async def export(self, *, unconfirmed: bool = False) -> str:
        """Return the text of the current farm key file. Secret."""


def key_admin(
    membership: MembershipProvider,
    member_directory: MemberDirectory,
    farm_keys: FarmKeys,
    make_view: Callable[[], FarmView],
    trace: EventLog,
    current: CurrentFarm,
    catch_up: Callable[[], Awaitable[None]],
) -> KeyAdmin:
    """Return the administrator for the node's membership; `catch_up` applies all acknowledged entries."""
    if isinstance(membership, Group):
        return GossipKeyAdmin(membership, member_directory, farm_keys, make_view, trace, current, catch_up)
    return StaticKeyAdmin(farm_keys, trace)


class GossipKeyAdmin(KeyAdmin):
    """The administration of keys of a node with gossip."""

    def __init__(
        self,
        agent: Group,
        member_directory: MemberDirectory,
        farm_keys: FarmKeys,
        make_view: Callable[[], FarmView],
        trace: EventLog,
        current: CurrentFarm,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._current = current
        self._catch_up = catch_up
        self._room = KeyManager(agent)
        self._own_id = agent.node_id
        self._member_directory = member_directory
        self._farm_keys = farm_keys
        self._make_view = make_view
        self._trace = trace

    async def listing(self) -> KeysAnswer:
        """Return this node's ring, and the members with another ring or without a reply."""
        with self._refusals():
            listing = await self._room.list()
        living = {self._own_id, *listing.agreeing, *listing.differing, *listing.silent}
        found = await trio.to_thread.run_sync(self._farm_keys.filed_now)
        current = self._farm_keys.current
        filed = found if isinstance(found, FarmKey) and found.label == current.label else None
        return KeysAnswer(
            farm=current.label.hex(),
            epoch=listing.epoch,
            primary=listing.primary,
            members=len(living),
            file=str(self._farm_keys.path),
            file_epoch=None if filed is None else filed.epoch,
            era=current.era or UNSET,
            file_era=UNSET if filed is None else filed.era or UNSET,
            keys=tuple(sorted((self._key(each, living) for each in listing.keys), key=_in_order)),
            behind=self._names(listing.differing),
            silent=self._names(listing.silent),
            absent=self._absent(),
            refused=self._is_refused(),
            unstored=self._names(listing.unstored) or UNSET,
        )

    def _key(self, key: ListedKey, living: set[NodeId]) -> FarmKeyView:
        missing = () if key.state is KeyState.RETIRED else tuple(living - set(key.opened_by))
        return FarmKeyView(
            key.name,
            _STATES[key.state],
            key.since,
            opened_by=len(key.opened_by),
            sealed_by=len(key.sealed_by),
            missing=self._names(missing),
        )

    async def install(self) -> str:
        """Have every member open datagrams with a new key; return its id."""
        self._require_majority()
        with self._refusals():
            name = await self._room.install()
        self._trace.append(KEY_INSTALLED, {"key": name})
        return name

    async def use(self, name: str, *, force: bool) -> None:
        """Have every member seal with an installed key."""
        self._require_majority()
        with self._refusals():
            await self._room.use(name, force=force)
        self._trace.append(KEY_USED, {"key": name, "forced": force})

    async def check_removal(self, name: str, *, force: bool) -> None:
        """Raise `Refused` if `remove` would refuse this key."""
        self._require_majority()
        with self._refusals():
            await self._room.without(name, force=force)
        absent = self._absent()
        if absent and not force:
            raise Refused(
                409,
                "members-absent",
                f"{_listed(absent)} down. If {name} is their only key, the farm refuses them after the removal: start"
                " them, and they get the new key automatically; or use --force, and give them the current key file"
                " before their next start (`garlicfarm keys export FILE`)",
            )

    async def remove(self, name: str, *, force: bool) -> None:
        """Have every member refuse a key."""
        await self.check_removal(name, force=force)
        with self._refusals():
            await self._room.remove(name, force=True)  # The members are checked already.
        self._trace.append(KEY_REMOVED, {"key": name, "forced": force})

    async def export(self, *, unconfirmed: bool = False) -> str:
        """Return the text of the farm key file with the present keys. Secret.

        A leader has confirmed them, unless the farm is not created yet or the caller accepts `unconfirmed` keys.
        """
        self._require_membership()
        farm = self._current.farm
        if not unconfirmed and (farm is not None or self._make_view().node.phase not in _BEFORE_CREATION):
            await self._confirm()
            farm = self._current.required()
        if farm is not None:
            await farm.wait_keys()
            self._require_membership()
        facts = {"epoch": self._farm_keys.current.epoch, "unconfirmed": unconfirmed}
        self._trace.append(KEYS_EXPORTED, facts)
        return farm_key_text(self._farm_keys.exported)

    async def _confirm(self) -> None:
        try:
            await self._catch_up()
        except Refused as refused:
            if refused.code not in _WITHOUT_LEADER:
                raise
            raise Refused(refused.status, refused.code, f"{refused}. {_UNCONFIRMED}") from refused

    def _is_refused(self) -> bool:
        return any(alarm.kind == KEY_RETIRED.kind for alarm in self._make_view().alarms)

    def _require_membership(self) -> None:
        if self._is_refused():
            raise Refused(
                409,
                "node-refused",
                "the farm has removed the keys of this node, so its ring is not the farm's: query another node of the"
                " farm (--node). If all nodes refuse this request, no node could open the farm's last keys: replace"
                " them with `garlicfarm keys replace` at a voter",
            )

    def _require_majority(self) -> None:
        """Raise `Refused` unless gossip reaches a majority of the voters: unreached voters would keep the old keys.

        Before the farm is created, the nodes that create it count instead of voters. Parts of a farm with different
        keys never find each other again. So `force` does not skip this check.
        """
        self._require_membership()
        view = self._make_view()
        running = [each for each in counted_members(view) if each.status in _RUNNING]
        if view.raft.voters:
            voters = {each.raft_id for each in view.raft.voters if not each.evicted}
            here, count, unit = len(voters & {each.raft_id for each in running}), len(voters), "voters"
            remedy = "If they will not return, first create a farm from this node: `garlicfarm help recover`"
        elif view.node.phase in _BEFORE_CREATION and all(each.raft_id is None for each in running):
            here, count, unit = len(running), view.farm.expect, "nodes that create the farm"
            remedy = "If this node is alone, check its seeds, broadcast and the firewall: `garlicfarm doctor`"
        else:
            raise Refused(
                409,
                "no-majority",
                "this node is not a server of the farm, so it does not know the voters, and cannot check for a majority"
                " of them: run the command at a server (--node), or wait until the farm admits this node",
            )
        if 2 * here <= count:
            raise Refused(
                409,
                "no-majority",
                f"gossip reaches only {here} of {count} {unit}, counting this node: the others would keep the old key,"
                " and refuse this node afterwards. Repair the network or start them, or run the command at another"
                f" node. {remedy}",
            )

    def _absent(self) -> tuple[str, ...]:
        view = self._make_view()
        # An evicted node does not return, and must not get a new key.
        members = counted_members(view)
        # If a node with a new identity runs at the same address, it has replaced the dead node.
        taken = {member.address for member in members if member.status in _RUNNING}
        # In a farm, only nodes that were servers prevent a removal: any process with a copied key can join gossip under
        # any name and disappear.
        belongs = {member.node_id for member in members if member.server_role is not ServerRole.NONE}
        dead = (
            member
            for member in members
            if member.status is MemberStatus.DEAD and (member.node_id in belongs or not view.raft.voters)
        )
        down = {member.name for member in dead if member.address not in taken}
        here = {member.raft_id for member in members if member.status in _RUNNING}
        away = (each for each in view.raft.voters if each.raft_id not in here and not each.evicted)
        voters = {server_label(voter.raft_id, voter.name) for voter in away}
        return tuple(sorted(down | voters))

    def _names(self, node_ids: tuple[NodeId, ...]) -> tuple[str, ...]:
        return tuple(sorted(self._member_directory.name_of(node_id) for node_id in node_ids))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except NotEverywhereError as error:
            raise Refused(
                409,
                "not-everywhere",
                f"{', '.join(self._names(error.behind))} did not confirm that key {error.name} is {error.step}, or did"
                " not store this change, and would lose the connection: wait until `garlicfarm keys list` shows that"
                " all members agree and have stored the key; make the members that do not answer leave; or use --force",
            ) from error
        except KeyringError as error:
            raise Refused(409, "key-refused", str(error)) from error
        except BusyError as error:
            raise Refused(503, "busy", str(error)) from error


class StaticKeyAdmin(KeyAdmin):
    """The administration of keys of a node without gossip. Only operators change keys, so no leader confirms them."""

    def __init__(self, farm_keys: FarmKeys, trace: EventLog) -> None:
        self._farm_keys = farm_keys
        self._trace = trace

    async def listing(self) -> KeysAnswer:
        """Return the file's ring."""
        current = self._farm_keys.current
        keys = []
        for number, name in enumerate(key_id(key).hex() for key in current.gossip_keys):
            state = FarmKeyState.PRIMARY if number == 0 else FarmKeyState.INSTALLED
            keys.append(FarmKeyView(name, state, current.epoch, opened_by=1, sealed_by=int(number == 0)))
        return KeysAnswer(
            farm=current.label.hex(),
            epoch=current.epoch,
            primary=keys[0].key_id,
            members=1,
            file=str(self._farm_keys.path),
            file_epoch=current.epoch,
            era=current.era or UNSET,
            file_era=current.era or UNSET,
            keys=tuple(keys),
        )

    async def export(self, *, unconfirmed: bool = False) -> str:
        """Return the text of the farm key file. Secret."""
        del unconfirmed
        self._trace.append(KEYS_EXPORTED, {"epoch": self._farm_keys.current.epoch, "unconfirmed": True})
        return farm_key_text(self._farm_keys.exported)


def _in_order(key: FarmKeyView) -> tuple[int, int, str]:
    return (list(FarmKeyState).index(key.state), -key.since, key.key_id)


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _by_hand() -> Refused:
    return Refused(409, "no-gossip", _BY_HAND)
