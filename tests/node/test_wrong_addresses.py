"""Correction of each wrong address that a program accepts (all are listed in docs/reference/addresses.md).

`test_kraft_wrong_address` covers KRaft, and `tests/end_to_end/test_failover` covers the nodes of a farm.
"""

from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.farm_quorum import quorum_of
from consensus.core.model import Configuration, Server
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft.counters import PeerEvent
from consensus.protocols.zmq_raft.peer.open_peer import core_options
from consensus.protocols.zmq_raft.peer.peer_link import PeerTimes
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.protocols.zmq_raft.sockets import zmq_context
from consensus.protocols.zmq_raft.wire.messages import Peer
from gossip import Address
from gossip.core.effects import Effect
from gossip.core.events import SeedsGiven
from gossip.core.messages import DropReason, JoinReq
from gossip.node.discovery import REFRESH_S, NamesToFollow
from gossip.node.requests import Requests
from tests.node.farm_stage import OTHER
from tests.node.gossip_network import MemoryNetwork
from tests.node.kafka_farm import SETTINGS, farm_of, named_stage
from tests.node.test_zmq_peer_transport import Script, heartbeat
from tests.node.test_zmq_raft_open_peer import IDENT, Cluster, cluster_of, free_peers
from tests.simulation.gossip_network import address_of
from tests.spec.gossip_story import Story, sent

pytestmark = pytest.mark.usefixtures("small_segments")

MOVES = 100
"""More than the limit on seeds."""


def moved(numbers: range) -> SeedsGiven:
    """Return the seeds of a name that has had these addresses in order."""
    *former, newest = map(address_of, numbers)
    return SeedsGiven((newest,), tuple(former))


def joined(effects: list[Effect]) -> set[Address]:
    return {target for target, _ in sent(effects, JoinReq)}


def test_seed_name_moved_often_keeps_newest_address() -> None:
    story = Story()
    for number in range(1_000, 1_000 + MOVES):
        story.step(SeedsGiven((address_of(number + 1),), (address_of(number),)))
        story.pass_time(story.options.join_backoff_max_ms)
    assert address_of(1_000 + MOVES) in joined(story.pass_time(2 * story.options.join_backoff_max_ms))
    assert story.swim.describe().seed_count < story.options.seeds_limit
    assert not story.dropped(DropReason.SEEDS_FULL)


def test_old_address_of_seed_name_is_dropped_eventually() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.step(moved(range(1, 3)))
    for _ in range(20):
        story.pass_time(story.options.join_backoff_max_ms)
    assert story.swim.describe().seed_count == 1


