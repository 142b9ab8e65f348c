"""Key rotation in a running group: no member is lost, and the old key is refused afterwards, also after a restart."""

from pathlib import Path
from random import Random, randrange

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

import gossip
from gossip.core.effects import Alarm, AlarmKind
from gossip.core.keyring import Keyring, KeyringError, key_id
from gossip.core.member import Address, NodeId, Status
from gossip.core.messages import PingRequest
from gossip.core.options import SwimOptions
from gossip.node.group import Group
from gossip.node.key_manager import KeyManager
from gossip.node.state_files import KEYS_FILE, RETRY_LAST_S, StateError, known_keyring
from gossip.node.udp import DatagramSocket, UdpNetwork
from gossip.wire.codec import Code
from gossip.wire.identity import Signer
from gossip.wire.seal import SealFault
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec
from tests.effort import GROUP_SEEDS
from tests.node.gossip_farm import (
    RING,
    in_simulated_time,
    new_events,
    next_event,
    running_farm,
    sees,
    until_all_see_all,
    until_counted,
)
from tests.node.gossip_network import MemoryNetwork, MemorySocket

BROADCAST = Address("127.255.255.255", 7946)
OLD = key_id(RING.primary).hex()


class LossyNetwork(MemoryNetwork):
    """A network that loses one datagram in twenty."""

    def __init__(self, random_seed: int) -> None:
        super().__init__()
        self.random = Random(random_seed)
        self.loss = 0.05

    def deliver(self, datagram: bytes, source: Address, target: Address) -> None:
        if self.random.random() >= self.loss:
            super().deliver(datagram, source, target)


def primaries(agents: list[Group]) -> set[bytes]:
    return {agent.keyring.primary for agent in agents if agent.keyring is not None}


async def until_everywhere(manager: KeyManager) -> None:
    with trio.fail_after(60):
        while not (await manager.list()).is_everywhere:  # noqa: ASYNC110 - keys of other members have no event here
            await trio.sleep(0.5)


def events_of(agent: Group) -> list[object]:
    return new_events(agent)


async def rotate(manager: KeyManager) -> str:
    """Replace the old key on all members; return the name of the new one."""
    name = await manager.install()
    await until_everywhere(manager)
    await manager.use(name)
    await until_everywhere(manager)
    await manager.remove(OLD)
    await until_everywhere(manager)
    return name


def lost_members(agents: list[Group]) -> list[object]:
    """Return the events of dead members and of departures, and the agents that do not list all others."""
    events = [event for agent in agents for event in events_of(agent)]
    lost = [each for each in events if getattr(each, "status", None) in {Status.DEAD, Status.LEFT}]
    return [*lost, *(agent for agent in agents if not sees(agent, *[each for each in agents if each is not agent]))]


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_rotation_with_loss_keeps_members_but_not_old_key(random_seed: int) -> None:
    @in_simulated_time
    async def scenario() -> None:
        network = LossyNetwork(random_seed)
        async with running_farm(network) as farm:
            agents = await farm.start_many(5)
            await until_all_see_all(agents)
            for agent in agents:
                events_of(agent)
            name = await rotate(KeyManager(agents[2]))
            await trio.sleep(30)
            assert lost_members(agents) == [], f"random seed {random_seed}"
            assert {key_id(each).hex() for each in primaries(agents)} == {name}
            await _refuses_the_old_key(network, agents[4])

    scenario()


async def _refuses_the_old_key(network: LossyNetwork, agent: Group) -> None:
    """Send a ping sealed with the old key, as a restarted node would; check that the agent drops it."""
    network.loss = 0
    before = agent.describe()
    unknown = MemorySocket(network, Address("127.0.0.1", 9))
    info = agent.info
    codec = SecureCodec(Signer(Ed25519PrivateKey.generate()), RING, b"s" * SECRETS_BYTES)
    ping = PingRequest(NodeId(b"stranger"), info.incarnation, info.node_id, info.incarnation, 1, 0)
    unknown.send(codec.outgoing(ping, info.node_id), info.address)
    await until_counted(agent, SealFault.RETIRED_KEY)
    received = agent.describe().core.received["PingRequest"]
    assert received - before.core.received["PingRequest"] < 20, "only pings of the group itself"
    assert not [each for _, target, each in network.sent if target == Address("127.0.0.1", 9)]


