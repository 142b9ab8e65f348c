"""Fuzz targets for KRaft: the codec in both directions, record batches and entries, SCRAM.

    frames that Kafka sent, generated messages, batches ─▶ up to six mutations ─▶ decode ─▶ encode ─▶ decode

The checks of each input: only `KafkaWireError` is raised. A decoded message is encoded to bytes with the same meaning.
A decoder uses at most a small multiple of the input's size in memory. This takes long to measure, so only about one
input in fifty is measured. Messages of the quorum pass through the mapping to the core, as in a server. A
login succeeds only with the proof of the password.

The limits are small, so that inputs exceed them. Bombs, whose few bytes inflate to many megabytes or announce far more,
are also checked against the production limits.
"""

import json
import struct
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

import cramjam
from crc32c import crc32c
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.entry_data import configuration_entry, no_op_entry
from consensus.core.model import Configuration, Entry, EntryKind, LogId, NoOp, ReplicaKey, Server
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.codec import (
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from consensus.protocols.kafka.wire.schemas import Direction
from consensus.protocols.kafka.wire.scram import (
    Mechanism,
    ScramClient,
    ScramError,
    ScramServer,
    ScramUsers,
    scram_credential,
)
from consensus.protocols.kraft.wire.entries import (
    batches_of,
    control_data,
    control_value,
    entries_of,
    entry_head,
    leader_head,
)
from consensus.protocols.kraft.wire.mapping import RefusedRequest, named_endpoints, reply_from_wire, request_from_wire
from tests.node.kraft_replicas import KnownReplicas
from tests.simulation.fuzzing import FuzzError, Subject, mutated, within_memory
from tests.wire.kraft_messages import ALL, any_message
from tests.wire.record_batches import compress, decode_batch, encode_batch

LIMITS: Final = Limits(
    max_request_bytes=64 * 1024,
    max_response_bytes=64 * 1024,
    max_request_elements=200,
    max_elements=400,
    max_batch_bytes=32 * 1024,
    max_batch_records=300,
    max_record_bytes=8 * 1024,
    max_headers=20,
    max_batch_headers=200,
)
REFUSED: Final = "refused"
OTHER_VERSION: Final = "version that is not served"
VECTORS: Final = Path(__file__).parents[1] / "vectors" / "kraft.json"
_POOL: Final = 3
"""Generated messages of each API, version and direction."""
_MEMORY_FACTOR: Final = 40
"""Memory per input byte: an element of an array is a Struct with up to twenty fields."""
NAMES: Final = KnownReplicas(ReplicaKey(1), {1: ("127.0.0.1", 1), 2: ("127.0.0.1", 2), 3: ("127.0.0.1", 3)})
CORE_REQUESTS: Final[tuple[core.Request, ...]] = (
    core.RequestVote(term=3, candidate=ReplicaKey(1), last=LogId(5, 2), correlation=77),
    core.BeginQuorumEpoch(term=3, leader=ReplicaKey(1), correlation=77),
    core.EndQuorumEpoch(term=3, leader=ReplicaKey(1), preferred=(ReplicaKey(2),), correlation=77),
    core.Fetch(
        term=3, replica=ReplicaKey(1), position=LogId(5, 3), commit=4, max_wait_ms=500, max_bytes=1_000, correlation=77
    ),
    core.FetchSnapshot(term=3, replica=ReplicaKey(1), snapshot=LogId(5, 3), offset=0, max_bytes=1_000, correlation=77),
)


LENGTHS: Final = (
    *(struct.pack(">h", number) for number in (-(2**15), -2, -1, 0, 1, 2**15 - 1)),
    *(struct.pack(">i", number) for number in (-(2**31), -2, -1, 0, 1, 255, 65_536, 2**30, 2**31 - 1)),
    *(struct.pack(">q", number) for number in (-(2**63), -1, 2**31, 2**63 - 1)),
    *(b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80\x01", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"),
    *(b"\x80" * 5, b"\xff" * 10, b"\xff" * 9 + b"\x01", b"\xc3\x28", b"\xed\xa0\x80"),
)
"""Replacements for numbers, lengths and counts, and bytes that are not UTF-8."""


def recorded() -> list[tuple[ApiKey, int, bytes, bytes]]:
    """Return API, version, request and response of all recorded exchanges between Kafka's programs."""
    stories = json.loads(VECTORS.read_text(encoding="utf-8"))["stories"]
    return [
        (ApiKey(each["api"]), each["version"], bytes.fromhex(each["request"]), bytes.fromhex(each["response"]))
        for story in stories.values()
        for each in story["exchanges"]
    ]


def _read_entries(data: bytes, _position: LogId) -> tuple[Entry, ...]:
    """Return no entries: they have their own target."""
    del data
    return ()


class RequestTarget(Subject[bytes]):
    """Input of a listener."""

    name = "requests"
    expected = frozenset({REFUSED, OTHER_VERSION, "accepted by the core", *(ApiKey(key).name for key in VERSIONS)})

    def __init__(self) -> None:
        source = Random(1)
        self.known = [request for _, _, request, _ in recorded()]
        self.known += [
            encode_request(
                key, version, source.randrange(2**31), "client", any_message(key, version, direction, source)
            )
            for key, version, direction in ALL
            if direction is Direction.REQUEST
            for _ in range(_POOL)
        ]

    def make(self, random: Random) -> bytes:
        """Return mutated requests, some with another API or version in the head."""
        data = mutated(random.choice(self.known), random, self.known, LENGTHS)
        if random.random() < 0.1:
            head = struct.pack(">hh", random.choice([*VERSIONS, -1, 999]), random.choice((-1, 0, 1, 5, 12, 17, 99)))
            return head + data[4:]
        return data

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that a decoded request has one meaning, and that the core can process requests of the quorum."""
        try:
            request = within_memory(lambda: decode_request(data, limits=LIMITS), len(data), random, _MEMORY_FACTOR)
        except UnsupportedVersionError:
            return [OTHER_VERSION]
        except KafkaWireError:
            return [REFUSED]
        again = encode_request(
            request.api_key, request.api_version, request.correlation_id, request.client_id, request.message
        )
        if decode_request(again) != request:
            raise FuzzError("encoded and decoded again, it means something else")
        if request.api_key in _OF_QUORUMS:
            taken = request_from_wire(request.message, 7, NAMES)
            if not isinstance(taken, RefusedRequest):
                named_endpoints(request.message)
                return [request.api_key.name, "accepted by the core"]
        return [request.api_key.name]


_OF_QUORUMS: Final = frozenset(
    {ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT}
)


class ResponseTarget(Subject[bytes]):
    """Input of a connection to another server; the first two bytes are the API and the version."""

    name = "responses"
    expected = frozenset({REFUSED, "accepted by the core", *(ApiKey(key).name for key in VERSIONS)})

    def __init__(self) -> None:
        source = Random(2)
        self._known = [bytes((key, version)) + response for key, version, _, response in recorded()]
        self._known += [
            bytes((key, version)) + encode_response(key, version, 5, any_message(key, version, direction, source))
            for key, version, direction in ALL
            if direction is Direction.RESPONSE
            for _ in range(_POOL)
        ]

    def make(self, random: Random) -> bytes:
        """Return mutated responses, some to another request."""
        data = random.choice(self._known)
        head = random.choice(self._known)[:2] if random.random() < 0.1 else data[:2]
        return head + mutated(data[2:], random, self._known, LENGTHS)

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that a decoded response has one meaning; a quorum's response becomes a core reply or is refused."""
        key, version, frame = ApiKey(data[0]), data[1], data[2:]
        try:
            correlation_id, response = within_memory(
                lambda: decode_response(key, version, frame, LIMITS), len(frame), random, _MEMORY_FACTOR
            )
        except KafkaWireError:
            return [REFUSED]
        again = encode_response(key, version, correlation_id, response)
        if decode_response(key, version, again) != (correlation_id, response):
            raise FuzzError("encoded and decoded again, it means something else")
        outcomes = [key.name]
        if key in _OF_QUORUMS:
            named_endpoints(response)
            for request in CORE_REQUESTS:
                try:
                    reply_from_wire(response, request, NAMES, _read_entries)
                except KafkaWireError:
                    continue
                outcomes.append("accepted by the core")
        return outcomes


_HEAD_BYTES: Final = 61
_CRC_AT: Final = 17
_BOMB_BYTES: Final = 64 * 1024 * 1024
_MEGABYTES: Final = 20
"""Number of valid records of one megabyte: more than a batch may hold."""


@cache
def _bombs() -> list[tuple[Compression, bytes]]:
    """Return data that inflates, or claims to inflate, far beyond the limit of a batch."""
    zeros, raw = bytes(_BOMB_BYTES), bytes(1024 * 1024)
    snappy = bytes(cramjam.snappy.compress_raw(raw))
    block = struct.pack(">I", len(snappy)) + snappy
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    zstd_head = struct.pack("<IB", 0xFD2FB528, 0xE0) + struct.pack("<Q", 2**60)
    wide_window = struct.pack("<IBB", 0xFD2FB528, 0, (31 - 10) << 3)
    return [
        (Compression.GZIP, compress(zeros, Compression.GZIP)),
        (Compression.GZIP, compress(b"", Compression.GZIP) * 2_000),
        (Compression.GZIP, zlib.compress(zeros)),
        (Compression.LZ4, compress(zeros, Compression.LZ4)),
        (Compression.LZ4, compress(b"", Compression.LZ4) * 2_000),
        (Compression.LZ4, b"\x04\x22\x4d\x18\x6c\x40" + struct.pack("<Q", 2**60) + b"\x00" + b"\xff" * 20),
        (Compression.ZSTD, compress(zeros, Compression.ZSTD)),
        (Compression.ZSTD, compress(b"", Compression.ZSTD) * 2_000),
        (Compression.ZSTD, zstd_head + b"\x4b\x00\x00a" * 9),
        (Compression.ZSTD, wide_window + b"\x4b\x00\x00a" * 9),
        (Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + snappy[3:]),
        (Compression.SNAPPY, b"\xff\xff\xff\x07\x00a"),
        (Compression.SNAPPY, xerial + block * 64),
        (Compression.SNAPPY, xerial + (struct.pack(">I", 1) + b"\x00") * 50_000),
        (Compression.SNAPPY, xerial + struct.pack(">I", 2**32 - 1) + snappy),
        (Compression.GZIP, compress(b"\x0e\x00\x00\x00\x01\x00\x00" * 2**20, Compression.GZIP)),
        (Compression.ZSTD, compress(b"\xd4\x0f\x00\x00\x00\x01\x01\xd0\x0f" + b"\x00\x01" * 1_000, Compression.ZSTD)),
    ]


@cache
def _sealed_bombs() -> list[bytes]:
    """Return batches of bombs, and of many large records."""
    mega = (Record(0, None, bytes(2**20)),) * _MEGABYTES
    large = [encode_batch(RecordBatch(0, 0, mega, compression=kind)) for kind in Compression if kind]
    return [*(_sealed(kind, body, 1 + at) for at, (kind, body) in enumerate(_bombs())), *large]


class BatchTarget(Subject[bytes]):
    """Record batches from a leader, a producer or a disk."""

    name = "batches"
    memory_growth_limit_mib = 64  # a bomb is inflated up to its limit
    expected = frozenset(
        {REFUSED, "bomb refused", "control", "headers", "partial or several", *(each.name for each in Compression)}
    )

    def __init__(self) -> None:
        source = Random(3)
        self._known = [encode_batch(_any_batch(source)) for _ in range(300)]
        self._bombs = _sealed_bombs()

    def make(self, random: Random) -> bytes:
        """Return mutated batches, mostly with corrected checksum and length, and some bombs."""
        if random.random() < 0.002:
            return b"!" + random.choice(self._bombs)
        data = random.choice(self._known)
        if random.random() < 0.2:
            head = (
                data[:_HEAD_BYTES]
                if random.random() < 0.5
                else mutated(data[:_HEAD_BYTES], random, self._known, LENGTHS)
            )
            body = mutated(data[_HEAD_BYTES:], random, self._known, LENGTHS)
            data = head + body
        elif random.random() < 0.5:
            data = data[:_HEAD_BYTES] + _raw_records(random)
        if random.random() < 0.8 and len(data) > _HEAD_BYTES:
            data = _repaired(data)
        if random.random() < 0.2:
            data = mutated(data, random, self._known, LENGTHS)
        if random.random() < 0.1:
            data += random.choice(self._known)[: random.choice((None, 5, 12, 61, 90))]
        return b" " + data

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that a decoded batch has one meaning, and that bombs are refused, also with the production limits."""
        is_bomb, data = data[:1] == b"!", data[1:]
        if is_bomb:
            for limits in (LIMITS, DEFAULT_LIMITS):
                try:
                    read_batches(data, limits)
                except KafkaWireError:
                    continue
                raise FuzzError("a bomb is accepted")
            return ["bomb refused"]
        limits = LIMITS if random.random() < 0.95 else DEFAULT_LIMITS
        try:
            batches = within_memory(
                lambda: read_batches(data, limits), len(data) + limits.max_batch_bytes, random, _MEMORY_FACTOR
            )
        except KafkaWireError:
            return [REFUSED]
        outcomes = [] if len(batches) == 1 else ["partial or several"]
        for batch in batches:
            if decode_batch(encode_batch(batch)) != batch:
                raise FuzzError("encoded and decoded again, it means something else")
            outcomes.append(batch.compression.name)
            outcomes += ["control"] * batch.is_control
            outcomes += ["headers"] * any(record.headers for record in batch.records)
        return outcomes


def _any_batch(source: Random) -> RecordBatch:
    records = tuple(
        Record(
            source.choice((0, 1_000, 2**40)),
            source.choice((None, b"", b"key")),
            source.choice((None, b"", b"value" * source.choice((1, 5, 40)))),
            tuple(("header", source.choice((None, b"x"))) for _ in range(source.choice((0, 0, 1, 3)))),
        )
        for _ in range(source.choice((1, 1, 2, 5, 60)))
    )
    return RecordBatch(
        source.choice((0, 7, 2**40)),
        source.choice((-1, 0, 9)),
        records,
        is_control=source.random() < 0.2,
        compression=source.choice([*Compression]),
        log_append_time=False,
        producer_id=source.choice((-1, 5)),
        base_sequence=source.choice((-1, 0, 2**31 - 1)),
    )


def _raw_records(random: Random) -> bytes:
    """Return uncompressed records with extreme numbers."""
    parts = [random.choice((*LENGTHS, b"\x00", b"\x01", b"\x02", b"k", b"\x0e")) for _ in range(random.randrange(40))]
    return b"".join(parts)


def _repaired(data: bytes) -> bytes:
    """Return the batch with a corrected length and checksum; the compression and the count remain."""
    checked = data[_CRC_AT + 4 :]
    return (
        data[:8] + struct.pack(">i", len(data) - 12) + data[12:_CRC_AT] + struct.pack(">I", crc32c(checked)) + checked
    )


def _sealed(kind: Compression, body: bytes, count: int) -> bytes:
    checked = struct.pack(">hiqqqhii", kind, count - 1, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked)) + checked


class EntriesTarget(Subject[bytes]):
    """Record batches sent by a leader, as entries of the core.

    The first 16 bytes of an input are the index and the term of the position before the entries.
    """

    name = "entries"
    expected = frozenset({REFUSED, "nothing", *(kind.name for kind in EntryKind)})

    def __init__(self) -> None:
        source = Random(4)
        voters = configuration_entry(3, _CONFIGURATION, leader_head(1_000))
        voted = NoOp(ReplicaKey(1), (ReplicaKey(1), ReplicaKey(2)), (ReplicaKey(1),))
        leader = no_op_entry(3, voted, leader_head(1_000))
        plain = [replace(_any_batch(source), base_offset=5, leader_epoch=3, is_control=False) for _ in range(200)]
        control = [batches_of(6, (entry,)) for entry in (leader, voters, Entry(3, EntryKind.CONTROL, _OTHER))]
        self._known = [encode_batch(batch) for batch in plain] + control * 30

    def make(self, random: Random) -> bytes:
        """Return mutated batches, mostly with a corrected checksum, after a position that mostly matches."""
        data = random.choice(self._known)
        if random.random() < 0.6:
            data = _repaired(data[:_HEAD_BYTES] + mutated(data[_HEAD_BYTES:], random, self._known, LENGTHS))
        if random.random() < 0.2:
            data = _repaired(mutated(data[:_HEAD_BYTES], random, self._known, LENGTHS) + data[_HEAD_BYTES:])
        if random.random() < 0.1:
            data += random.choice(self._known)
        if random.random() < 0.05:
            data = data[: random.randrange(_HEAD_BYTES)]
        index, term = (5, 3) if random.random() < 0.8 else (random.choice((0, 4, 6, 30)), random.choice((0, 3, 9)))
        return struct.pack(">qq", index, term) + data

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that decoded entries follow the position, and that they are the same after encoding."""
        position = LogId(*struct.unpack_from(">qq", data))
        data = data[16:]
        try:
            entries = within_memory(
                lambda: entries_of(data, position, LIMITS), len(data) + LIMITS.max_batch_bytes, random, _MEMORY_FACTOR
            )
        except KafkaWireError:
            return [REFUSED]
        terms = [position.term, *(entry.term for entry in entries)]
        if terms != sorted(terms):
            raise FuzzError("terms fall")
        if not entries:
            return ["nothing"]
        for entry in entries:
            entry_head(entry.data)
            control_value(entry.data, 5)
        again = batches_of(position.index + 1, entries)
        if entries_of(again, position) != entries:
            raise FuzzError("written and read again, they are other entries")
        return [entry.kind.name for entry in entries[:3]]


_CONFIGURATION: Final = Configuration(
    tuple(
        Server(ReplicaKey(number, bytes([number]) * 16), f"h:{number}", (("CONTROLLER", f"h:{number}"),))
        for number in (1, 2, 3)
    )
)
_OTHER: Final = control_data(5, b"\x00\x00\x00\x01\x00", 1_000)
_NONCE: Final = b"nonce of a client"
_PASSWORD: Final = "pencil"  # noqa: S105 - used only here


class LoginTarget(Subject[bytes]):
    """SCRAM on both sides: a server with hostile clients and, occasionally, a client with a hostile server.

    An input is a letter for the side, four bytes of length, the first message, and the second.
    """

    name = "logins"
    expected = frozenset(
        {"first refused", "proof refused", "logged in", "server refused", "server accepted", "answered again"}
    )

    def __init__(self) -> None:
        self._mechanism = Mechanism.SCRAM_SHA_256
        credential = scram_credential(self._mechanism, _PASSWORD, b"salt" * 4)
        self._users = ScramUsers({"alice": {self._mechanism: credential}})
        client, server = self._client(), self._server()
        self._first = client.first()
        self._answer = server.respond(self._first)
        self._proof = client.final(self._answer)
        self._end = server.respond(self._proof)
        unknown = self._first.replace(b"n=alice", b"n=bob")
        self._known = [
            self._first,
            self._answer,
            self._proof,
            self._end,
            unknown,
            b"y,a=alice,n=alice,r=x",
            b"n,,n=,r=",
        ]

    def make(self, random: Random) -> bytes:
        """Return both messages of one side, mutated or not."""
        is_client = random.random() < 0.005
        first, second = (self._answer, self._end) if is_client else (self._first, self._proof)
        if random.random() < 0.3:
            first = mutated(first, random, self._known, LENGTHS)
        if random.random() < 0.7:
            second = mutated(second, random, self._known, LENGTHS)
        return (b"c" if is_client else b"s") + struct.pack(">I", len(first)) + first + second

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that only messages signed with the password are accepted."""
        del random
        (length,) = struct.unpack_from(">I", data, 1)
        first, second = data[5 : 5 + length], data[5 + length :]
        return self._of_client(first, second) if data[:1] == b"c" else self._of_server(first, second)

    def _of_server(self, first: bytes, second: bytes) -> list[str]:
        server = self._server()
        try:
            server.respond(first)
        except ScramError:
            return ["first refused"]
        try:
            server.respond(second)
        except ScramError:
            if server.user is not None:
                raise FuzzError("a refused client is logged in") from None
            return ["proof refused"]
        if first.partition(b",n=")[2] != self._first.partition(b",n=")[2]:
            raise FuzzError("a proof is accepted for another exchange")
        try:
            server.respond(second)
        except ScramError:
            return ["logged in", "answered again"]
        raise FuzzError("one exchange logs in twice")

    def _of_client(self, first: bytes, second: bytes) -> list[str]:
        client = self._client()
        client.first()
        try:
            client.final(first)
            client.check(second)
        except ScramError:
            return ["server refused"]
        if first != self._answer:
            raise FuzzError("a client accepts another server")
        return ["server accepted"]

    def _client(self) -> ScramClient:
        return ScramClient(self._mechanism, "alice", _PASSWORD, lambda _: _NONCE)

    def _server(self) -> ScramServer:
        return ScramServer(self._mechanism, self._users, bytes)


TARGETS: Final = (RequestTarget, ResponseTarget, BatchTarget, EntriesTarget, LoginTarget)
