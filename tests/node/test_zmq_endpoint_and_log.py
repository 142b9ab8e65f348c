"""The endpoint over the plain replicated log: clients read the committed updates."""

from collections.abc import Sequence
from pathlib import Path

import trio
from msgspec.structs import replace
from trio.testing import MockClock

from consensus.protocols.zmq_raft.endpoint.client_endpoint import ClientEndpoint
from consensus.protocols.zmq_raft.wire.codec import decode_reply, encode_request
from consensus.protocols.zmq_raft.wire.messages import (
    ClientReply,
    ClientRequest,
    EntriesBatch,
    EntriesRequest,
    SnapshotPiece,
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateRequest,
)
from tests.node.test_zmq_raft_compaction import HOUR_S, compaction
from tests.node.test_zmq_raft_replicated_log import group_of
from tests.node.zmq_raft_group import IDENT, Node, request_id

READER = b"\x00reader"
LARGE = 30_000


class Client:
    """A client of one peer's endpoint. It lets simulated time pass until the replies arrive."""

    def __init__(self, node: Node) -> None:
        self._received: list[list[bytes]] = []
        self.endpoint = ClientEndpoint(node.log, IDENT, self._receive)

    def _receive(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        assert identity == READER
        self._received.append(list(frames))
        return True

    async def ask(self, request: ClientRequest) -> list[ClientReply]:
        self._received.clear()
        self.endpoint.receive(READER, encode_request(replace(request, ident=IDENT)))
        await trio.sleep(1)
        return [decode_reply(type(request), frames) for frames in self._received]

    async def update(self, counter: int, data: bytes, age_s: int = 0) -> list[ClientReply]:
        return await self.ask(UpdateRequest(request_id(counter, age_s), b"", data))

    async def read(self, previous: int = 0) -> tuple[bytes, list[bytes]]:
        """Return the snapshot and the updates after it; each message is confirmed."""
        state, updates, request = (
            b"",
            list[bytes](),
            EntriesRequest(request_id=b"\x01", ident=b"", previous_index=previous),
        )
        pending = await self.ask(request)
        while True:
            reply = pending.pop(0)
            if isinstance(reply, SnapshotPiece):
                state += reply.data
                is_complete = reply.offset + len(reply.data) == reply.total_bytes
                request = replace(request, previous_index=reply.last_index) if is_complete else request
            else:
                assert isinstance(reply, EntriesBatch)
                updates += [entry.data[12:] for entry in reply.entries]
                if reply.is_last:
                    return state, updates
                request = replace(request, previous_index=reply.last_index)
            pending += await self.ask(request)


async def test_committed_updates_read_as_entries_then_as_snapshot(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with group_of(tmp_path, 1) as (group, leader):
        client = Client(leader)
        await group.nursery.start(client.endpoint.run)
        values = [b"%d" % counter * LARGE for counter in range(8)]
        for counter, data in enumerate(values):
            accepted, final = await client.update(counter, data)
            assert isinstance(accepted, UpdateAccepted)
            assert isinstance(final, UpdateCommitted)
            assert await client.update(counter, data) == [final]
        assert await client.read() == (b"", values)
        group.clock_ahead_s = 8 * HOUR_S + 60
        assert await client.update(99, b"late") == [UpdateExpired(request_id(99))]
        assert len(await client.update(8, b"fresh", age_s=-group.clock_ahead_s)) == 2
        compacted = await compaction(leader, tmp_path).compact()
        assert await client.read() == (b"".join(value + b"\n" for value in values), [b"fresh"])
        assert await client.read(compacted.index) == (b"", [b"fresh"])
        await trio.sleep(10)
        assert client.endpoint.under_way == 0


async def test_leader_without_majority_redirects_clients(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with group_of(tmp_path, 2) as (group, leader):
        client = Client(leader)
        await group.stop(*[node for node in group.nodes.values() if node is not leader])
        request = UpdateRequest(request_id(1), IDENT, b"x")
        replies = await client.ask(request)
        assert replies[0] == UpdateAccepted(request.request_id)
        await trio.sleep(10)
        assert decode_reply(UpdateRequest, client._received[-1]) == UpdateRedirect(request.request_id, None)
        assert client.endpoint.under_way == 0