class LossyUdp:
    """The kernel's sockets, with a loss of one datagram in twenty."""

    def __init__(self, random_seed: int) -> None:
        self.random = Random(random_seed)
        self.lost = 0
        self._udp = UdpNetwork()
        self.bind_broadcast = self._udp.bind_broadcast
        self.resolve = self._udp.resolve

    def bind(self, address: Address, limit_bytes: int) -> DatagramSocket:
        return LossySocket(self._udp.bind(address, limit_bytes), self)


class LossySocket:
    """A socket of a lossy network."""

    def __init__(self, socket: DatagramSocket, network: LossyUdp) -> None:
        self._socket = socket
        self._network = network
        self.address = socket.address
        self.readable = socket.readable
        self.receive_waiting = socket.receive_waiting
        self.overflowed = socket.overflowed
        self.close = socket.close

    def send(self, datagram: bytes, target: Address) -> bool:
        if self._network.random.random() < 0.05:
            self._network.lost += 1
            return True
        return self._socket.send(datagram, target)


async def test_rotation_over_real_sockets_with_loss_keeps_members() -> None:
    random_seed = randrange(2**32)
    network = LossyUdp(random_seed)
    async with running_farm(network) as farm:
        # On a busy machine a short timeout marks members dead. This test does not measure timeouts, so it uses a long
        # one.
        agents = await farm.start_many(5, options=replace(SwimOptions.loopback(), suspicion_multiplier=100))
        await until_all_see_all(agents)
        for agent in agents:
            events_of(agent)
        name = await rotate(KeyManager(agents[2]))
        listing = await KeyManager(agents[4]).list()
        members = tuple(sorted(agent.node_id for agent in agents))
        assert {each.name: (each.opened_by, each.sealed_by) for each in listing.keys} == {
            name: (members, members),
            OLD: ((), ()),
        }, f"random seed {random_seed}"
        assert lost_members(agents) == [], f"random seed {random_seed}"
        late = await farm.start(agents[0])
        with trio.fail_after(60):
            alarm = await next_event(late)
        assert isinstance(alarm, Alarm), f"random seed {random_seed}"
        assert alarm.kind is AlarmKind.KEY_RETIRED, f"random seed {random_seed}"
        assert network.lost > 0


@in_simulated_time
async def test_isolated_member_catches_up_with_rotation() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(4)
        await until_all_see_all(agents)
        *others, isolated = agents
        network.cut_off.add(isolated.info.address)
        manager = KeyManager(others[0])
        name = await manager.install()
        await manager.use(name, force=True)
        network.cut_off.clear()
        with trio.fail_after(30):
            while len(primaries(agents)) > 1:  # noqa: ASYNC110 - keys of other members have no event here
                await trio.sleep(0.1)
        await until_all_see_all(agents)


@in_simulated_time
async def test_joiner_with_replaced_key_receives_new_key() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        name = await KeyManager(seed).install()
        await KeyManager(seed).use(name)
        late = await farm.start(seed)
        await until_all_see_all([seed, late])
        assert {key_id(each).hex() for each in primaries([seed, late])} == {name}


@in_simulated_time
async def test_joiner_with_retired_key_raises_one_alarm() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed = await farm.start()
        await _rotate(seed)
        late = await farm.start(seed)
        with trio.fail_after(60):
            alarm = await next_event(late)
        assert isinstance(alarm, Alarm)
        assert alarm.kind is AlarmKind.KEY_RETIRED
        assert "Copy the current key" in alarm.text
        assert str(seed.info.address.port) in alarm.text
        naks = [each for source, _, each in network.sent if source == seed.info.address and each[0] == Code.JOIN_NAK]
        assert naks
        assert seed.members() == late.members() == ()
        await trio.sleep(120)
        kinds = [each.kind for each in events_of(late) if isinstance(each, Alarm)]
        assert AlarmKind.KEY_RETIRED not in kinds, "reported once"


