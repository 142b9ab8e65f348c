"""Real i2pd routers give the replies of the loopback SAM bridge, and the SAM client opens streams through them."""

import pytest
import trio

from bridge.sam.connection import SamBridge
from bridge.sam.session import open_session
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.key_file import sam_private_key
from tests.interop.i2p.network import Network
from tests.node import sam_script

pytestmark = pytest.mark.interop
TUNNELS = {"inbound.length": "1", "outbound.length": "1"}
SCRIPT_S = 300.0
CONNECT_S = 60.0


def bridges(network: Network) -> tuple[SamBridge, SamBridge]:
    """Return the SAM bridges of two routers without floodfill."""
    first, second = ((each.sam or "").rpartition(":") for each in network.i2pd[-2:])
    return SamBridge(first[0], int(first[2])), SamBridge(second[0], int(second[2]))


async def test_i2pd_gives_replies_of_loopback_bridge(network: Network) -> None:
    options = " ".join(f"{key}={value}" for key, value in TUNNELS.items())
    with trio.fail_after(SCRIPT_S):
        assert await sam_script.play(*bridges(network), options) == list(sam_script.REPLIES)


async def test_client_reaches_destination_with_our_key(network: Network) -> None:
    first, second = bridges(network)
    key = new_master_key()
    with trio.fail_after(SCRIPT_S):
        async with (
            open_session(first, private_key=sam_private_key(key), options=TUNNELS) as server,
            open_session(second, options=TUNNELS) as client,
            trio.open_nursery() as nursery,
        ):
            assert server.hash == key.destination.hash

            async def echo() -> None:
                peer, stream = await server.accept()
                async with stream:
                    assert peer == client.hash
                    await stream.send_all(await stream.receive_some(100))
                    await stream.receive_some(1)

            nursery.start_soon(echo)
            async with await client.connect(server.hash, CONNECT_S) as stream:
                await stream.send_all(b"hello")
                assert await stream.receive_some(100) == b"hello"
