"""What the data of an entry say that is not an application's: configurations and no-ops, in one canonical form each.

    configuration = voters │ old voters │ learners     the last two only if there is any of either
    servers       = count 2 │ server …
    server        = id 4 │ length 2 │ endpoint (UTF-8)
    no-op         = leader 4 (0: not told) │ voters 2 │ granted 2 │ id 4 …

All integers are big-endian. One form each: equal configurations have equal bytes, and bytes of any other form are
refused, so an entry that a server passes on never differs from the one that it was given. The log keeps configurations
decoded beside its entries; whoever else needs one decodes it where it stands.

Decoders raise `EntryDataError` and nothing else.
"""

import struct
from typing import Final

from consensus.core.model import Configuration, Entry, EntryKind, NoOp, Server, ServerId, Term

_COUNT: Final = struct.Struct(">H")
_SERVER: Final = struct.Struct(">iH")
_NO_OP: Final = struct.Struct(">iHH")
_NOBODY: Final = 0


class EntryDataError(ValueError):
    """These bytes are not what they should be, or something has no such bytes; the text says why."""


def configuration_entry(term: Term, configuration: Configuration) -> Entry:
    """The entry that puts `configuration` in force; raises `EntryDataError` if it is too large for any log."""
    return Entry(term, EntryKind.CONFIGURATION, encode_configuration(configuration))


def no_op_entry(term: Term, no_op: NoOp) -> Entry:
    """A no-op; raises `EntryDataError` if it names too many servers."""
    return Entry(term, EntryKind.NO_OP, encode_no_op(no_op))


def configuration_in(entry: Entry) -> Configuration | None:
    """The configuration that an entry puts in force, if it is one that does; raises `EntryDataError`."""
    return decode_configuration(entry.data) if entry.kind == EntryKind.CONFIGURATION else None


def encode_configuration(configuration: Configuration) -> bytes:
    """The configuration's bytes, servers in their given order; raises `EntryDataError`."""
    lists = [configuration.voters]
    if configuration.old_voters or configuration.learners:
        lists += [configuration.old_voters, configuration.learners]
    parts = []
    try:
        for servers in lists:
            parts.append(_COUNT.pack(len(servers)))
            for server in servers:
                endpoint = server.endpoint.encode()
                parts.append(_SERVER.pack(server.server_id, len(endpoint)) + endpoint)
    except (struct.error, UnicodeEncodeError) as error:
        raise EntryDataError("a configuration is too large to be stored, or has an endpoint that is no text") from error
    return b"".join(parts)


def decode_configuration(data: bytes) -> Configuration:
    """Reverse of `encode_configuration`; raises `EntryDataError`."""
    voters, offset = _decode_servers(data, 0)
    if offset == len(data):
        return Configuration(voters)
    old_voters, offset = _decode_servers(data, offset)
    learners, offset = _decode_servers(data, offset)
    if offset != len(data):
        raise EntryDataError("bytes trail a configuration")
    if not old_voters and not learners:
        raise EntryDataError("a configuration without old voters and learners lists them")
    return Configuration(voters, old_voters, learners)


def _decode_servers(data: bytes, offset: int) -> tuple[tuple[Server, ...], int]:
    servers = []
    try:
        (count,) = _COUNT.unpack_from(data, offset)
        offset += _COUNT.size
        for _ in range(count):
            server_id, length = _SERVER.unpack_from(data, offset)
            offset += _SERVER.size
            endpoint = data[offset : offset + length]
            if len(endpoint) != length:
                raise EntryDataError("a configuration ends within an endpoint")
            servers.append(Server(ServerId(server_id), endpoint.decode()))
            offset += length
    except (struct.error, UnicodeDecodeError) as error:
        raise EntryDataError("a configuration is cut off or not text") from error
    return tuple(servers), offset


def encode_no_op(no_op: NoOp) -> bytes:
    """The no-op's bytes; raises `EntryDataError`."""
    try:
        head = _NO_OP.pack(no_op.leader or _NOBODY, len(no_op.voters), len(no_op.granted_by))
        return head + _ids(len(no_op.voters) + len(no_op.granted_by)).pack(*no_op.voters, *no_op.granted_by)
    except struct.error as error:
        raise EntryDataError("a no-op names too many servers to be stored, or one whose id is out of range") from error


def decode_no_op(data: bytes) -> NoOp:
    """Reverse of `encode_no_op`; raises `EntryDataError`."""
    try:
        leader, voters, granted = _NO_OP.unpack_from(data)
        ids = tuple(map(ServerId, _ids(voters + granted).unpack(data[_NO_OP.size :])))
    except struct.error as error:
        raise EntryDataError("a no-op has another length than it says") from error
    return NoOp(None if leader == _NOBODY else ServerId(leader), ids[:voters], ids[voters:])


def _ids(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")