@in_simulated_time
async def test_retired_key_without_seeds_is_reported_by_broadcasts() -> None:
    """The new node receives only broadcasts, sealed with a key that it does not have."""
    async with running_farm(MemoryNetwork()) as farm:
        member = await farm.start(broadcast=BROADCAST)
        await _rotate(member)
        late = await farm.start(broadcast=BROADCAST)
        with trio.fail_after(120):
            alarm = await next_event(late)
        assert isinstance(alarm, Alarm)
        assert alarm.kind is AlarmKind.KEY_RETIRED
        assert str(member.info.address.port) in alarm.text
        assert not alarm.over
        current = await farm.start(broadcast=BROADCAST, keyring=member.keyring)
        await until_all_see_all([member, current])
        assert late.members() == ()


async def _rotate(agent: Group) -> str:
    manager = KeyManager(agent)
    before = (await manager.list()).primary
    name = await manager.install()
    await manager.use(name)
    await manager.remove(before)
    return name


@in_simulated_time
async def test_restart_keeps_new_key(tmp_path: Path) -> None:
    changed: list[Keyring] = []
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        alice = await farm.start(seed, state_directory=tmp_path, keyring_changed=changed.append)
        await until_all_see_all([seed, alice])
        name = await _rotate(seed)
        await until_everywhere(KeyManager(seed))
        assert key_id(changed[-1].primary).hex() == name
        assert changed[-1].label == RING.label
        assert (tmp_path / KEYS_FILE).stat().st_mode & 0o777 == 0o600
        await farm.crash(alice)
        again = await farm.start(seed, state_directory=tmp_path)  # its configuration still has the old key
        await until_all_see_all([seed, again])
        assert {key_id(each).hex() for each in primaries([seed, again])} == {name}


