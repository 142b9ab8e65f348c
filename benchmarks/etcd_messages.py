"""The three messages of etcd's gRPC interface that the benchmark uses, encoded by hand.

    KV.Put             PutRequest { bytes key = 1; bytes value = 2; }
    Maintenance.Status StatusResponse { ResponseHeader header = 1 { uint64 member_id = 2 }; uint64 leader = 4; … }

Generated code would need the compiler of protocol buffers and etcd's files. (etcd, api/etcdserverpb/rpc.proto)
"""

PUT = "/etcdserverpb.KV/Put"
STATUS = "/etcdserverpb.Maintenance/Status"

_KEY = 1
_VALUE = 2
_HEADER = 1
_MEMBER_ID = 2
_LEADER = 4
_CONTINUES = 0x80
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def put_request(key: bytes, size_bytes: int) -> bytes:
    """Return a PutRequest of exactly that size, whose value is padding. The log of etcd adds only a header."""
    head = _field(_KEY, key)
    for value_bytes in range(max(0, size_bytes - len(head) - 4), size_bytes):
        request = head + _field(_VALUE, b"x" * value_bytes)
        if len(request) == size_bytes:
            return request
    raise ValueError(f"no PutRequest with this key has {size_bytes} bytes")


def leads(status_response: bytes) -> bool:
    """Return True if the replying member is the leader."""
    fields = decode_fields(status_response)
    header = fields.get(_HEADER, b"")
    if not isinstance(header, bytes):
        raise ValueError("a StatusResponse whose header is a number")  # noqa: TRY004 - wrong bytes, not a wrong call
    leader = fields.get(_LEADER, 0)
    return leader != 0 and leader == decode_fields(header).get(_MEMBER_ID)


def decode_fields(message: bytes) -> dict[int, int | bytes]:
    """Return the last field of each number in a message. Raises `ValueError` for bytes that are not a message."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key, at = _varint_at(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            fields[number], at = _varint_at(message, at)
            continue
        if kind == _BYTES:
            length, at = _varint_at(message, at)
        elif kind in {_FIXED64, _FIXED32}:
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if at + length > len(message):
            raise ValueError(f"field {number} is cut off")
        fields[number] = message[at : at + length]
        at += length
    return fields


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value % _CONTINUES | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(len(message), at + 10)):
        value |= message[position] % _CONTINUES << shift
        if message[position] < _CONTINUES:
            return value, position + 1
        shift += 7
    raise ValueError("a varint without end")