async def test_changed_seed_name_withdraws_old_address(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """When a name gets another address, its old address is withdrawn unless another seed has it too."""
    network, names, given = MemoryNetwork(), NamesToFollow(), list[tuple[tuple[str, ...], tuple[str, ...]]]()

    def give(addresses: tuple[Address, ...], former: tuple[Address, ...]) -> None:
        given.append((tuple(each.host for each in addresses), tuple(each.host for each in former)))

    network.names["seed.test"] = ["10.0.0.1", "10.0.0.2"]
    names.add(("seed.test:7000", "10.0.0.2:7000"))
    nursery.start_soon(names.follow, network, give)
    await trio.sleep(1)
    network.names["seed.test"] = ["10.0.0.3"]
    await trio.sleep(REFRESH_S)
    assert given == [(("10.0.0.1", "10.0.0.2"), ()), (("10.0.0.3",), ("10.0.0.1",))]


def test_withdrawn_seed_is_not_delivered() -> None:
    requests = Requests(lambda: None)
    requests.add_seeds([address_of(1)])
    requests.add_seeds([address_of(2)], [address_of(1)])
    assert requests.take()[1] == [SeedsGiven((address_of(2),), (address_of(1),))]


async def log_names_members(cluster: Cluster, client: zmq_raft.ZmqRaftClient) -> None:
    """Record the members in the log by adding and removing a guest."""
    guest = Peer("guest", free_peers(7)[6].url)
    await client.update(b"before")
    await cluster.start(guest)
    for members in ((*cluster.founders, guest), cluster.founders):
        await client.change_config(members)
        await cluster.wait_settled(len(members))
    await cluster.stop(guest)


async def restarted(cluster: Cluster, peers: tuple[Peer, ...], *, with_log: tuple[Peer, ...]) -> None:
    """Stop all peers, and start the peers in `with_log` with these settings."""
    for peer in cluster.founders:
        await cluster.stop(peer)
    cluster.founders = peers
    await cluster.start(*with_log)


async def test_zmq_peers_that_all_moved_elect_by_settings(tmp_path: Path) -> None:
    """Given a log with outdated addresses only, then the peers elect, and clients can change the members."""
    async with cluster_of(tmp_path, 3) as cluster:
        async with zmq_raft.connect([peer.url for peer in cluster.founders], IDENT) as client:
            await log_names_members(cluster, client)
        now = tuple(Peer(peer.peer_id, peer.url) for peer in free_peers(6)[3:])
        now = tuple(Peer(old.peer_id, new.url) for old, new in zip(cluster.founders, now, strict=True))
        await restarted(cluster, now, with_log=now)
        async with zmq_raft.connect([peer.url for peer in now], IDENT) as client:
            await client.update(b"after")
            await cluster.wait_settled(3)
            successor = Peer("4", free_peers(8)[7].url)
            await cluster.start(successor)
            members = (await client.config()).peers
            await client.change_config([*members, successor])
            await cluster.wait_settled(4)
            stale = next(each for each in members if each.peer_id != cluster.leader().peer_id)
            await client.change_config([each for each in (*members, successor) if each != stale])
            assert successor in (await client.config()).peers


async def test_zmq_peer_with_wrong_setting_is_reached_as_logged(tmp_path: Path) -> None:
    """Given peer 2 with a wrong setting for peer 3, and a stopped peer 1, then peers 2 and 3 elect and commit."""
    async with cluster_of(tmp_path, 3) as cluster:
        right, wrong = cluster.founders, free_peers(4)[3]
        async with zmq_raft.connect([peer.url for peer in right], IDENT) as client:
            await log_names_members(cluster, client)
            stale = tuple(Peer(peer.peer_id, wrong.url) if peer == right[2] else peer for peer in right)
            await restarted(cluster, stale, with_log=(right[1],))
            cluster.founders = right
            await cluster.start(right[2])
            await client.update(b"after")


@pytest.mark.parametrize(("setting", "tried"), [("tcp://127.0.0.1:4", 1), ("tcp://127.0.0.1:3", 0)])
async def test_zmq_peer_is_not_tried_at_url_of_other_peer(
    setting: str, tried: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The server at that URL could vote twice: for itself, and for the peer with the wrong setting."""
    times = PeerTimes.for_options(core_options((5_000, 10_000)))
    with zmq_context() as context:
        transport = PeerTransport(
            context,
            "1",
            IDENT,
            "tcp://127.0.0.1:*",
            lambda *_: None,
            snapshot=lambda: None,
            times=times,
            elsewhere={"2": setting},
        )
        transport.members([Server(name, f"tcp://127.0.0.1:{name}") for name in "123"])
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run, Script())
            transport.send("2", heartbeat(1))
            # A reply may take half of the shortest election timeout.
            await trio.sleep(2.5)
            transport.send("2", heartbeat(2))
            assert PeerEvent.MEMBER_AT_OTHER_ADDRESS not in transport.counters
            await trio.sleep(7.5)
            transport.send("2", heartbeat(3))
            assert transport.counters.get(PeerEvent.MEMBER_AT_OTHER_ADDRESS, 0) == tried
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("machine_clock")
async def test_kafka_quorum_shows_present_address_of_server() -> None:
    """The log keeps the address from the time when the server joined."""
    stage = named_stage()
    stage.server.configuration = Configuration(tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in (1, 2)))
    other = stage.applied_state.state.admitted[OTHER].node_id
    farm = replace(farm_of(stage), endpoint_of=lambda node_id: "tcp://127.0.0.1:99" if node_id == other else None)
    voters = {each.node_id: each.listeners[0] for each in quorum_of(CurrentFarm(farm), SETTINGS).voters}
    assert voters == {1: ("RAFT", "127.0.0.1", 1), 2: ("RAFT", "127.0.0.1", 99)}
