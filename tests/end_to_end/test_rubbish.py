"""Damaged data on every port of a running node: the farm is unchanged, the data is counted, and memory stays bounded.

Part of the data is random. The rest is made of real datagrams and requests: sealed with the farm's key, or sent after a
complete upgrade. A node that accepted a damaged one would act on it.
"""

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from random import Random

import pytest
import trio

from bridge.api.view import FarmView
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.node.security.control_socket import socket_address
from bridge.node.security.key_files import load_farm_key
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.messages import AppendEntriesRequest, ClientRequest, RequestVoteRequest
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo
from gossip.core.messages import Broadcast, JoinReq, Leave, Message, PingRequest
from gossip.node.state_files import NodeIdentity
from gossip.wire.identity import Signer
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec
from tests.effort import IS_SOAK
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, seeded
from tests.end_to_end.settings import LOOPBACK, addresses

DATAGRAMS = 3_000
HALF_OPEN = 10_000 if IS_SOAK else 2_000
HALF_OPEN_AT_ONCE = 400
SLOW = 30
GROWTH_BOUND_BYTES = 32 * 1024 * 1024
TIMEOUT_S = 60.0


def port(address: str) -> int:
    """Return the port of `host:port`."""
    return int(address.rpartition(":")[2])


def damaged(random: Random, data: bytes) -> bytes:
    """Return data that is cut off, changed in some bits, extended or doubled."""
    match random.randrange(4):
        case 0:
            return data[: random.randrange(len(data))]
        case 1:
            changed = bytearray(data)
            for _ in range(random.randint(1, 8)):
                changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(changed)
        case 2:
            return data + random.randbytes(random.randint(1, 64))
        case _:
            return data + data


@contextmanager
def unharmed(farm: Farm, node: Node) -> Iterator[dict[str, int]]:
    """Check after the block that the farm is unchanged, and that the node's memory is bounded."""
    farm.wait_settled()
    farm.wait_known()
    # A new farm raises its level after it has settled.
    farm.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the feature level is raised")
    before, memory_bytes, counters = node.view(), node.resident_bytes(), node.counters()
    yield counters
    farm.wait_settled()
    after = node.view()
    grown_bytes = node.resident_bytes() - memory_bytes
    print(f"{node.name} grew by {grown_bytes / 2**20:.1f} MiB")  # noqa: T201 - shown with -s
    assert grown_bytes < GROWTH_BOUND_BYTES
    assert unchanged_part(after) == unchanged_part(before)
    assert node.submit({"mark": "after the rubbish"}).index is not None


def unchanged_part(view: FarmView) -> tuple[object, ...]:
    """Return the part of the view that damaged data must not change."""
    members = {(member.node_id, member.generation) for member in view.members}
    return (view.farm, view.node.generation, view.node.pid, members, view.raft.voters)


def real_datagrams(farm: Farm) -> list[bytes]:
    """Return valid messages of a member. The farm would accept them unchanged, from the stated address."""
    ring = load_farm_key(farm.directory / "farm.key").key_ring
    identity = NodeIdentity.throwaway()
    codec = SecureCodec(Signer(identity.key), ring, os.urandom(SECRETS_BYTES))
    incarnation = Incarnation(1, 0)
    info = NodeInfo(identity.node_id, Address(LOOPBACK, 9), incarnation, 8, b"no metadata")
    target = NodeId(bytes.fromhex(farm.nodes[0].view().node.node_id))
    messages: list[Message] = [
        JoinReq(info),
        JoinReq(info, token=b"x" * 40),
        Broadcast(info),
        Leave(info),
        PingRequest(identity.node_id, incarnation, target, incarnation, 7, 2),
    ]
    return [codec.outgoing(message, target) for message in messages]


def test_damaged_datagrams_on_gossip_port_are_dropped(farm: Farm) -> None:
    random = seeded("gossip rubbish")
    node = farm.nodes[0]
    gossip, _ = addresses(node)
    real = real_datagrams(farm)
    with unharmed(farm, node) as before, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(DATAGRAMS):
            datagram = (
                random.randbytes(random.choice((0, 1, 2, 27, 40, 200, 1400, 9000)))
                if number % 2
                else damaged(random, random.choice(real))
            )
            if number % 4 == 3:
                datagram = real[0][: random.randint(1, 60)] + datagram
            sender.sendto(datagram[:9000], (LOOPBACK, port(gossip)))

        def counted() -> bool:
            now = node.counters()
            dropped = sum(now[name] - before.get(name, 0) for name in now if name.startswith("gossip_dropped"))
            return dropped > DATAGRAMS / 4

        farm.wait_until(counted, START_BOUND_S, "the damaged datagrams are counted as dropped")
    assert node.metric('garlicfarm_gossip_dropped_total{reason="bad_seal"}') > 0


