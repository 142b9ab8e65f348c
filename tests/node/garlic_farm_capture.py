"""`python -m tests.node.garlic_farm_capture` prints every byte of one server addition, with the meaning of each field.

Two real servers run on loopback: Charlie (1) leads a cluster of one server, and Alice (4) requests to be added. The
capture records the bytes inside TLS. `docs/reference/garlic-farm.md` shows the output, and a test compares the two.

A `~` marks lines that differ between runs (nonces, ports, compressed bytes); the comparison skips them. The capture
omits heartbeats. It also omits the connection that Alice opens to Charlie once her log contains Charlie.
"""

import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trio

from consensus.protocols.garlic_farm.node.connectors import Reached, TlsConnector
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.wire.messages import EXCHANGES, MessageType
from consensus.protocols.garlic_farm.wire.values import ClusterServer, ValueType
from tests.node.loopback_group import LoopbackGroup, until
from tests.node.membership_client import request_addition

ALICE, CHARLIE = 4, 1
HEAD_END = b"\r\n\r\n"
VARIABLE = (
    "Host:",
    "Authorization:",
    "WWW-Authenticate:",
    "Sec-WebSocket-Key:",
    "Sec-WebSocket-Accept:",
    "X-Garlic-Proof:",
)
REQUEST_BYTES, REPLY_BYTES = 45, 26
SHOWN_HEX = 48

Field = tuple[str, str]
"""Bytes in hexadecimal, and their meaning."""


@dataclass
class Transcript:
    """Messages on all connections in order: a title, and the lines below it."""

    lines: list[tuple[str, list[str]]] = field(default_factory=list)

    def mentions(self, message: str) -> bool:
        """Return True if a message of this kind was sent."""
        return any(message in title for title, _ in self.lines)

    def text(self) -> str:
        return "\n".join(line for title, below in self.lines for line in (title, *(f"    {each}" for each in below)))


class RecordedStream(trio.abc.Stream):
    """A stream that records its bytes in both directions."""

    def __init__(self, stream: trio.abc.Stream, transcript: Transcript, caller: str, called: str) -> None:
        self._stream = stream
        self._transcript = transcript
        self._bytes = {True: bytearray(), False: bytearray()}
        self._upgraded = {True: False, False: False}
        self._ways = {True: f"{caller} → {called}", False: f"{called} → {caller}"}

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._record(bytes(data), calling=True)
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = bytes(await self._stream.receive_some(max_bytes))
        self._record(data, calling=False)
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _record(self, data: bytes, *, calling: bool) -> None:
        pending = self._bytes[calling]
        pending += data
        if not self._upgraded[calling]:
            head, end, rest = bytes(pending).partition(HEAD_END)
            if not end:
                return
            lines = head.decode().split("\r\n")
            marked = [f"~ {each}" if each.startswith(VARIABLE) else each for each in lines]
            self._transcript.lines.append((self._ways[calling], marked))
            self._upgraded[calling] = any("upgrade: websocket" in each.lower() for each in lines)
            pending[:] = rest if self._upgraded[calling] else b""
        if self._upgraded[calling]:
            for message in _messages(pending):
                self._message(message, self._ways[calling])

    def _message(self, message: bytes, way: str) -> None:
        kind = MessageType(message[0])
        answers_heartbeat = kind is MessageType.APPEND_ENTRIES_RESPONSE and way.startswith("Alice")
        if kind is MessageType.APPEND_ENTRIES_REQUEST or answers_heartbeat:
            return
        name = "".join(word.capitalize() for word in kind.name.split("_"))
        below = [f"{hexadecimal:<{SHOWN_HEX}}  {meaning}" for hexadecimal, meaning in fields(message)]
        self._transcript.lines.append((f"{way}   {name}, {len(message)} bytes", below))


def _messages(pending: bytearray) -> Iterator[bytes]:
    while pending:
        size = REPLY_BYTES
        if pending[0] in EXCHANGES:
            size = REQUEST_BYTES + int.from_bytes(pending[REQUEST_BYTES - 4 : REQUEST_BYTES])
        if len(pending) < size:
            return
        yield bytes(pending[:size])
        del pending[:size]


# -- every field of a message ------------------------------------------------------------------------------------------


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of one message, decoded only from the document's layouts."""
    request = message[0] in EXCHANGES
    at = 0
    names = ["term", "last log term", "last log index", "commit index"] if request else ["term", "next index"]
    layout = [(1, "message type"), (4, "source"), (4, "destination"), *((8, name) for name in names)]
    layout.append((4, "size of the log entries") if request else (1, "accepted"))
    for size, name in layout:
        number = int.from_bytes(message[at : at + size], signed=name in {"source", "destination"})
        yield message[at : at + size].hex(), f"{name}: {number}"
        at += size
    while at < len(message):
        size = int.from_bytes(message[at + 9 : at + 13])
        yield from _entry(message[at : at + 13 + size])
        at += 13 + size


