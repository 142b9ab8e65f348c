"""The gossip agent around the core, under a mock clock and with a network in memory."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import gossip
from gossip.core.effects import Alarm, AlarmKind, MembershipChanged
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Status
from gossip.core.messages import JoinReq
from gossip.node import group as group_module
from gossip.node.discovery import Discovery
from gossip.node.group import Group
from gossip.node.limits import NEWCOMERS_BURST, Loss
from gossip.node.settings import ConfigError, GroupSettings
from gossip.node.state_files import GENERATION_FILE, StateError, keep_generation, load_identity, write_durably
from gossip.node.transport import BATCH, BROADCASTS_LIMIT, DatagramTransport
from gossip.wire.codec import Code
from gossip.wire.identity import Signer
from gossip.wire.seal import SealFault
from gossip.wire.secure_codec import SecureCodec
from tests.node.gossip_farm import (
    RING,
    Farm,
    in_simulated_time,
    new_events,
    next_event,
    running_farm,
    sees,
    statuses,
    until,
    until_all_see_all,
    until_counted,
)
from tests.node.gossip_network import MemoryNetwork

BROADCAST = Address("127.255.255.255", 7946)


@in_simulated_time
async def test_join_with_token_makes_members_see_each_other() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed = await farm.start(keyring=None, insecure=True)
        alice = await farm.start(seed, keyring=None, insecure=True)
        await until_all_see_all([seed, alice])
        assert [datagram[0] for _, _, datagram in network.sent[:4]] == [
            Code.JOIN_REQ,
            Code.JOIN_NAK,
            Code.JOIN_REQ,
            Code.JOIN_ACK,
        ]


@in_simulated_time
async def test_membership_event_has_signed_announcement() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        alice = await farm.start(seed, metadata=b"node of alice")
        change = await next_event(seed)
        assert isinstance(change, MembershipChanged)
        assert (change.info.node_id, change.info.metadata) == (alice.node_id, b"node of alice")
        assert (change.previous, change.status) == (None, Status.ALIVE)
        assert change.info.address == alice.info.address
        assert len(change.info.credential) == 96


@in_simulated_time
async def test_leaving_agent_is_seen_as_left() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        await agents[2].leave()
        assert sees(agents[0], agents[2], status=Status.LEFT)
        assert sees(agents[1], agents[2], status=Status.LEFT)


@in_simulated_time
async def test_latest_metadata_reaches_other_members() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed, alice = await farm.start_many(2)
        await until_all_see_all([seed, alice])
        alice.set_metadata(b"first thought")
        alice.set_metadata(b"second thought")
        await until(seed, lambda: seed.members()[0].info.metadata == b"second thought")
        thoughts = [each.info.metadata for each in new_events(seed) if isinstance(each, MembershipChanged)]
        assert b"first thought" not in thoughts
        with pytest.raises(ValueError, match="512"):
            alice.set_metadata(b"m" * 513)


@in_simulated_time
async def test_other_farm_in_broadcast_domain_is_ignored_but_counted() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        own_agents = [await farm.start(broadcast=BROADCAST) for _ in range(2)]
        other_agents = [
            await farm.start(broadcast=BROADCAST, keyring=Keyring.of(b"another" + bytes(25))) for _ in range(2)
        ]
        await until_all_see_all(own_agents)
        await until_all_see_all(other_agents)
        for agent in (*own_agents, *other_agents):
            await until_counted(agent, SealFault.OTHER_FARM, least=2)
        assert [len(statuses(agent)) for agent in (*own_agents, *other_agents)] == [1, 1, 1, 1]
        assert not any(isinstance(event, Alarm) for agent in own_agents for event in new_events(agent))


@in_simulated_time
async def test_other_message_by_broadcast_is_dropped() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agent = await farm.start(broadcast=BROADCAST)
        network.deliver(bytes([Code.JOIN_REQ]) + b"rubbish", Address("127.0.0.9", 1), BROADCAST)
        await until_counted(agent, Loss.MISPLACED)


@in_simulated_time
async def test_seeds_by_name_are_resolved_again_until_found() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed = await farm.start(bind=Address("127.0.0.1", 7946))
        latecomer = await farm.start(seeds=("seed.farm.example:7946",))
        await trio.sleep(120)
        assert not sees(latecomer, seed)
        assert 4 <= len(network.lookups) <= 10, "retried with growing pauses"
        network.names["seed.farm.example"] = ["127.0.0.1"]
        await until(latecomer, lambda: sees(latecomer, seed))


@in_simulated_time
async def test_seeds_can_be_added_to_running_agent() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        alice, boris = await farm.start(), await farm.start()
        alice.add_seeds(boris.info.address)
        await until_all_see_all([alice, boris])


@in_simulated_time
async def test_datagram_to_public_address_needs_permission() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agent = await farm.start()
        agent._requests.add_seeds([Address("8.8.8.8", 7946)])
        await until_counted(agent, Loss.WIDE_AREA)
        assert network.sent == []


@in_simulated_time
async def test_malformed_or_replayed_datagrams_are_ignored() -> None:
    network = MemoryNetwork()
    unknown = Address("127.0.0.66", 666)
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        recorded = [datagram for _, target, datagram in network.sent if target == agents[0].info.address]
        before = statuses(agents[0])
        other_salt = recorded[0][:20] + b"?" + recorded[0][21:]
        for datagram in (*recorded, b"", b"?", b"\xfa" * 100, b"x" * 5000, other_salt):
            network.deliver(datagram, unknown, agents[0].info.address)
        await until_counted(agents[0], Loss.OVERSIZE)
        await until_counted(agents[0], SealFault.BAD_SEAL)
        dropped = agents[0].describe().wire.dropped
        assert dropped[SealFault.REPLAY] == len(recorded)
        assert {"short", "other-farm"} <= dropped.keys()
        assert statuses(agents[0]) == before


@in_simulated_time
async def test_join_flood_is_limited_per_source() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed = await farm.start()
        flood = await farm.start(bind=Address("127.0.0.2", 0))
        codec = SecureCodec(Signer(flood.identity.key), RING, bytes(range(48)))
        for _ in range(int(NEWCOMERS_BURST) + 50):
            network.deliver(codec.outgoing(JoinReq(flood.info)), flood.info.address, seed.info.address)
        await until_counted(seed, Loss.RATE_LIMITED, least=49)
        alice = await farm.start(seed, bind=Address("127.0.0.3", 0))
        await until(alice, lambda: sees(alice, seed))
        assert len(seed._transport._limits.newcomers.sources) == 2


@in_simulated_time
async def test_broadcast_flood_does_not_delay_requests() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agent = await farm.start(broadcast=BROADCAST)
        other = await farm.start(agent)
        await until_all_see_all([agent, other])
        own_metadata = bytes([Code.BROADCAST]) + b"rubbish"
        for _ in range(BROADCASTS_LIMIT + BATCH):
            network.deliver(own_metadata, Address("127.0.0.9", 1), BROADCAST)
            network.deliver(b"rubbish", Address("127.0.0.9", 1), agent.info.address)
        agent.set_metadata(b"sent during the flood")
        await until(other, lambda: other.members()[0].info.metadata == b"sent during the flood")
        await until_counted(agent, SealFault.SHORT, least=2 * BROADCASTS_LIMIT)


@in_simulated_time
async def test_broadcasts_over_limit_are_dropped_with_a_count() -> None:
    network, settings = MemoryNetwork(), GroupSettings(bind=Address("127.0.0.1", 0), keyring=RING)
    socket, broadcast_socket = network.bind(settings.bind, 1400), network.bind_broadcast(BROADCAST, 1400)
    discovery, signer = Discovery(BROADCAST, broadcast_socket), Signer(Ed25519PrivateKey.generate())
    transport = DatagramTransport(settings, signer, RING, socket, discovery, lambda _: None)
    for _ in range(BROADCASTS_LIMIT + 10):
        network.deliver(bytes([Code.BROADCAST]), Address("127.0.0.9", 1), BROADCAST)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.watch_broadcasts, broadcast_socket)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(transport.take()) == BROADCASTS_LIMIT
    assert transport.counters.describe(0, 0).dropped == {Loss.OVERLOADED: 10}


@in_simulated_time
async def test_slow_consumer_receives_number_of_lost_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "EVENTS_LIMIT", 8)
    async with running_farm(MemoryNetwork()) as farm:
        seed, alice = await farm.start_many(2)
        await until_all_see_all([seed, alice])
        events = seed.events(after=seed.cursor)
        for number in range(20):
            alice.set_metadata(b"%d" % number)
            await trio.sleep(0.5)
        first = await anext(events)
        assert first.lost == 12
        assert len([first, *[await anext(events) for _ in range(7)]]) == 8
        assert not events.has_more
        assert seed.describe().wire.events_lost == 12
        assert seed.members()[0].info.metadata == b"19"


@in_simulated_time
async def test_restart_keeps_node_id_with_higher_generation(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        first = await farm.start(seed, state_directory=tmp_path)
        await until(seed, lambda: sees(seed, first))
        await farm.crash(first)
        await until(seed, lambda: sees(seed, first, status=Status.DEAD))
        second = await farm.start(seed, state_directory=tmp_path)
        assert (second.node_id, second.generation) == (first.node_id, first.generation + 1)
        await until(seed, lambda: sees(seed, second))
        assert seed.members()[0].incarnation.generation == second.generation


@in_simulated_time
async def test_higher_generation_from_peers_is_stored(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        node_id = load_identity(tmp_path).node_id
        keep_generation(tmp_path, node_id, 40)
        first = await farm.start(seed, state_directory=tmp_path)
        await until(seed, lambda: sees(seed, first))
        await farm.crash(first)
        await until(seed, lambda: sees(seed, first, status=Status.DEAD))
        keep_generation(tmp_path, node_id, 3)
        restored = await farm.start(seed, state_directory=tmp_path)
        assert restored.generation == 4
        await until(seed, lambda: sees(seed, restored))
        assert restored.generation == 42
        assert (tmp_path / GENERATION_FILE).read_text().split()[0] == "42"


@in_simulated_time
async def test_node_with_copied_state_directory_stops(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    load_identity(original)
    shutil.copytree(original, copy)
    async with running_farm(MemoryNetwork()) as farm:
        seed = await farm.start()
        first = await farm.start(seed, state_directory=original)
        await until(seed, lambda: sees(seed, first))
        second = await farm.start(seed, first, state_directory=copy)
        assert second.node_id == first.node_id
        await trio.sleep(30)
        alarms = [event for agent in (first, second) for event in new_events(agent) if isinstance(event, Alarm)]
        assert [alarm.kind for alarm in alarms] == [AlarmKind.IDENTITY_CONFLICT]
        assert [first.describe().core.halted, second.describe().core.halted].count(True) == 1


@asynccontextmanager
async def restored_from_backup(directory: Path, network: MemoryNetwork) -> AsyncIterator[tuple[Farm, Group, Group]]:
    """Run a farm, a seed, and a node with generation 4 whose peers have a record of generation 41; yield them."""
    async with running_farm(network) as farm:
        seed = await farm.start()
        identity = load_identity(directory)
        keep_generation(directory, identity.node_id, 40)
        first = await farm.start(seed, state_directory=directory)
        await until(seed, lambda: sees(seed, first))
        await farm.crash(first)
        await until(seed, lambda: sees(seed, first, status=Status.DEAD))
        keep_generation(directory, identity.node_id, 3)
        restored = await farm.start(seed, state_directory=directory)
        assert restored.generation == 4
        yield farm, seed, restored


@in_simulated_time
async def test_full_disk_pauses_node_with_outdated_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = MemoryNetwork()
    original_write = write_durably
    attempts: list[float] = []

    def fail_for_full_disk(path: Path, content: bytes) -> None:
        attempts.append(trio.current_time())
        raise OSError(28, "No space left on device", str(path), len(content))

    async with restored_from_backup(tmp_path, network) as (_, seed, restored):
        monkeypatch.setattr("gossip.node.state_files.write_durably", fail_for_full_disk)
        alarm = await next_alarm(restored)
        assert (alarm.kind, alarm.over) == (AlarmKind.GENERATION_NOT_STORED, False)
        assert all(text in alarm.text for text in ("No space left", str(tmp_path), "Free space", "generation 42"))
        sent_before = len(network.sent)
        await trio.sleep(300)
        sent = [each for each in network.sent[sent_before:] if each[0] == restored.info.address]
        assert sent == [], "it sends nothing, even with the old generation"
        assert restored.generation == 4
        assert (tmp_path / GENERATION_FILE).read_text().split()[0] == "4"
        assert not sees(seed, restored)
        assert 5 < len(attempts) < 20, "retried with pauses"
        assert not [each for each in new_events(restored) if isinstance(each, Alarm)], "reported once"

        monkeypatch.setattr("gossip.node.state_files.write_durably", original_write)
        passed = await next_alarm(restored)
        assert (passed.kind, passed.over) == (AlarmKind.GENERATION_NOT_STORED, True)
        await until(seed, lambda: sees(seed, restored))
        assert restored.generation >= 42
        assert int((tmp_path / GENERATION_FILE).read_text().split()[0]) == restored.generation


@in_simulated_time
async def test_node_with_unstored_generation_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = MemoryNetwork()

    def fail_for_full_disk(path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    # The patch ends before the farm, so that a failure of this test does not leave a node that waits for the disk.
    async with restored_from_backup(tmp_path, network) as (farm, _, restored):
        with monkeypatch.context() as full_disk, trio.fail_after(200):
            full_disk.setattr("gossip.node.state_files.write_durably", fail_for_full_disk)
            await next_alarm(restored)
            restored.set_maintenance(on=True)
            await trio.sleep(100)
            assert restored.generation == 4, "a request does not end the wait for the disk"
            sent_before = len(network.sent)
            await farm.crash(restored)
            assert [each for each in network.sent[sent_before:] if each[0] == restored.info.address] == []


async def next_alarm(agent: Group) -> Alarm:
    with trio.fail_after(120):
        while True:
            event = await next_event(agent)
            if isinstance(event, Alarm):
                return event


@in_simulated_time
async def test_state_directory_is_used_by_one_agent(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        await farm.start(state_directory=tmp_path)
        with pytest.raises(StateError, match="in use"):
            async with gossip.open_group("127.0.0.1", key=RING, state_directory=tmp_path, network=MemoryNetwork()):
                pass


@in_simulated_time
async def test_port_in_use_is_named() -> None:
    network = MemoryNetwork()
    address = Address("127.0.0.1", 7946)
    async with gossip.open_group(address, key=RING, network=network):
        with pytest.raises(ConfigError, match=r"bind = 127\.0\.0\.1:7946 cannot be opened"):
            async with gossip.open_group(address, key=RING, network=network):
                pass


@in_simulated_time
async def test_events_end_with_agent() -> None:
    async with running_farm(MemoryNetwork()) as farm:
        agent = await farm.start()
        await farm.crash(agent)
        assert [event async for event in agent.events(after=agent.cursor)] == []
