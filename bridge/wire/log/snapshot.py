"""The farm's state machine as bytes, for a Raft snapshot, and back.

The bytes are MessagePack documents, each after its length (4 bytes, big-endian). The first is the state. The changes of
log time and the indexes of configurations follow, a few thousand per document. So these documents stay small in an old
farm, too. Raft's snapshot has its own checksums; bytes that do not decode were written by another version.

Feature level 3 added the table of reqids, without a new version of the format. Below that level the table is empty, so
older servers can ignore it. From that level on, older servers refuse the snapshot because of its level.
"""

import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct, field

from bridge.core.state.farm_state import FarmState

_LENGTH = struct.Struct(">I")
_VERSION = 3
_WITHOUT_AUTHORS = 2
"""The format of farms whose entries did not have proofs.

A backup of such a farm can still be restored; the restored farm then does not have client keys.
"""
_SLICE = 4096
_DOCUMENT_LIMIT_BYTES = 256 * 1024 * 1024


class FarmSnapshotError(Exception):
    """The bytes are not a snapshot that this version can read; the text has the reason."""


class FarmHead(Struct, frozen=True):
    """The first document."""

    version: int
    farm: FarmState
    period_ms: int
    sessions: bytes
    reqids: bytes = b""


class FarmHistory(Struct, frozen=True):
    """Each further document: changes of log time, and indexes of configurations."""

    moment_indexes: list[int]
    moment_times_ms: list[int]
    configuration_indexes: list[int]

    def __post_init__(self) -> None:
        """Raise ValueError if the lists about log time differ in length."""
        if len(self.moment_indexes) != len(self.moment_times_ms):
            raise ValueError("its history of log time is incomplete")


class FarmSnapshot(Struct):
    """The content of a farm's snapshot."""

    farm: FarmState
    period_ms: int
    sessions: bytes
    moment_indexes: Sequence[int] = field(default_factory=list)
    moment_times_ms: Sequence[int] = field(default_factory=list)
    configuration_indexes: Sequence[int] = field(default_factory=list)
    reqids: bytes = b""
    """The dump of `bridge.core.state.reqids`."""


def encode_farm(snapshot: FarmSnapshot) -> Iterator[bytes]:
    """Yield the documents, one by one."""
    yield _document(FarmHead(_VERSION, snapshot.farm, snapshot.period_ms, snapshot.sessions, snapshot.reqids))
    longest = max(len(snapshot.moment_indexes), len(snapshot.configuration_indexes))
    for start in range(0, longest, _SLICE):
        part = slice(start, start + _SLICE)
        yield _document(
            FarmHistory(
                list(snapshot.moment_indexes[part]),
                list(snapshot.moment_times_ms[part]),
                list(snapshot.configuration_indexes[part]),
            )
        )


async def decode_farm(chunks: AsyncIterator[bytes]) -> FarmSnapshot:
    """Decode the documents of `encode_farm`, from chunks of any size; raise `FarmSnapshotError`."""
    documents = _Documents()
    async for chunk in chunks:
        documents.feed(chunk)
    return documents.finish()


def decode_farm_at_once(chunks: Iterable[bytes]) -> FarmSnapshot:
    """Decode like `decode_farm`, for a separate thread."""
    documents = _Documents()
    for chunk in chunks:
        documents.feed(chunk)
    return documents.finish()


def _head(document: bytes) -> FarmHead:
    found = msgspec.msgpack.decode(document)
    match found:
        case {"version": 1, "farm": {"servers": dict(servers)}}:
            for server in servers.values():
                meta = server["report"].pop("meta", None)
                server["report"]["masters"] = [] if meta is None else [meta]
            found["version"] = _VERSION
        case {"version": version} if version == _WITHOUT_AUTHORS:
            found["version"] = _VERSION
        case {"version": int(version)} if not 1 <= version <= _VERSION:
            raise FarmSnapshotError(
                f"the farm's snapshot has format {version}; this version reads formats 1 to {_VERSION}"
            )
        case _:
            pass
    return msgspec.convert(found, FarmHead)


def _document(content: FarmHead | FarmHistory) -> bytes:
    data = msgspec.msgpack.encode(content)
    return _LENGTH.pack(len(data)) + data


class _Documents:
    """Assembles chunks of any size into documents."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._documents: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _DOCUMENT_LIMIT_BYTES:
                raise FarmSnapshotError(f"a document of the farm's snapshot claims {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            self._documents.append(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]

    def finish(self) -> FarmSnapshot:
        if self._buffer:
            raise FarmSnapshotError("the farm's snapshot ends within a document")
        if not self._documents:
            raise FarmSnapshotError("the farm's snapshot is empty")
        try:
            head = _head(self._documents[0])
            history = [msgspec.msgpack.decode(document, type=FarmHistory) for document in self._documents[1:]]
        except (ValueError, msgspec.MsgspecError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FarmSnapshotError(f"the farm's snapshot was written by another version: {error}") from error
        return FarmSnapshot(
            head.farm,
            head.period_ms,
            head.sessions,
            [index for part in history for index in part.moment_indexes],
            [time_ms for part in history for time_ms in part.moment_times_ms],
            [index for part in history for index in part.configuration_indexes],
            head.reqids,
        )