def _entry(entry: bytes) -> Iterator[Field]:
    kind, value = ValueType(entry[8]), entry[13:]
    yield entry[:8].hex(), f"entry: term {int.from_bytes(entry[:8])}"
    yield entry[8:9].hex(), f"value type {entry[8]}: {kind.name.lower().replace('_', ' ')}"
    yield entry[9:13].hex(), f"size of the value: {len(value)}"
    yield from _value(kind, value)


def _value(kind: ValueType, value: bytes) -> Iterator[Field]:
    match kind:
        case ValueType.CLUSTER_SERVER:
            yield from _servers(value)
        case ValueType.CONFIGURATION:
            yield value[:8].hex(), f"log index: {int.from_bytes(value[:8])}"
            yield value[8:16].hex(), f"log index of the configuration before: {int.from_bytes(value[8:16])}"
            yield from _servers(value[16:])
        case ValueType.LOG_PACK:
            yield f"~ {value.hex()[: SHOWN_HEX - 6]} …", "gzip; inflated:"
            yield from _pack(zlib.decompress(value, zlib.MAX_WBITS | 16))
        case _:
            yield value.hex(), value.decode()


def _pack(plain: bytes) -> Iterator[Field]:
    index_size, log_size = int.from_bytes(plain[:4]), int.from_bytes(plain[4:8])
    yield plain[:4].hex(), f"size of the index: {index_size}, so {index_size // 8} records"
    yield plain[4:8].hex(), f"size of the log: {log_size}"
    offsets = [int.from_bytes(plain[at : at + 8]) for at in range(8, 8 + index_size, 8)]
    for offset in offsets:
        yield offset.to_bytes(8).hex(), f"offset {offset}"
    log = plain[8 + index_size :]
    for start, end in zip(offsets, [*offsets[1:], offsets[0] + log_size], strict=True):
        record = log[start - offsets[0] : end - offsets[0]]
        yield record[:8].hex(), f"record: term {int.from_bytes(record[:8])}"
        yield record[8:9].hex(), f"value type {record[8]}: {ValueType(record[8]).name.lower()}"
        yield from _value(ValueType(record[8]), record[9:])


def _servers(servers: bytes) -> Iterator[Field]:
    while servers:
        yield servers[:4].hex(), f"server {int.from_bytes(servers[:4])}"
        size = int.from_bytes(servers[4:8])
        yield servers[4:8].hex(), f"length of its endpoint: {size}"
        yield servers[8 : 8 + size].hex(), servers[8 : 8 + size].decode()
        servers = servers[8 + size :]


# -- the scenario ------------------------------------------------------------------------------------------------------


async def capture(directory: Path) -> Transcript:
    """Record the messages from Alice's request to be added until Alice is a member."""
    transcript = Transcript()

    class RecordingConnector(TlsConnector):
        async def connect(self, address: PeerAddress) -> Reached:
            reached = await super().connect(address)
            called = "Charlie" if address == servers.resolve(CHARLIE) else "Alice"
            if called == "Charlie" and transcript.mentions("AddServerResponse"):
                return reached
            caller = "Alice" if called == "Charlie" else "Charlie"
            return Reached(RecordedStream(reached.stream, transcript, caller, called), reached.channel)

    async with trio.open_nursery() as nursery:
        servers = LoopbackGroup(directory, nursery, founders=1, transport=RecordingConnector())
        charlie = (await servers.start(CHARLIE)).server
        await servers.leader()
        await until(lambda: charlie.commit_index == 1)
        for number in (1, 2):
            await charlie.propose((b'{"id":1,"mark":%d}' % number,))
        await servers.start(ALICE)
        client = servers.client(server_id=ALICE)
        await nursery.start(client.run)
        await request_addition(client, ClusterServer(ALICE, servers.endpoint(ALICE)))
        await until(lambda: ALICE in charlie.describe().raft.configuration.voter_ids)
        await until(lambda: charlie.describe().raft.change is None)
        nursery.cancel_scope.cancel()
    last = next(number for number, (title, _) in enumerate(transcript.lines) if "SyncLogResponse" in title)
    del transcript.lines[last + 1 :]
    return transcript


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        transcript = trio.run(capture, Path(directory))
    print(transcript.text())  # noqa: T201 - a command for people


if __name__ == "__main__":
    main()