@pytest.mark.search
def test_half_open_connections_are_bounded(farm: Farm) -> None:
    node = farm.nodes[1]
    _, consensus = addresses(node)
    with unharmed(farm, node) as before, ExitStack() as opened:

        def accepted() -> int:
            name = "garlic_farm_connections_accepted"
            return node.counters()[name] - before.get(name, 0)

        waiting: list[socket.socket] = []
        for number in range(1, HALF_OPEN + 1):
            connection = opened.enter_context(socket.create_connection((LOOPBACK, port(consensus)), TIMEOUT_S))
            waiting.append(connection)
            with suppress(OSError):
                if number % 3 == 1:
                    connection.sendall(b"\x16\x03\x01")
                elif number % 3 == 2:
                    connection.sendall(b"GET / HTTP/1.1\r\n")
            if number % HALF_OPEN_AT_ONCE == 0:
                # Wait until the node has accepted them: otherwise they would only fill its backlog.
                farm.wait_until(partial(_at_least, accepted, number), START_BOUND_S, f"{number} are accepted")
                for connection in waiting:
                    connection.close()
                waiting.clear()
        counters = node.counters()
    assert counters["garlic_farm_busy"] > 0
    assert counters["garlic_farm_refused_upgrade"] > 0


def _at_least(count: Callable[[], int], minimum: int) -> bool:
    return count() >= minimum


def test_damaged_upgrade_requests_are_counted(farm: Farm) -> None:
    random = seeded("upgrade rubbish")
    node = farm.nodes[2]
    _, consensus = addresses(node)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = b"GET /GarlicFarm/farm/1/ HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    with unharmed(farm, node) as before, ExitStack() as slow:
        for _ in range(SLOW):
            lingering = slow.enter_context(socket.create_connection((LOOPBACK, port(consensus)), TIMEOUT_S))
            lingering.sendall(b"\x16")
        for number in range(150):
            rubbish = random.randbytes(random.randint(1, 20_000)) if number % 2 else damaged(random, request)
            with (
                suppress(OSError),
                socket.create_connection((LOOPBACK, port(consensus)), TIMEOUT_S) as connection,
                context.wrap_socket(connection) as secured,
            ):
                secured.sendall(rubbish)
                if number % 3:
                    secured.settimeout(0.05)
                    secured.recv(4096)

        def counted() -> bool:
            now = node.counters()
            names = ("malformed", "refused_upgrade", "wrong_path", "too_large", "silent")
            return sum(now.get(f"garlic_farm_{n}", 0) - before.get(f"garlic_farm_{n}", 0) for n in names) >= SLOW

        farm.wait_until(counted, START_BOUND_S, "the refused handshakes are counted")


def test_damaged_requests_after_upgrade_are_counted(farm: Farm) -> None:
    """Requests are cut, changed, of an impossible size, or random bytes."""
    random = seeded("request rubbish")
    node = farm.wait_settled()
    with unharmed(farm, node) as before:
        trio.run(_send_damaged_requests, farm, node, random)

        def counted() -> bool:
            now = node.counters()
            names = [f"garlic_farm_{fault.value.replace('-', '_')}" for fault in Fault]
            return sum(now.get(name, 0) - before.get(name, 0) for name in names) > 10

        farm.wait_until(counted, START_BOUND_S, "the refused requests are counted")


async def _send_damaged_requests(farm: Farm, node: Node, random: Random) -> None:
    key = load_farm_key(farm.directory / "farm.key")
    view = await trio.to_thread.run_sync(node.view)
    _, consensus = addresses(node)
    certificate = load_or_create_certificate(node.directory)
    shown = key.digest_credentials[0]
    credentials = Credentials(shown.username, shown.password)
    identity = Identity(view.farm.cluster_id, None)
    dialer = Dialer(Initiator(key.cluster, lambda: (credentials,), lambda: identity, os.urandom, None))
    address = PeerAddress(LOOPBACK, port(consensus), certificate.fingerprint)
    requests = [
        encode_request(
            kind(
                source=9,
                destination=view.node.raft_id or 1,
                term=view.raft.term,
                last_log_term=1,
                last_log_index=1,
                commit_index=1,
            )
        )
        for kind in (AppendEntriesRequest, RequestVoteRequest, ClientRequest)
    ]
    impossible = requests[0][:-4] + b"\xff\xff\xff\xff"
    for number in range(60):
        dialed = await dialer.dial(address)
        rubbish = (damaged(random, random.choice(requests)), random.randbytes(5_000), impossible)[number % 3]
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(0.05):
            await dialed.stream.send_all(rubbish)
            await dialed.stream.receive_some(4096)
        await trio.aclose_forcefully(dialed.stream)


def test_damaged_requests_on_control_socket_are_counted(farm: Farm) -> None:
    random = seeded("control rubbish")
    node = farm.nodes[0]
    request = b"GET /v1/log?from=1&limit=5 HTTP/1.1\r\nHost: node\r\n\r\n"
    with unharmed(farm, node) as before, ExitStack() as slow, socket_address(node.socket) as address:
        for _ in range(SLOW):
            lingering = slow.enter_context(socket.socket(socket.AF_UNIX))
            lingering.connect(address)
            lingering.sendall(b"GET /v1/view HTTP/1.1\r\nHos")
        for number in range(300):
            rubbish = random.randbytes(random.randint(1, 30_000)) if number % 2 else damaged(random, request)
            with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(0.05)
                connection.connect(address)
                connection.sendall(rubbish)
                connection.recv(4096)

        def counted() -> bool:
            now = node.counters()
            broken = now["control_connections_broken"] - before["control_connections_broken"]
            return broken > SLOW

        farm.wait_until(counted, START_BOUND_S, "broken requests are counted")
