"""Servers and configurations as bytes; the numbers are lengths of fields in bytes.

    configuration = log index 8 │ last log index 8 │ server …, until the value ends
    server        = id 4 │ length 4 │ endpoint (UTF-8)
    extended      = mark 8 │ log index 8 │ last log index 8 │ servers │ old │ learners (each: count 4 │ server …)

The extended form is our extension of I2P proposal 150. It carries joint configurations and learners between servers
that support it. It begins with a mark in place of the log index. A log cannot have this index, so a server without the
extension refuses such a configuration in a snapshot chunk. A log entry with the extended form has its own value type.

The value of a ClusterServer entry is one server. If the entry removes the server, the value is only its id.
"""

import struct

from consensus.protocols.garlic_farm.wire.errors import malformed, too_large
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS, MessageLimits
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, checked_id, checked_long

_TWO_LONGS = struct.Struct(">QQ")
_COUNT = struct.Struct(">I")
_MARK = bytes.fromhex("ffffffff00000001")
_ID_AND_LENGTH = struct.Struct(">iI")
_ID = struct.Struct(">i")


def encode_configuration(configuration: Configuration, limits: MessageLimits = DEFAULT_LIMITS) -> bytes:
    """Return a configuration's bytes, as an entry's value and inside a snapshot chunk."""
    lists = (configuration.servers, configuration.old_servers, configuration.learners)
    named = sum(map(len, lists))
    if named > limits.servers:
        raise too_large(f"{named} servers in a configuration; the limit is {limits.servers}")
    head = _TWO_LONGS.pack(
        checked_long(configuration.log_index, "configuration log index"),
        checked_long(configuration.last_log_index, "configuration last log index"),
    )
    if not configuration.is_extended:
        return head + b"".join(_encode_server(server, limits) for server in configuration.servers)
    parts = [_MARK, head]
    for servers in lists:
        parts.append(_COUNT.pack(len(servers)))
        parts += (_encode_server(server, limits) for server in servers)
    return b"".join(parts)


def decode_configuration(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> Configuration:
    """Decode a configuration from exactly `data`."""
    if data.startswith(_MARK):
        return _decode_extended(data, limits)
    if len(data) < _TWO_LONGS.size:
        raise malformed(f"a configuration of {len(data)} bytes is shorter than its {_TWO_LONGS.size}-byte head")
    log_index, last_log_index = _TWO_LONGS.unpack_from(data)
    servers: list[ClusterServer] = []
    at = _TWO_LONGS.size
    while at < len(data):
        if len(servers) == limits.servers:
            raise too_large(f"more than {limits.servers} servers in a configuration")
        server, at = _decode_server(data, at, limits)
        servers.append(server)
    return Configuration(
        checked_long(log_index, "configuration log index"),
        checked_long(last_log_index, "configuration last log index"),
        tuple(servers),
    )


def _decode_extended(data: bytes, limits: MessageLimits) -> Configuration:
    at = len(_MARK) + _TWO_LONGS.size
    if len(data) < at:
        raise malformed(f"an extended configuration of {len(data)} bytes is shorter than its {at}-byte head")
    log_index, last_log_index = _TWO_LONGS.unpack_from(data, len(_MARK))
    lists: list[tuple[ClusterServer, ...]] = []
    room = limits.servers
    for _ in range(3):
        servers, at = _decode_servers(data, at, room, limits)
        room -= len(servers)
        lists.append(servers)
    if at != len(data):
        raise malformed(f"{len(data) - at} bytes follow an extended configuration")
    configuration = Configuration(
        checked_long(log_index, "configuration log index"),
        checked_long(last_log_index, "configuration last log index"),
        *lists,
    )
    if not configuration.is_extended:
        raise malformed("an extended configuration has neither old servers nor learners")
    return configuration


def _decode_servers(data: bytes, at: int, room: int, limits: MessageLimits) -> tuple[tuple[ClusterServer, ...], int]:
    if len(data) - at < _COUNT.size:
        raise malformed(f"{len(data) - at} bytes left for the count of servers")
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    if count > room:
        raise too_large(f"more than {limits.servers} servers in a configuration")
    servers: list[ClusterServer] = []
    for _ in range(count):
        server, at = _decode_server(data, at, limits)
        servers.append(server)
    return tuple(servers), at


def _encode_server(server: ClusterServer, limits: MessageLimits) -> bytes:
    if server.endpoint is None:
        raise malformed(f"server {server.server_id} of a configuration lacks an endpoint")
    try:
        endpoint = server.endpoint.encode()
    except UnicodeEncodeError as error:
        raise malformed(f"the endpoint of server {server.server_id} is not valid text") from error
    if len(endpoint) > limits.endpoint_bytes:
        raise too_large(f"an endpoint of {len(endpoint)} bytes; the limit is {limits.endpoint_bytes}")
    return _ID_AND_LENGTH.pack(checked_id(server.server_id, "server id"), len(endpoint)) + endpoint


def _decode_server(data: bytes, at: int, limits: MessageLimits) -> tuple[ClusterServer, int]:
    if len(data) - at < _ID_AND_LENGTH.size:
        raise malformed(f"{len(data) - at} bytes left for the id and endpoint length of a server")
    server_id, length = _ID_AND_LENGTH.unpack_from(data, at)
    at += _ID_AND_LENGTH.size
    if length > limits.endpoint_bytes:
        raise too_large(f"an endpoint announces {length} bytes; the limit is {limits.endpoint_bytes}")
    if length > len(data) - at:
        raise malformed(f"an endpoint announces {length} bytes where {len(data) - at} are left")
    try:
        endpoint = data[at : at + length].decode()
    except UnicodeDecodeError as error:
        raise malformed(f"the endpoint of server {server_id} is not UTF-8") from error
    return ClusterServer(server_id, endpoint), at + length


def encode_cluster_server(server: ClusterServer, limits: MessageLimits = DEFAULT_LIMITS) -> bytes:
    """Return the value of the entry in an AddServerRequest; without an endpoint, that in a RemoveServerRequest."""
    if server.endpoint is None:
        return _ID.pack(checked_id(server.server_id, "server id"))
    return _encode_server(server, limits)


def decode_cluster_server(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> ClusterServer:
    """Decode a server from exactly `data`."""
    if len(data) == _ID.size:
        return ClusterServer(_ID.unpack(data)[0], None)
    server, end = _decode_server(data, 0, limits)
    if end != len(data):
        raise malformed(f"{len(data) - end} bytes follow a cluster server")
    return server
