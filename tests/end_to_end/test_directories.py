"""Directories of real processes: with the link, users get the signed structure from any node through a SAM bridge."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from bridge.api.json import decode
from bridge.api.outputs import LinkOutput
from bridge.connect import connect
from bridge.sam.connection import SamBridge
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import open_session
from bridge.wire.i2p.farm_link import FarmLink, parse_link
from bridge.wire.i2p.structure_exchange import (
    ReplyStatus,
    StructureReply,
    decode_reply,
    encode_request,
    reply_bytes_missing,
)
from bridge.wire.i2p.structures import hash_of_address
from tests.end_to_end.farm import START_BOUND_S, Farm, call, local_farm

REQUEST_BOUND_S = 60.0


@contextmanager
def sam_bridge() -> Iterator[SamBridge]:
    """Serve a loopback SAM bridge in a separate thread."""
    found: list[SamBridge] = []
    ready = threading.Event()
    token: list[trio.lowlevel.TrioToken] = []
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                found.append(await nursery.start(serve_loopback_bridge, LoopbackNetwork()))
                token.append(trio.lowlevel.current_trio_token())
                ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(START_BOUND_S)
        yield found[0]
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join(START_BOUND_S)


def requested(bridge: SamBridge, directory: bytes, address_hash: bytes) -> StructureReply:
    async def request() -> StructureReply:
        with trio.fail_after(REQUEST_BOUND_S):
            async with open_session(bridge) as session, await session.connect(directory, REQUEST_BOUND_S) as stream:
                await stream.send_all(encode_request(address_hash))
                received = b""
                while missing := reply_bytes_missing(received):
                    part = await stream.receive_some(missing)
                    assert part, "the directory closed the stream early"
                    received += part
                return decode_reply(received)

    return trio.run(request)


async def ready_client(bridge: SamBridge, link: FarmLink, cache: Path) -> tuple[bytes, ...]:
    """Connect a client until it has a structure; return the directories that it knows."""
    with trio.fail_after(START_BOUND_S):
        async with connect(str(link), bridge=bridge, cache_dir=cache) as client:
            while not client.status().ready:  # noqa: ASYNC110 - the status has no event
                await trio.sleep(0.02)
            return tuple(hash_of_address(each.address) for each in client.status().directories)


def link_at(farm: Farm, number: int, *, directories: int) -> FarmLink:
    """Return the link that a node prints when it has that many directories."""

    def link() -> FarmLink | None:
        done = call("link", "--json", "--node", farm.nodes[number].directory)
        found = parse_link(decode(done.stdout.encode(), LinkOutput).link) if done.returncode == 0 else None
        return found if found is not None and len(found.directories) == directories else None

    return farm.wait_until(link, START_BOUND_S, f"a link with {directories} directories")


def test_link_leads_to_structure_at_each_node(tmp_path: Path) -> None:
    with sam_bridge() as bridge, local_farm(tmp_path / "farm", 3) as farm:
        for node in farm.nodes:
            text = node.configuration.read_text()
            node.configuration.write_text(text.replace('kind = "file"', f'kind = "file"\nsam = "{bridge}"'))
            assert str(bridge) in node.configuration.read_text()
        farm.start_all()
        farm.wait_settled()
        link = link_at(farm, 0, directories=3)
        assert set(link_at(farm, 1, directories=3).directories) == set(link.directories)
        status = call("status", "--node", farm.nodes[0].directory).stdout
        assert "returns structures to clients" in status

        def same_everywhere() -> bool:
            replies = {requested(bridge, each, link.address_hash).structure for each in link.directories}
            return replies == {path.read_bytes() for node in farm.nodes for path in node.structures()}

        farm.wait_until(same_everywhere, START_BOUND_S, "each directory returns the structure at the router")
        other = requested(bridge, link.directories[0], bytes(32))
        assert other == StructureReply(ReplyStatus.UNKNOWN_ADDRESS)

        assert trio.run(ready_client, bridge, link, tmp_path / "cache") == link.directories

        killed = farm.nodes[2]
        shown = killed.view().node.directory
        assert shown is not None
        own = hash_of_address(shown.address or "")
        assert killed.metric('garlicfarm_directory_requests_total{result="structure"}') > 0
        killed.kill()
        for directory in set(link.directories) - {own}:
            assert requested(bridge, directory, link.address_hash).status is ReplyStatus.STRUCTURE
        killed.start()
        farm.wait_settled()
        assert set(link_at(farm, 2, directories=3).directories) == set(link.directories), "the restart keeps the key"
