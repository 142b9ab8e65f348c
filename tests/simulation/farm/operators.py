"""The operator of a trial: one person who changes the members, the keys and the addresses of the farm, step by step.

    Operator.run    the actions of a plan, one after another; each has a start and an end, like a fault
    away            machines whose nodes are not members of the farm (`World.away`)

An operator does not begin an action while the previous one is incomplete, and waits until the log has exactly the
members as servers. A refused order is sent again, to each running node in turn. So after healing each action completes;
`waits_for` names the order of an incomplete action.
"""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Final, TypeVar

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.alarms import KEY_RETIRED
from bridge.api.control import IdentityView, SubmitOutcome
from bridge.api.control_routes import (
    COMMANDS,
    INVITATIONS_NEW,
    INVITATIONS_REVOKE,
    KEYS,
    KEYS_EXPORT,
    KEYS_REPLACE,
    LEAVE,
    LOG_TIME,
    NODES,
    NODES_APPROVE,
    NODES_EVICT,
    TRANSFER,
)
from bridge.api.requests import (
    ClientOrder,
    CommandRequest,
    CorrectionOrder,
    ExportKeysRequest,
    InvitationRequest,
    NodeRequest,
    RemovalOrder,
    ReplaceKeysRequest,
    RevokeRequest,
    TransferRequest,
)
from bridge.cli.keys.rotation import RotationError, rotate
from bridge.cli.recover import _make
from bridge.core.farm.log_time_correction import needless_ms
from bridge.core.log.records import Scope
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.inviting.redeeming import JoinError, redeem
from bridge.node.offline.recovering import RecoveryError, carry_out, plan_recovery
from bridge.node.offline.state_reading import read_backup
from bridge.node.security.key_files import replace_farm_key
from bridge.node.settings.bundle import parse_bundle
from bridge.wire.keys.client_key import ClientKeyFile
from bridge.wire.keys.farm_key import farm_key_text, parse_farm_key
from bridge.wire.keys.invitation import parse_token
from bridge.wire.log.proof import sign_entry
from gossip.node.state_files import load_identity
from tests.simulation.farm.disk import Content, Disk
from tests.simulation.farm.host import EPOCH_S
from tests.simulation.farm.hostile import Hostility, Parts
from tests.simulation.farm.nemeses import OF_OPERATORS, OTHER_ENDS, Fault, Nemesis
from tests.simulation.farm.settings import I2CP_PORT, set_seeds
from tests.simulation.farm.world import World, as_host

RETRY_S: Final = 2.0
END_S: Final = 30.0
"""Time that a leaving or evicted node has until its machine is switched off."""
UNCONFIRMED_AFTER_S: Final = 60.0
"""Longest time of attempts to export confirmed keys; then the operator exports unconfirmed keys."""
LEADING_TRIES: Final = 3
"""Maximum number of handovers to a hostile member; they end when it has led."""
ROTTING: Final = ("raft/*.segment", "raft/ballot", "raft/*", "history.ring", "*")
"""Patterns of the files with a flipped bit; the last pattern has all small files."""
REMEDY: Final = re.compile(r"[Mm]ove |[Rr]emove |[Rr]estore |\bmv |copy the ")
SERVING: Final = frozenset({"voter", "learner"})
EMPTY: Final = Content({"": 0o700}, {}, ())

T = TypeVar("T")


def damage_reports(failures: Sequence[tuple[str, str]], name: str) -> list[tuple[str, str]]:
    """Return the failures of a start that no other fault causes; the trial judges the others."""
    return [each for each in failures if each[0] == name and OTHER_ENDS.search(each[1]) is None]


