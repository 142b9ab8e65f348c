"""Entries, configurations and no-ops as bytes; each has one canonical form.

    group         = entry …                            adjacent entries, as a log stores them
    entry         = term 8 │ kind 1 │ length 4 │ data

The forms of configurations and no-ops are in docs/reference/storage.md, 'Bytes of an entry'. The compact form is for
ids that are 32-bit integers and for servers with one endpoint. In the general form each id has a type.

A protocol may put values before the data of an entry, such as a request id or a time. They are the *protocol head* (not
the head of an entry, `ENTRY_HEAD`). A command begins with its protocol head (`Features.command_head_bytes`). The data
of a `CONTROL` entry is defined by the protocol that wrote it.

All integers are big-endian. The leader encodes a group once. Messages and `Persist` effects carry these bytes in the
field `encoded`, so a follower writes the received bytes. If `encoded` is empty, the storage encodes the entries. Equal
configurations have equal bytes. Bytes in the general form that are not canonical are refused. The decoder of the
compact form does not check ids. Decoders raise `EntryDataError` and nothing else.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, assert_never

from msgspec import Struct

from consensus.core.model import Configuration, Entry, EntryKind, NoOp, ReplicaKey, Server, ServerId, Term, possible_id

ENTRY_HEAD: Final = struct.Struct(">QBI")
_KINDS: Final = {kind.value: kind for kind in EntryKind}
_COUNT: Final = struct.Struct(">H")
_SERVER: Final = struct.Struct(">iH")
_NO_OP: Final = struct.Struct(">iHH")
_NO_LEADER: Final = 0
_COMPACT_LIMIT: Final = 2**31
_GENERAL: Final = 2**16 - 1
_GENERAL_NO_OP: Final = -_COMPACT_LIMIT
_HEAD_BYTES_MAX: Final = 255
_INTEGER: Final = 1
_TEXT: Final = 2
_KEY: Final = 3
_INTEGER_ID: Final = struct.Struct(">BQ")
_TEXT_ID: Final = struct.Struct(">BH")
_KEY_ID: Final = struct.Struct(">BQB")


class EntryDataError(ValueError):
    """Invalid bytes of an entry, or a value that cannot be encoded; the text is the reason."""


class _ProtocolHead(Struct, frozen=True):
    """The form of a protocol head: a mark, the length in one byte, the head."""

    kind: str
    mark: bytes

    def encode(self, head: bytes) -> bytes:
        """Return the form of a head, or nothing for an empty one; raises `EntryDataError`."""
        if len(head) > _HEAD_BYTES_MAX:
            raise EntryDataError(
                f"the head of a {self.kind} has {len(head)} bytes; at most {_HEAD_BYTES_MAX} are stored"
            )
        return self.mark + bytes([len(head)]) + head if head else b""

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the head, which may be empty, and the bytes after it; raises `EntryDataError`."""
        if not data.startswith(self.mark):
            return b"", data
        begin = len(self.mark) + 1
        length = data[begin - 1] if len(data) >= begin else 0
        head, rest = data[begin : begin + length], data[begin + length :]
        if not head or len(head) != length or rest.startswith(self.mark):
            raise EntryDataError(f"the head of a {self.kind} is cut off, empty or doubled")
        return head, rest


_OF_CONFIGURATION: Final = _ProtocolHead("configuration", struct.pack(">H", _GENERAL - 1))
_OF_NO_OP: Final = _ProtocolHead("no-op", struct.pack(">i", _GENERAL_NO_OP + 1))


def encode_group(entries: Sequence[Entry]) -> bytes:
    """Return the bytes of adjacent entries: the head and the data of each."""
    parts: list[bytes] = []
    pack = ENTRY_HEAD.pack
    for entry in entries:
        data = entry.data
        parts += (pack(entry.term, entry.kind, len(data)), data)
    return b"".join(parts)


def heads(data: bytes | memoryview) -> Iterator[tuple[Term, int, int, int]]:
    """Yield term, kind as a number, and start and end of the data for each entry of a group.

    Raises `EntryDataError` if the bytes end within an entry.
    """
    at, end, head = 0, len(data), ENTRY_HEAD
    while at < end:
        if end - at < head.size:
            raise EntryDataError("a group ends within the head of an entry")
        term, kind, length = head.unpack_from(data, at)
        at += head.size
        if length > end - at:
            raise EntryDataError("a group ends within an entry")
        yield term, kind, at, at + length
        at += length


def decode_group(data: bytes) -> tuple[Entry, ...]:
    """Decode the result of `encode_group`; raises `EntryDataError`."""
    try:
        return tuple([Entry(term, _KINDS[kind], data[begin:end]) for term, kind, begin, end in heads(data)])
    except KeyError as error:
        raise EntryDataError(f"an entry has kind {error.args[0]}, unknown to this version") from error