@in_simulated_time
async def test_later_key_in_configuration_reaches_other_members(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        alice = await farm.start(seed, state_directory=tmp_path)
        await until_all_see_all([seed, alice])
        name = await _rotate(seed)
        await until_everywhere(KeyManager(seed))
        address = alice.info.address
        await farm.crash(alice)
        chain = seed.keyring
        assert chain is not None
        later = chain.install(b"a key made by hand, thirty-two..").use(b"a key made by hand, thirty-two..")
        again = await farm.start(seed, state_directory=tmp_path, keyring=later, bind=address)
        await until_all_see_all([seed, again])
        with trio.fail_after(60):
            while len(primaries([seed, again])) > 1:  # noqa: ASYNC110 - keys of other members have no event here
                await trio.sleep(0.1)
        assert primaries([seed, again]) == {later.primary}
        assert name in {key_id(key).hex() for key in chain.merge(later).others}


@in_simulated_time
async def test_unstored_key_is_used_with_alarm() -> None:
    def full(_ring: Keyring) -> None:
        raise StateError("the disk is full")

    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        alice = await farm.start(seed, keyring_changed=full)
        await until_all_see_all([seed, alice])
        await KeyManager(seed).install()
        alarm = None
        with trio.fail_after(60):
            while not isinstance(alarm, Alarm):
                alarm = await next_event(alice)
        assert alarm.kind is AlarmKind.KEYRING_NOT_STORED
        assert "disk is full" in alarm.text
        await until_everywhere(KeyManager(seed))


@in_simulated_time
async def test_old_key_stays_until_all_members_stored_new_key() -> None:
    # Given a member that cannot store keys
    is_full = True

    def store(_ring: Keyring) -> None:
        if is_full:
            raise StateError("the disk is full")

    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        alice = await farm.start(seed, keyring_changed=store)
        await until_all_see_all([seed, alice])
        for manager in (KeyManager(seed), KeyManager(alice)):
            # When either member installs a key, then it reports that Alice has not stored the key, which stays unusable
            name = await manager.install()
            await until_everywhere(manager)
            assert (await manager.list()).unstored == (alice.node_id,)
            with pytest.raises(KeyringError, match=f"and stored this change.*in total 1: {alice.node_id.hex()}"):
                await manager.use(name)
        # When the disk has space again, then the member stores the key without a restart, and the alarm ends
        is_full = False
        alarms: list[Alarm] = []
        with trio.fail_after(RETRY_LAST_S):
            while not any(each.over for each in alarms):
                event = await next_event(alice)
                alarms += [event] if isinstance(event, Alarm) else []
        assert {each.kind for each in alarms} == {AlarmKind.KEYRING_NOT_STORED}
        assert (await manager.list()).unstored == ()
        await manager.use(name)
        await until_everywhere(manager)
        await manager.remove(OLD)


@in_simulated_time
async def test_next_step_waits_for_all_members_unless_forced() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        manager = KeyManager(agents[0])
        network.cut_off.add(agents[2].info.address)
        name = await manager.install()
        manager.survey_timeout_s = 0.1  # the query ends before the isolated member is declared dead
        listing = await manager.list()
        assert (listing.agreeing, listing.silent) == ((agents[1].node_id,), (agents[2].node_id,))
        with pytest.raises(KeyringError, match=agents[2].node_id.hex()):
            await manager.use(name)
        await manager.use(name, force=True)
        with pytest.raises(KeyringError, match="no key has the id"):
            await manager.use("00000000")


@in_simulated_time
async def test_unencrypted_group_refuses_installation_of_key() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agent = await farm.start(keyring=None, insecure=True)
        with pytest.raises(KeyringError, match="in clear"):
            await KeyManager(agent).install()


@in_simulated_time
async def test_stored_keys_of_another_farm_are_ignored(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agent = await farm.start(state_directory=tmp_path)
        await _rotate(agent)
        await farm.crash(agent)
        other = Keyring.of(b"the key of a farm somewhere else")
        moved = await farm.start(state_directory=tmp_path, keyring=other)
        assert primaries([moved]) == {other.primary}


def _damaged(content: bytes) -> dict[str, bytes]:
    """Return variants of a key file with the damage that disks, editors and people cause."""
    flipped = {f"byte {at} flipped": _flipped(content, at) for at in range(len(content))}
    return {**flipped, "empty": b"", "cut": content[:-3], "zeros": bytes(len(content)), "longer": content + b"\n"}


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@in_simulated_time
async def test_damaged_key_file_prevents_start_with_remedy(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agent = await farm.start(state_directory=tmp_path)
        await KeyManager(agent).install()
        await farm.crash(agent)
    path = tmp_path / KEYS_FILE
    for damage, content in _damaged(path.read_bytes()).items():
        path.write_bytes(content)
        with pytest.raises(StateError, match="is damaged: remove it") as caught:
            known_keyring(tmp_path, RING.label)
        assert str(path) in str(caught.value), damage
    with pytest.raises(StateError, match="is damaged: remove it"):
        await _start_alone(tmp_path)


@in_simulated_time
async def test_readable_key_file_prevents_start_with_remedy(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agent = await farm.start(state_directory=tmp_path)
        await KeyManager(agent).install()
        await farm.crash(agent)
    path = tmp_path / KEYS_FILE
    path.chmod(0o640)
    with pytest.raises(StateError, match=f"mode 640.*chmod 600 {path}"):
        await _start_alone(tmp_path)
    path.chmod(0o600)
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match=f"cannot read {path}"):
        await _start_alone(tmp_path)


async def _start_alone(directory: Path) -> None:
    async with gossip.open_group("127.0.0.1", key=RING, state_directory=directory, network=MemoryNetwork()):
        pass