class Operator:
    """The operator. `active` is the list of present faults; it has each action while it lasts."""

    def __init__(self, world: World, faults: tuple[Fault, ...], active: list[Fault], parts: Parts) -> None:
        self._world = world
        self._faults = [each for each in faults if each.nemesis in OF_OPERATORS]
        self._active = active
        self._backup = world.directory / "operator.backup"
        self._parts = parts
        self._random = Random(f"{world.seed}/rot and client keys")
        self._clients: dict[str, ClientKeyFile] = {}
        self._failures = 0
        """Number of failed processes before the last rot."""
        self._numbers = count(1)
        """Numbers of entries by client keys."""
        self.wrong_clocks: dict[str, float] = {}
        """Offsets of the clocks that the operator has set wrong, in seconds, by machine."""
        self.down: set[str] = set()
        """Members that the operator keeps stopped."""
        self.joining: set[str] = set()
        """Machines in `World.away` whose nodes run already: they become members when the log has them as servers."""
        self.leaving: set[str] = set()
        """Machines in `World.away` whose servers may still be voters: the log has not removed them yet."""
        self.waits_for = ""
        """The repeated order."""
        self.wrong: list[str] = []
        """Results that an operator does not expect."""
        self.completed: Counter[str] = Counter()
        """Number of completed actions, by kind, and of dropped actions."""

    async def run(self, trouble_s: float) -> None:
        """Carry out the actions; count actions that cannot begin within the trouble as dropped."""
        began_s = self._world.time_s
        for number, fault in enumerate(self._faults):
            await trio.sleep_until(began_s + fault.at_s)
            with trio.move_on_at(began_s + trouble_s) as late:
                await self._settle()
            if late.cancelled_caught or self._world.time_s >= began_s + trouble_s:
                self.completed["dropped actions"] = len(self._faults) - number
                return
            self._active.append(fault)
            self._world.note(None, f"operator: {' '.join(fault.hosts)}: {fault.nemesis.value}")
            await self._begin(fault)
            await trio.sleep_until(began_s + fault.until_s)
            await self._end(fault)
            await self._settle()
            self._active.remove(fault)
            self.completed[fault.nemesis.name.lower()] += 1
            self._world.note(None, f"operator: completed: {fault.nemesis.value}")

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _begin(self, fault: Fault) -> None:
        name = fault.hosts[0]
        begins: dict[Nemesis, Callable[[str], Awaitable[None]]] = {
            Nemesis.LEAVE: self._leave,
            Nemesis.JOIN_AND_LEAVE: self._join,
            Nemesis.JOIN_AND_EVICT: self._join,
            Nemesis.HOSTILE: self._join,
            Nemesis.INVITE_AND_LEAVE: self._invite,
            Nemesis.RESTORE: self._lose,
            Nemesis.ROTATE: self._rotate_without,
            Nemesis.ROT: self._rot,
            Nemesis.CLIENT_KEY: self._admit_client,
            Nemesis.NEW_KEYS: self._replace_keys,
        }
        match fault.nemesis:
            case Nemesis.REPLACE:
                self._go(name)
                await self._world.kill(name)
            case Nemesis.LOG_TIME:
                for each in fault.hosts:
                    self.wrong_clocks[each] = fault.amount
                    self._world.hosts[each].jump(fault.amount)
            case Nemesis.RECOVER:
                for each in fault.hosts[1 : 2 + len(self._world.members) // 2]:
                    self.down.add(each)
                    await self._world.kill(each)
                    self._disk(each).restore(EMPTY)
            case Nemesis.MOVE:
                self._world.move(name, f"10.0.1.{self._world.hosts[name].number}")
            case nemesis:
                await begins[nemesis](name)

    async def _end(self, fault: Fault) -> None:
        name = fault.hosts[0]
        ends: dict[Nemesis, Callable[[str], Awaitable[None]]] = {
            Nemesis.LEAVE: self._return,
            Nemesis.JOIN_AND_LEAVE: self._leave,
            Nemesis.INVITE_AND_LEAVE: self._leave,
            Nemesis.JOIN_AND_EVICT: self._evict,
            Nemesis.HOSTILE: self._resist,
            Nemesis.RESTORE: self._restore,
            Nemesis.ROT: self._replace_damaged,
            Nemesis.CLIENT_KEY: self._remove_client,
            Nemesis.RECOVER: self._recover,
        }
        match fault.nemesis:
            case Nemesis.REPLACE:
                await self._join(fault.hosts[1])
            case Nemesis.ROTATE:
                self.down.discard(name)
                await self._start(name)
            case Nemesis.MOVE:
                self._world.move(name, f"10.0.0.{self._world.hosts[name].number}")
            case Nemesis.LOG_TIME:
                for each in fault.hosts:
                    self._world.hosts[each].jump(-self.wrong_clocks.pop(each))
                await self._ordered("correct log time", self._correct_log_time)
                for host in self._world.members.values():  # A directory refuses earlier structures, as a router does.
                    for file in host.directory.glob("published/*"):
                        file.unlink()
            case Nemesis.NEW_KEYS:
                pass  # complete at its beginning
            case nemesis:
                await ends[nemesis](name)

    async def _leave(self, name: str) -> None:
        """Have a node leave. If it cannot, its machine is switched off, and `_settle` removes its server."""
        self._go(name)
        try:
            async with self._world.control(name) as client:
                await client.call(LEAVE)
        except ControlError as error:
            self._world.note(None, f"operator: {name} does not leave: {error}")
        await self._ended(name)

    async def _return(self, name: str) -> None:
        self.joining.add(name)
        await self._start(name)
        returned = CommandRequest(removal=RemovalOrder(name, removed=False))

        async def allow(client: ControlClient) -> None:
            if name not in _servers((await client.call(NODES)).nodes):
                await client.call(COMMANDS, returned)
                raise ControlError(f"{name} is not a server yet")

        await self._ordered(f"allow {name} to join", allow)

    async def _join(self, name: str) -> None:
        number = int(name.rpartition("-")[2])
        self._world.away.add(name)
        self.joining.add(name)
        await self._ordered(f"key file for {name}", lambda _: self._world.join(number, Disk))
        await self._admit(name)

    async def _invite(self, name: str) -> None:
        """Have a node join by an invitation, which approves it.

        Another identity must not use its token, nor the token of a revoked invitation.
        """
        self._world.away.add(name)
        host = self._world.add(int(name.rpartition("-")[2]), Disk, farm_key=await self._exported())

        async def join(client: ControlClient) -> None:
            token = parse_token((await client.call(INVITATIONS_NEW, InvitationRequest())).token)
            revoked = await client.call(INVITATIONS_NEW, InvitationRequest())
            await client.call(INVITATIONS_REVOKE, RevokeRequest(revoked.invitation.id))
            with as_host(host):
                try:
                    granted = await redeem(token, load_identity(host.directory), name)
                except JoinError as error:
                    raise ControlError(str(error)) from error
                self._copy(farm_key_text(parse_bundle(granted.bundle)[0]))
                stranger = load_identity(host.directory.with_name(f"{name}-stranger"))
                for invalid in (token, parse_token(revoked.token)):
                    with suppress(JoinError):
                        await redeem(invalid, stranger, "stranger")
                        self.wrong.append(f"another identity used an invalid token of the inviter of {name}")

        await self._ordered(f"invite {name}", join)
        self._disk(name).flush()
        self.joining.add(name)
        if host.name in self._world.routers:
            await self._world.serve(name, I2CP_PORT, self._world.routers[name].serve)
        await self._start(name)

    async def _admit(self, name: str) -> None:
        """Approve the node that runs on a machine."""

        async def approve(client: ControlClient) -> None:
            async with self._world.control(name) as own:
                node_id = (await own.view()).node.node_id
            known = {each.id: each for each in (await client.call(NODES)).nodes}
            if node_id not in known:
                raise ControlError(f"{name} is unknown")
            if known[node_id].raft_id is None:
                await client.call(NODES_APPROVE, NodeRequest(node_id))

        await self._ordered(f"approve {name}", approve)

    async def _evict(self, name: str) -> None:
        async def evict(client: ControlClient) -> None:
            known = [each for each in (await client.call(NODES)).nodes if each.name == name]
            if not known:
                raise ControlError(f"{name} is unknown")  # The node may have lost its commit index in a power cut.
            for each in known:
                if (
                    each.standing != "evicted"
                    and not (await client.call(NODES_EVICT, NodeRequest(each.id))).keys_replaced
                ):
                    self.wrong.append(f"the eviction of {name} does not replace the keys")

        self._go(name)
        await self._ordered(f"evict {name}", evict)
        await self._ended(name)
        await self.export()

    async def _resist(self, name: str) -> None:
        """Hand leadership to a hostile member, then evict it while it lies."""

        async def hand_over(client: ControlClient) -> None:
            await client.call(TRANSFER, TransferRequest(name))

        await self._settle()
        hostility = Hostility(self._world, self._parts, self._world.hosts[name])
        for _ in range(LEADING_TRIES):
            with trio.move_on_after(END_S):
                await self._ordered(f"hand leadership to {name}", hand_over)
            if name in self._parts.submitting and (committed := await hostility.lead()):
                self.completed["hostile entries"] += committed
                break
        self._go(name)
        await self._world.kill(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hostility.lie)
            await trio.sleep(RETRY_S)
            await self._evict(name)

    async def _lose(self, name: str) -> None:
        """Lose the disk of a machine, after a backup at another node."""
        self._backup.write_bytes(await self._ordered("back up", ControlClient.backup))
        self._go(name)
        await self._world.kill(name)
        self._disk(name).restore(EMPTY)

    async def _restore(self, name: str) -> None:
        founding = (await read_backup(self._backup)).founding
        assert founding is not None
        host = self._world.hosts[name]
        with as_host(host):  # A power cut may follow before the node starts.
            _make(host.directory, founding)
        await self.export()
        set_seeds(host, self._world.present_seeds(name))
        self._disk(name).flush()
        self.joining.add(name)
        await self._start(name)
        await self._admit(name)

    async def _rot(self, name: str) -> None:
        """Flip a bit in the files of a stopped node, and start it.

        After a kill, damage at the end would look like a torn write.
        """
        self.down.add(name)
        self._failures = len(self._world.failures)
        if await self._stopped(name):
            place = self._disk(name).rot(self._random, self._random.choice(ROTTING))
            self._world.note(None, f"operator: {name} has rot in {place}")
        await self._start(name)

    async def _replace_damaged(self, name: str) -> None:
        """Follow the remedy in the refusal of a damaged directory.

        A node that works has repaired or ignored the damage.
        """
        self.down.discard(name)
        world = self._world
        while not (failures := damage_reports(world.failures[self._failures :], name)):
            if await self._works(name):
                return
            await trio.sleep(RETRY_S)
        for _, failure in failures:
            if REMEDY.search(failure) is None:
                self.wrong.append(f"{name} does not start, and does not print a remedy: {failure}")
        self.completed["replaced directories"] += 1
        self._go(name)
        await world.kill(name)
        for each in failures:
            world.failures.remove(each)
        self._disk(name).restore(EMPTY)
        await self.export()
        await self._join_again(name)

    async def _join_again(self, name: str) -> None:
        """Start a node with an empty directory and the present key file, and approve it."""
        set_seeds(self._world.hosts[name], self._world.present_seeds(name))
        self.joining.add(name)
        await self._start(name)
        await self._admit(name)

    async def _recover(self, name: str) -> None:
        """Make a new farm from a survivor. All other nodes join it with empty directories."""
        world, host = self._world, self._world.hosts[name]
        others = [each for each in world.members if each != name]
        for each in others:
            self._go(each)
            self.down.discard(each)
            await world.kill(each)
            self._disk(each).restore(EMPTY)
        self.down.add(name)
        works = host.run is not None and not (host.is_paused or self._disk(name).hang or self._disk(name).full)
        ended_well = await self._stopped(name) and works
        while True:
            try:
                with as_host(host):
                    plan = await plan_recovery(host.directory)
                    await carry_out(plan)
            except RecoveryError as error:
                world.note(None, f"operator: recover {name}: {error}")
                await trio.sleep(RETRY_S)
            else:
                break
        for call in world.on_recovery:
            call(plan, ended_well=ended_well)
        self.down.discard(name)
        await self._start(name)
        await self.export()
        for each in others:
            await self._join_again(each)

    async def _correct_log_time(self, client: ControlClient) -> None:
        """Correct log time if it does not become right by waiting; raise ControlError until it is right."""
        farm, known = await client.cluster(), await client.call(LOG_TIME)
        if farm.raft_id is None or farm.raft_id != farm.leader_id:
            raise ControlError("it does not lead")
        ahead_ms = known.log_time_ms - 1000 * (EPOCH_S + self._world.time_s)
        if ahead_ms > needless_ms(self._world.profile.reporting_period_ms):
            await client.call(COMMANDS, CommandRequest(correction=CorrectionOrder()))
            raise ControlError(f"log time was {ahead_ms / 1000:.0f} s ahead")

    async def _stopped(self, name: str) -> bool:
        """Stop a process; kill it after a time. Return True if it has not been killed."""
        with trio.move_on_after(END_S):
            await self._world.stop(name)
        if self._world.hosts[name].run is None:
            return True
        await self._world.kill(name)
        return False

    async def _works(self, name: str) -> bool:
        """Return True if the node has opened its log."""
        host = self._world.hosts[name]
        if host.run is None or host.is_paused:
            return False
        try:
            async with self._world.control(name) as client:
                return (await client.cluster()).raft_id is not None
        except ControlError:
            return False

    async def _admit_client(self, name: str) -> None:
        """Admit a client key; an entry that it signs must have an effect."""
        key = Ed25519PrivateKey.from_private_bytes(self._random.randbytes(32))
        self._clients[name] = ClientKeyFile(f"program-{name}", key)
        public = self._clients[name].public_key
        order = ClientOrder(f"program-{name}", admitted=True, key=public, scopes=(Scope.OPERATOR, Scope.WEIGHTS))
        await self._ordered(
            f"admit client key {name}", lambda client: client.call(COMMANDS, CommandRequest(client=order))
        )
        if reason := await self._ordered(f"submit by {name}", partial(self._submit_signed, name)):
            self.wrong.append(f"an entry of the admitted client key of {name} is refused: {reason}")

    async def _remove_client(self, name: str) -> None:
        """Remove the client key; a later entry must not have an effect."""
        order = CommandRequest(client=ClientOrder(f"program-{name}", admitted=False))
        await self._ordered(f"remove client key {name}", lambda client: client.call(COMMANDS, order))
        if not await self._ordered(f"submit by {name}", partial(self._submit_signed, name)):
            self.wrong.append(f"an entry of the removed client key of {name} had an effect")

    async def _submit_signed(self, name: str, client: ControlClient) -> str:
        """Submit a cost or factors; return the reason why the farm refuses the entry, or an empty text."""
        view, cluster = await client.view(), await client.cluster()
        leaves = [leaf.destination for each in view.reports for leaf in each.leaves]
        if not leaves or cluster.cluster_id is None:
            raise ControlError("it does not know a leaf")
        number, leaf = next(self._numbers), leaves[0].removesuffix(".b32.i2p")
        entry: dict[str, object] = {"cost": {"hash": leaf, "factor": 1 + number % 5}}
        if number % 3 == 0:
            factors = {leaf: 0.5 + number % 4 / 2}
            entry = {"factors": {"throughIndex": cluster.commit_index, "formula": "trial", "factors": factors}}
        key = self._clients[name].key
        answer = await client.submit(
            sign_entry(json.dumps(entry).encode(), key, bytes.fromhex(cluster.cluster_id), number)
        )
        if answer.outcome is not SubmitOutcome.COMMITTED or answer.reason.startswith("made from the log"):
            raise ControlError(answer.reason or answer.outcome.value)
        return answer.reason

    async def _replace_keys(self, _: str) -> None:
        self._copy(await self._ordered("replace keys", _with_new_keys))
        with trio.move_on_after(END_S):
            await self._ordered("same keys", self._compare_keys)

    async def _rotate_without(self, name: str) -> None:
        """Rotate the keys while a member is stopped."""
        self.down.add(name)
        await self._world.kill(name)

        async def rotated(client: ControlClient) -> None:
            known = await client.call(KEYS)
            if set(known.absent) - self.down - self._world.away or known.members + len(known.absent) < len(
                self._world.members
            ):
                raise ControlError(f"{known.members} members run, and {known.absent} are down")
            try:
                await rotate(client, partial(self._world.note, None), END_S, force=True)
            except RotationError as error:
                raise ControlError(str(error)) from error

        await self._ordered("rotate the keys", rotated)
        await self.export()

    async def export(self) -> None:
        """Write the current key file over the file of each machine."""
        self._copy(await self._exported())

    async def _compare_keys(self, _: ControlClient) -> None:
        """Raise ControlError while running members have different keys: a node may apply new keys later."""
        keys = set()
        for name, host in self._world.members.items():
            if host.run is not None and not host.is_paused:
                async with self._world.control(name) as client:
                    keys.add((await client.call(KEYS_EXPORT)).farm_key)
        if len(keys) > 1:
            raise ControlError("members have different keys")

    async def _exported(self) -> str:
        """Return the current key file; if the farm remains without a quorum, follow the remedy in the refusal."""
        while True:
            with trio.move_on_after(UNCONFIRMED_AFTER_S):
                return (await self._ordered("export the key", lambda client: client.call(KEYS_EXPORT))).farm_key
            if all(each.nemesis in OF_OPERATORS for each in self._active):
                break
        order = ExportKeysRequest(unconfirmed=True)
        answer = await self._ordered("export the unconfirmed key", lambda client: client.call(KEYS_EXPORT, order))
        await self._renew_retired(answer.farm_key)
        return answer.farm_key

    async def _renew_retired(self, farm_key: str) -> None:
        """Copy a key file to each machine, and restart the nodes whose keys are retired."""
        self._copy(farm_key)
        for name, host in self._world.members.items():
            if host.run is None or host.is_paused:
                continue
            async with self._world.control(name) as client:
                alarms = (await client.view()).alarms
            if any(each.kind == KEY_RETIRED.kind for each in alarms):
                await self._stopped(name)
                await self._start(name)

    def _copy(self, farm_key: str) -> None:
        for file in sorted((self._world.directory / "keys").glob("*farm.key")):
            replace_farm_key(file, parse_farm_key(farm_key))

    # -- machines and orders -------------------------------------------------------------------------------------------

    def _go(self, name: str) -> None:
        """Count a machine as away, even if it has not joined completely."""
        self._world.away.add(name)
        self.joining.discard(name)
        self.leaving.add(name)

    def _disk(self, name: str) -> Disk:
        disk = self._world.hosts[name].disk
        assert isinstance(disk, Disk)
        return disk

    async def _start(self, name: str) -> None:
        if self._world.hosts[name].run is None:
            await self._world.start(name)

    async def _ended(self, name: str) -> None:
        """Wait for the end of a process; end it after a time."""
        run = self._world.hosts[name].run
        if run is not None:
            with trio.move_on_after(END_S):
                await run.ended.wait()
        await self._world.kill(name)

    async def _settle(self) -> None:
        """Wait until the log has exactly the members as servers; remove a server that did not leave."""

        async def settled(client: ControlClient) -> None:
            known = await client.cluster()
            if known.raft_id is None or known.raft_id != known.leader_id:
                raise ControlError("it does not lead")
            nodes = (await client.call(NODES)).nodes
            if old := [each.id for each in nodes if each.server_role in SERVING and each.standing != "member"]:
                raise ControlError(f"{old} are still servers")
            servers, wanted = _servers(nodes), self._world.members.keys() | self.joining
            if missing := wanted - servers:
                raise ControlError(f"{sorted(missing)} are not servers")
            for each in sorted(servers - wanted):
                await client.call(COMMANDS, CommandRequest(removal=RemovalOrder(each, removed=True)))
                raise ControlError(f"{each} is still a server")

        await self._ordered("servers are the members", settled)
        self._world.away -= self.joining
        self.joining.clear()
        self.leaving.clear()

    async def _ordered(self, what: str, ask: Callable[[ControlClient], Awaitable[T]]) -> T:
        """Send an order to one running member after another, until one of them carries it out.

        A joining node counts as a member, because it may lead already.
        """
        errors: dict[str, str] = {}
        while True:
            for name, host in list(self._world.hosts.items()):
                if name in self._world.away - self.joining or host.run is None or host.is_paused:
                    continue
                try:
                    async with self._world.control(name) as client:
                        answer = await ask(client)
                except ControlError as error:
                    if errors.get(name) != str(error):
                        self._world.note(None, f"operator: {what} at {name}: {error}")
                    errors[name] = str(error)
                    self.waits_for = f"{what} at {name}: {error}"
                else:
                    self.waits_for = ""
                    return answer
            await trio.sleep(RETRY_S)


def _servers(nodes: tuple[IdentityView, ...]) -> set[str]:
    return {each.name or each.id for each in nodes if each.server_role in SERVING}


async def _with_new_keys(client: ControlClient) -> str:
    """Replace the keys; return the key file of the same node, because others may apply the entry later."""
    await client.call(KEYS_REPLACE, ReplaceKeysRequest())
    return (await client.call(KEYS_EXPORT)).farm_key