def group_bytes(entries: Sequence[Entry]) -> int:
    """Return the length of the encoded entries in bytes."""
    return ENTRY_HEAD.size * len(entries) + sum([len(entry.data) for entry in entries])


def configuration_entry(term: Term, configuration: Configuration, head: bytes = b"") -> Entry:
    """Return the entry that puts `configuration` in force.

    `head` has at most 255 bytes of the protocol, such as the id of the request for the change. Raises `EntryDataError`
    if an id is impossible, if a count or a length does not fit its field, or if an endpoint is not text.
    """
    return Entry(term, EntryKind.CONFIGURATION, _OF_CONFIGURATION.encode(head) + encode_configuration(configuration))


def configuration_head(data: bytes) -> bytes:
    """Return the head of an encoded configuration, which may be empty; raises `EntryDataError`."""
    head, _ = _OF_CONFIGURATION.split(data)
    return head


def no_op_entry(term: Term, no_op: NoOp, head: bytes = b"") -> Entry:
    """Return a no-op entry with a protocol head of at most 255 bytes; raises `EntryDataError`."""
    return Entry(term, EntryKind.NO_OP, _OF_NO_OP.encode(head) + encode_no_op(no_op))


def no_op_head(data: bytes) -> bytes:
    """Return the head of an encoded no-op, which may be empty; raises `EntryDataError`."""
    head, _ = _OF_NO_OP.split(data)
    return head


def configuration_in(entry: Entry) -> Configuration | None:
    """Return the configuration of a configuration entry, None for any other entry; raises `EntryDataError`."""
    return decode_configuration(entry.data) if entry.kind == EntryKind.CONFIGURATION else None


def encode_id(server_id: ServerId) -> bytes:
    """Encode a server's id of any protocol; raises `EntryDataError`."""
    if not possible_id(server_id):
        raise EntryDataError(f"{server_id!r} cannot be the id of a server")
    match server_id:
        case str():
            text = server_id.encode()
            return _TEXT_ID.pack(_TEXT, len(text)) + text
        case ReplicaKey(number, directory):
            return _KEY_ID.pack(_KEY, number, len(directory)) + directory
        case int():
            return _INTEGER_ID.pack(_INTEGER, server_id)
        case _:
            assert_never(server_id)


def decode_id(data: bytes, offset: int = 0) -> tuple[ServerId, int]:
    """Return the id at `offset` and the offset of its end; raises `EntryDataError`."""
    server_id: ServerId
    try:
        match data[offset : offset + 1]:
            case b"\x01":
                (_, server_id), end = _INTEGER_ID.unpack_from(data, offset), offset + _INTEGER_ID.size
            case b"\x02":
                end = offset + _TEXT_ID.size + _TEXT_ID.unpack_from(data, offset)[1]
                server_id = data[offset + _TEXT_ID.size : end].decode()
            case b"\x03":
                _, number, length = _KEY_ID.unpack_from(data, offset)
                end = offset + _KEY_ID.size + length
                server_id = ReplicaKey(number, data[offset + _KEY_ID.size : end])
            case _:
                raise EntryDataError("no id of a server begins here")
    except (struct.error, UnicodeDecodeError) as error:
        raise EntryDataError("the id of a server is cut off or not text") from error
    if end > len(data) or not possible_id(server_id):
        raise EntryDataError("the id of a server is cut off or impossible")
    return server_id, end


def _is_compact(server_id: ServerId) -> bool:
    return isinstance(server_id, int) and 1 - _COMPACT_LIMIT < server_id < _COMPACT_LIMIT


def encode_configuration(configuration: Configuration) -> bytes:
    """Encode a configuration, servers in their given order; raises `EntryDataError`."""
    lists = [configuration.voters]
    if configuration.old_voters or configuration.learners:
        lists += [configuration.old_voters, configuration.learners]
    servers = [server for each in lists for server in each]
    compact = all(_is_compact(server.server_id) and not server.listeners for server in servers)
    parts = [] if compact else [_COUNT.pack(_GENERAL)]
    try:
        for each in lists:
            parts.append(_COUNT.pack(len(each)))
            parts += map(_encode_server if compact else _encode_any_server, each)
    except (struct.error, UnicodeEncodeError) as error:
        raise EntryDataError(
            "a configuration is too large to be stored, or has an endpoint that is not text"
        ) from error
    return b"".join(parts)


def _encode_server(server: Server) -> bytes:
    endpoint = server.endpoint.encode()
    return _SERVER.pack(server.server_id, len(endpoint)) + endpoint


def _encode_any_server(server: Server) -> bytes:
    listeners = [text for listener in server.listeners for text in listener]
    texts = [text.encode() for text in (server.endpoint, *listeners)]
    head = encode_id(server.server_id) + _COUNT.pack(len(server.listeners))
    return head + b"".join(_COUNT.pack(len(text)) + text for text in texts)


