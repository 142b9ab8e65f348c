"""Farms that grow and move: discovery by broadcast, a fourth node, another address, NATs, Kafka, other processes."""

from pathlib import Path

import msgspec
import trio

from bridge.api.control_routes import NODES
from bridge.node.membership.admissions import FILE_NAME, AdmissionFile
from tests.simulation.farm.fault_walk import FORMED_S, until_healthy
from tests.simulation.farm.host import Host, PlainDisk, current_host
from tests.simulation.farm.settings import Profile
from tests.simulation.farm.world import World, simulate

SEED = 4


def kafka(host: Host) -> str:
    return f'[kafka]\nlisten = "{host.addresses[0]}:9092"\nallow_network = true\n'


def test_nodes_with_nats_create_a_farm_and_publish() -> None:
    async def main() -> None:
        async with World.open(SEED, profile=Profile(with_nat=frozenset({2, 3}))) as world:
            await world.start_all()
            await trio.sleep(FORMED_S)
            await until_healthy(world)
            for name, host in world.hosts.items():
                async with world.control(name) as client:
                    view = await client.view()
                assert {each.address for each in view.members} == {f"10.0.0.{number}:7668" for number in (1, 2, 3)}
                assert [len(each.entries) for each in view.publishing] == [3], f"seed {SEED}: {name}"
                assert host.public is None or host.public not in host.addresses
            # When the node that others reach directly has ended, then two nodes with NATs keep a quorum
            await world.kill("node-1")
            await trio.sleep(20)
            async with world.control("node-2") as client:
                assert (await client.view()).raft.leader_name in {"node-2", "node-3"}, f"seed {SEED}"

    simulate(SEED, main)


def test_broadcast_farm_admits_a_node_and_follows_an_address() -> None:
    async def main() -> None:
        async with World.open(SEED, profile=Profile(seeds=0, fixed_address=False, more=kafka)) as world:
            await world.start_all()
            await trio.sleep(FORMED_S)
            async with world.control("node-1") as client:
                cluster_id = (await client.view()).farm.cluster_id

            def with_wrong_raft_id(directory: Path) -> PlainDisk:
                directory.mkdir(mode=0o700)
                stored = AdmissionFile(cluster_id or "", {}, announced=77)
                (directory / FILE_NAME).write_bytes(msgspec.json.encode(stored))
                return PlainDisk(directory)

            # When a fourth node joins, with a stored Raft id that an evicted member announced
            await world.join(4, with_wrong_raft_id)
            # Then it is a server of the farm, under the id from the log
            await until_healthy(world, 60)
            async with world.control("node-4") as client:
                view = await client.view()
            assert view.node.raft_id == 4, f"seed {SEED}"
            assert len(view.members) == 4, f"seed {SEED}"
            assert view.node.kafka_address is not None
            # When a machine gets another address, then its node uses it
            world.move("node-2", "10.0.0.77")
            await trio.sleep(10)
            await until_healthy(world, 60)
            async with world.control("node-1") as client:
                members = (await client.view()).members
            assert any((each.address or "").startswith("10.0.0.77:") for each in members), f"seed {SEED}"
            # When two nodes of four start again, without a leader and without the entry that admits node 4.
            # Then they still see each other, and all four are members.
            for name in world.hosts:
                await world.kill(name)
            for name in ("node-1", "node-4"):
                await world.start(name)
            await trio.sleep(6)
            async with world.control("node-1") as client:
                view, nodes = await client.view(), (await client.call(NODES)).nodes
            assert view.raft.applied_index == 0, f"seed {SEED}"
            down = view.verdict.text.partition("; ")[2]
            assert down == "server 2 not seen by gossip, server 3 not seen by gossip", f"seed {SEED}"
            assert [(each.raft_id, each.standing) for each in nodes] == [(each, "member") for each in range(1, 5)]

    simulate(SEED, main)


def test_service_continues_after_kill_and_starts_with_machine() -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async def main() -> None:
        async with World.open(SEED, hosts=1) as world:
            await world.start("node-1")
            await world.serve("node-1", 7654, echo)
            await trio.sleep(1)
            await world.kill("node-1")
            current_host.set(world.hosts["node-1"])
            stream = await trio.open_tcp_stream("127.0.0.1", 7654)
            await stream.send_all(b"1")
            assert await stream.receive_some() == b"1"
            # A power cut ends the service until the machine starts again.
            await world.power_cut("node-1")
            await trio.sleep(2)
            world.hosts["node-1"].boot()
            await trio.sleep(2)
            stream = await trio.open_tcp_stream("127.0.0.1", 7654)
            await stream.send_all(b"2")
            assert await stream.receive_some() == b"2"
            current_host.set(None)

    simulate(SEED, main)
