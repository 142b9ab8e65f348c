"""Gossip agents on the machine's real loopback sockets."""

import errno
import random
import socket
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import trio
import trio.testing

from gossip.core.keyring import Keyring
from gossip.core.member import Address, Status
from gossip.node.limits import Loss
from gossip.node.udp import UdpNetwork
from gossip.wire.seal import SealFault
from tests.node.gossip_farm import running_farm, sees, statuses, until, until_all_see_all, until_counted
from tests.processes import free_ports


@pytest.fixture
def broadcast() -> Address:
    return Address("127.255.255.255", *free_ports(1, socket.SOCK_DGRAM))


async def test_agents_through_one_seed_see_each_other() -> None:
    async with running_farm() as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        for agent in agents:
            wire = agent.describe().wire
            assert wire.received > 0 < wire.sent
            assert wire.received_bytes > wire.received * 53
            assert wire.dropped == {}


async def test_canceled_agent_is_declared_dead() -> None:
    async with running_farm() as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        await farm.crash(agents[2])
        for agent in agents[:2]:
            await until(agent, lambda agent=agent: sees(agent, agents[2], status=Status.DEAD))  # type: ignore[misc] # mypy: defaults of lambdas
        assert sees(agents[0], agents[1])


async def test_broadcast_connects_agents_of_one_farm_only(broadcast: Address) -> None:
    async with running_farm() as farm:
        own_agents = [await farm.start(broadcast=broadcast) for _ in range(3)]
        another = Keyring.of(b"the key of another farm nearby..")
        other_agents = [await farm.start(broadcast=broadcast, keyring=another) for _ in range(2)]
        await until_all_see_all(own_agents)
        await until_all_see_all(other_agents)
        for agent in (*own_agents, *other_agents):
            await until_counted(agent, SealFault.OTHER_FARM)
        assert [len(statuses(agent)) for agent in (*own_agents, *other_agents)] == [2, 2, 2, 1, 1]


async def test_random_bytes_on_both_sockets_are_ignored(broadcast: Address) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    async with running_farm() as farm:
        agents = [await farm.start(broadcast=broadcast) for _ in range(2)]
        await until_all_see_all(agents)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown:
            unknown.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            for _ in range(300):
                noise = dice.randbytes(dice.randrange(1500))
                unknown.sendto(noise, (agents[0].info.address.host, agents[0].info.address.port))
                unknown.sendto(noise, (broadcast.host, broadcast.port))
                await trio.lowlevel.checkpoint()
        for reason in (SealFault.OTHER_FARM, Loss.MISPLACED, Loss.OVERSIZE):
            await until_counted(agents[0], reason)
        assert sees(agents[0], agents[1]), f"random seed {seed}"
        assert sees(agents[1], agents[0]), f"random seed {seed}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
async def test_agents_support_ipv6() -> None:
    try:
        UdpNetwork().bind(Address("::1", 0), 1400).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    async with running_farm() as farm:
        agents = await farm.start_many(2, bind=Address("::1", 0))
        await until_all_see_all(agents)


async def test_oversized_datagram_arrives_one_byte_over_limit() -> None:
    receiver, sender = (UdpNetwork().bind(Address("127.0.0.1", 0), 100) for _ in range(2))
    assert sender.send(b"x" * 500, receiver.address)
    with trio.fail_after(60):
        await receiver.readable()
    assert receiver.receive_waiting() == (b"x" * 101, sender.address)
    assert receiver.receive_waiting() is None
    sender.close()
    sender.close()
    receiver.close()


class WithoutMulticastChoice(socket.socket):
    """A socket of an emulator that does not implement the choice of an interface for multicast."""

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        """Refuse only the option IP_MULTICAST_IF."""
        if option == socket.IP_MULTICAST_IF:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        super().setsockopt(level, option, *value)


@pytest.mark.parametrize("interface", [None, "lo"])
async def test_emulator_without_multicast_choice_serves_default(
    interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.node.udp.socket.socket", WithoutMulticastChoice)
    expected: AbstractContextManager[object] = (
        nullcontext() if interface is None else pytest.raises(OSError, match="Protocol not available")
    )
    with expected:
        UdpNetwork(interface).bind(Address("127.0.0.1", 0), 100).close()


FLOOD = 20_000
"""More small datagrams than the kernel keeps for one socket."""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not report dropped datagrams")
async def test_datagrams_dropped_by_kernel_are_counted() -> None:
    async with running_farm() as farm:
        agent = await farm.start()
        before = agent.describe().wire.received
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown:
            for _ in range(FLOOD):  # without a pause for the agent to read
                unknown.sendto(b"noise", (agent.info.address.host, agent.info.address.port))
        overloaded = agent.describe().wire.dropped[Loss.OVERLOADED]
        assert 0 < overloaded < FLOOD
        await until_counted(agent, SealFault.SHORT, least=FLOOD - overloaded)
        wire = agent.describe().wire
        assert wire.received - before + wire.dropped[Loss.OVERLOADED] == FLOOD


@pytest.mark.parametrize(("name", "value"), [("sys.platform", "another"), ("_SO_MEMINFO", 9_999)])
async def test_kernel_without_drop_counter_is_supported(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, sender = (UdpNetwork().bind(Address("127.0.0.1", 0), 100) for _ in range(2))
    for _ in range(FLOOD):
        sender.send(b"x", receiver.address)
    with monkeypatch.context() as patched:
        patched.setattr(f"gossip.node.udp.{name}", value)
        assert receiver.overflowed() == 0
    known = receiver.overflowed()
    sender.close()
    receiver.close()
    assert receiver.overflowed() == known, "a closed socket returns its last value"


async def test_closed_socket_ends_reader_without_sending() -> None:
    receiver = UdpNetwork().bind(Address("127.0.0.1", 0), 100)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await receiver.readable()

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        receiver.close()
    assert receiver.receive_waiting() is None
    with pytest.raises(trio.ClosedResourceError):
        await receiver.readable()
    assert not receiver.send(b"late", Address("127.0.0.1", 9))


async def test_name_resolves_to_numeric_addresses() -> None:
    found = await UdpNetwork().resolve("localhost", 7946)
    assert Address("127.0.0.1", 7946) in found or Address("::1", 7946) in found