def decode_configuration(data: bytes) -> Configuration:
    """Decode the result of `encode_configuration`, ignoring a head; raises `EntryDataError`."""
    _, data = _OF_CONFIGURATION.split(data)
    if data[: _COUNT.size] != _COUNT.pack(_GENERAL):
        return _decode_lists(data, 0, _decode_server)
    configuration = _decode_lists(data, _COUNT.size, _decode_any_server)
    if encode_configuration(configuration) != data:
        raise EntryDataError("a configuration is not in its canonical form")
    return configuration


def _decode_lists(data: bytes, offset: int, decode: Callable[[bytes, int], tuple[Server, int]]) -> Configuration:
    voters, offset = _decode_servers(data, offset, decode)
    if offset == len(data):
        return Configuration(voters)
    old_voters, offset = _decode_servers(data, offset, decode)
    learners, offset = _decode_servers(data, offset, decode)
    if offset != len(data):
        raise EntryDataError("bytes trail a configuration")
    if not old_voters and not learners:
        raise EntryDataError("a configuration contains empty lists of old voters and learners")
    return Configuration(voters, old_voters, learners)


def _decode_servers(
    data: bytes, offset: int, decode: Callable[[bytes, int], tuple[Server, int]]
) -> tuple[tuple[Server, ...], int]:
    servers = []
    try:
        (count,) = _COUNT.unpack_from(data, offset)
        offset += _COUNT.size
        for _ in range(count):
            server, offset = decode(data, offset)
            servers.append(server)
    except (struct.error, UnicodeDecodeError) as error:
        raise EntryDataError("a configuration is cut off or not text") from error
    return tuple(servers), offset


def _decode_server(data: bytes, offset: int) -> tuple[Server, int]:
    server_id, length = _SERVER.unpack_from(data, offset)
    endpoint, offset = _text(data, offset + _SERVER.size, length)
    return Server(server_id, endpoint), offset


def _decode_any_server(data: bytes, offset: int) -> tuple[Server, int]:
    server_id, offset = decode_id(data, offset)
    (count,) = _COUNT.unpack_from(data, offset)
    offset += _COUNT.size
    texts = []
    for _ in range(1 + 2 * count):
        (length,) = _COUNT.unpack_from(data, offset)
        text, offset = _text(data, offset + _COUNT.size, length)
        texts.append(text)
    return Server(server_id, texts[0], tuple(zip(texts[1::2], texts[2::2], strict=True))), offset


def _text(data: bytes, offset: int, length: int) -> tuple[str, int]:
    text = data[offset : offset + length]
    if len(text) != length:
        raise EntryDataError("a configuration ends within an endpoint")
    return text.decode(), offset + length


def encode_no_op(no_op: NoOp) -> bytes:
    """Encode a no-op; raises `EntryDataError`."""
    named = (*no_op.voters, *no_op.granted_by)
    try:
        if all(map(_is_compact, named)) and (no_op.leader is None or _is_compact(no_op.leader)):
            head = _NO_OP.pack(no_op.leader or _NO_LEADER, len(no_op.voters), len(no_op.granted_by))
            return head + _ids(len(named)).pack(*named)
        head = _NO_OP.pack(_GENERAL_NO_OP, len(no_op.voters), len(no_op.granted_by))
    except struct.error as error:
        raise EntryDataError("a no-op names too many servers, or a server with an id out of range") from error
    leader = () if no_op.leader is None else (no_op.leader,)
    return head + _COUNT.pack(len(leader)) + b"".join(map(encode_id, (*leader, *named)))


def decode_no_op(data: bytes) -> NoOp:
    """Decode the result of `encode_no_op`, ignoring a head; raises `EntryDataError`."""
    _, data = _OF_NO_OP.split(data)
    try:
        first, voters, granted = _NO_OP.unpack_from(data)
        if first == _GENERAL_NO_OP:
            return _decode_any_no_op(data, voters, granted)
        ids = _ids(voters + granted).unpack(data[_NO_OP.size :])
    except struct.error as error:
        raise EntryDataError("the length of a no-op does not match its header") from error
    return NoOp(None if first == _NO_LEADER else first, ids[:voters], ids[voters:])


def _decode_any_no_op(data: bytes, voters: int, granted: int) -> NoOp:
    (leaders,) = _COUNT.unpack_from(data, _NO_OP.size)
    ids, offset = [], _NO_OP.size + _COUNT.size
    for _ in range(leaders + voters + granted):
        server_id, offset = decode_id(data, offset)
        ids.append(server_id)
    named = tuple(ids[leaders:])
    no_op = NoOp(ids[0] if leaders else None, named[:voters], named[voters:])
    if encode_no_op(no_op) != data:
        raise EntryDataError("a no-op is not in its canonical form")
    return no_op


def _ids(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")
