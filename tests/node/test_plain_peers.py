"""Servers without TLS and handshake: called only at listed addresses, and accepted only from their own address."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from consensus.net.receive_budget import Account, ReceiveBudget
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import ReplyReader, encode_request
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from tests.effort import each_case
from tests.node.garlic_farm_stage import ScriptedHandler
from tests.node.plain_peers import PlainDialer, PlainListener, PlainPeers

OURS, THEIRS, OTHERS = 1, 4, 5
LISTED = PlainPeers({THEIRS: ("127.0.0.1", 9004), OTHERS: ("127.0.0.2", 9005)})


@dataclass
class Scene:
    """One listener, and its incidents."""

    port: int
    handler: ScriptedHandler
    incidents: list[Incident] = field(default_factory=list)

    async def vote_reply(
        self, source: int, *, from_host: str = "127.0.0.1", destination: int = OURS
    ) -> wire.Reply | None:
        """Return the reply to a vote request of server `source`, or None if the connection was closed."""
        request = wire.RequestVoteRequest(
            source=source, destination=destination, term=3, last_log_term=2, last_log_index=9
        )
        return await self.reply_to(encode_request(request), from_host)

    async def reply_to(self, data: bytes, from_host: str = "127.0.0.1") -> wire.Reply | None:
        reader = ReplyReader()
        stream = await trio.open_tcp_stream("127.0.0.1", self.port, local_address=from_host)
        async with stream:
            try:
                await stream.send_all(data)
                while received := bytes(await stream.receive_some(4096)):
                    reader.feed(received)
                    reply = reader.next()
                    if reply is not None:
                        return reply
            except trio.BrokenResourceError:
                pass
        return None


@asynccontextmanager
async def listening(peers: PlainPeers = LISTED) -> AsyncIterator[Scene]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            handler, incidents = ScriptedHandler(OURS), list[Incident]()
            listener = PlainListener(peers, handler, lambda: Identity("cluster-a", OURS), Metrics(incidents.append))
            port = await nursery.start(listener.listen, "127.0.0.1", 0)
            yield Scene(port, handler, incidents)
            nursery.cancel_scope.cancel()


async def test_listed_server_gets_reply_without_tls() -> None:
    async with listening() as scene:
        assert await scene.vote_reply(THEIRS) == wire.RequestVoteResponse(
            source=OURS, destination=THEIRS, term=3, next_index=0, accepted=True
        )
        assert not scene.incidents


async def test_unlisted_address_is_closed_before_decoding() -> None:
    async with listening() as scene:
        assert await scene.vote_reply(THEIRS, from_host="127.0.0.3") is None
        assert not scene.handler.requests
        assert [each.fault for each in scene.incidents] == [Fault.PLAIN_REFUSED]
        assert "is not in the list" in scene.incidents[0].text


@pytest.mark.parametrize("claimed", [OTHERS, 77], ids=["server of another address", "unknown server"])
async def test_listed_address_sends_only_for_its_own_servers(claimed: int) -> None:
    async with listening() as scene:
        assert await scene.vote_reply(claimed) is None
        assert not scene.handler.requests
        assert f"speaks as server {claimed}" in scene.incidents[0].text
        # while requests from the address listed for it are accepted
        assert (await scene.vote_reply(OTHERS, from_host="127.0.0.2")) is not None


async def test_connection_keeps_its_first_source() -> None:
    both = PlainPeers({THEIRS: ("127.0.0.1", 9004), OTHERS: ("127.0.0.1", 9005)})
    async with listening(both) as scene:
        first = encode_request(wire.AppendEntriesRequest(source=THEIRS, destination=9, term=3))
        # given a first message to another server, without a reply: the second one, with another source, is refused too
        assert (
            await scene.reply_to(
                first
                + encode_request(
                    wire.RequestVoteRequest(source=OTHERS, destination=OURS, term=3, last_log_term=2, last_log_index=9)
                )
            )
            is None
        )
        assert await scene.reply_to(encode_request(wire.ClientRequest())) == wire.AppendEntriesResponse(
            source=OURS, destination=OURS, term=1, next_index=1, accepted=True
        )
        assert not scene.handler.requests


async def test_connections_of_listener_share_one_byte_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, budgets = ReceiveBudget.open, list[ReceiveBudget]()

    def record(budget: ReceiveBudget, owner: str, *, is_server: bool, close: Callable[[], None]) -> Account:
        budgets.append(budget)
        return opens(budget, owner, is_server=is_server, close=close)

    monkeypatch.setattr(ReceiveBudget, "open", record)
    async with listening() as scene:
        await scene.vote_reply(THEIRS)
        await scene.vote_reply(OTHERS, from_host="127.0.0.2")
        assert len(budgets) == 2
        assert budgets[0] is budgets[1]


async def test_invalid_bytes_close_connection_with_incident() -> None:
    async with listening() as scene:
        assert await scene.reply_to(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:7669\r\nConnection: close\r\n\r\n") is None
        assert scene.incidents
        assert not scene.handler.requests


@each_case("host", ["example.org", "localhost", "::", "ff02::1", "224.0.0.1", ""])
def test_host_name_or_multicast_address_is_not_listed(host: str) -> None:
    with pytest.raises(ValueError, match=r"IP address|many addresses"):
        PlainPeers({THEIRS: (host, 9004)})


class RecordingDialer:
    """A dialer that records the requested addresses, and refuses them."""

    def __init__(self) -> None:
        self.addresses: list[PeerAddress] = []

    async def dial(self, address: PeerAddress, _expected: int | None = None) -> None:
        self.addresses.append(address)
        raise GarlicFarmError(Fault.UNREACHABLE, "the ordinary way")


async def test_dial_is_plain_only_for_listed_server_and_address() -> None:
    ordinary = RecordingDialer()
    async with listening() as scene:
        peers = PlainPeers({THEIRS: ("127.0.0.1", scene.port)})
        dialer = PlainDialer(peers, ordinary)  # type: ignore[arg-type]  # it never returns
        listed = PeerAddress("127.0.0.1", scene.port, None)
        dialed = await dialer.dial(listed, THEIRS)
        async with dialed.stream:
            assert dialed.extensions == frozenset()
        elsewhere = PeerAddress("127.0.0.1", scene.port, bytes(32))
        for address, server in ((elsewhere, THEIRS), (listed, OTHERS), (listed, None)):
            with pytest.raises(GarlicFarmError, match="the ordinary way"):
                await dialer.dial(address, server)
        assert ordinary.addresses == [elsewhere, listed, listed]
