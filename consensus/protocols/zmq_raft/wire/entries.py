"""Log entries as frames, and in the core's form.

    frame = reqid 12 │ type 1 │ term 7 (the least significant byte first) │ data

    type            data                                   core
    STATE 0         the update, a byte at least            COMMAND         reqid │ update
    CONFIG 1        MessagePack: peers, or {old, new}      CONFIGURATION   reqid as the head (`configuration_head`)
    CHECKPOINT 2    c0, and a reqid of zeros               NO_OP           empty

`peers` are [[id, url], …]; {old, new} is C_old,new, a joint configuration. An entry without a client's request has a
reqid of zeros; in the core such a configuration lacks a head.

Nearly all entries are STATE, and entries of one message mostly have one term. So both directions compare type and term
with the previous entry: each term is written or read once. They convert an update by cutting and joining bytes.

Both directions refuse entries that crash the npm package `zmq-raft`. Examples are an entry without data, a term beyond
2**53 - 1, and a configuration with impossible peers (`peers`). They also refuse contents that the protocol cannot
express: learners, and a no-op with data.
"""

from collections.abc import Sequence
from typing import Final

from consensus.core.entry_data import (
    EntryDataError,
    configuration_entry,
    configuration_head,
    decode_configuration,
    no_op_entry,
)
from consensus.core.model import COMMAND, Configuration, Entry, EntryKind, NoOp, Server, Term
from consensus.protocols.zmq_raft.wire.frames import (
    DEFAULT_LIMITS,
    MAX_UINT,
    REQUEST_ID_BYTES,
    FrameLimits,
    ZmqRaftError,
    json_frame,
    read_json,
)
from consensus.protocols.zmq_raft.wire.messages import Peer
from consensus.protocols.zmq_raft.wire.peers import check_consistent, check_peers, peer_values, read_peers
from consensus.protocols.zmq_raft.wire.request_ids import NO_REQUEST_ID

STATE: Final = 0
CONFIG: Final = 1
CHECKPOINT: Final = 2
ENTRY_HEAD_BYTES: Final = REQUEST_ID_BYTES + 8
_CHECKPOINT_DATA: Final = b"\xc0"
_NO_OP: Final = no_op_entry(1, NoOp()).data


def entry_frame(entry: Entry) -> bytes:
    """Return the frame of one entry; raises `ZmqRaftError` for an invalid entry."""
    return entry_frames((entry,))[0]


def entry_frames(entries: Sequence[Entry]) -> list[bytes]:
    """Return the frames of entries; raises `ZmqRaftError` for an invalid entry."""
    frames: list[bytes] = []
    term, head = -1, b""
    for entry in entries:
        if entry.term != term:
            term = entry.term
            head = _type_and_term(STATE, term)
        data = entry.data
        if entry.kind != COMMAND:
            frames.append(_other_frame(entry))
        elif len(data) > REQUEST_ID_BYTES:
            frames.append(b"".join((data[:REQUEST_ID_BYTES], head, data[REQUEST_ID_BYTES:])))
        else:
            raise ZmqRaftError(f"an update of {len(data)} bytes lacks data after its request id")
    return frames


def read_entries(frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS) -> tuple[Entry, ...]:
    """Decode the frames of entries; raises `ZmqRaftError`."""
    entries: list[Entry] = []
    largest = ENTRY_HEAD_BYTES + limits.max_entry_data_bytes
    term, head, configurations_bytes = 0, b"", 0
    for frame in frames:
        if not ENTRY_HEAD_BYTES < len(frame) <= largest:
            raise ZmqRaftError(f"an entry of {len(frame)} bytes; it has {ENTRY_HEAD_BYTES + 1} to {largest}")
        found = frame[REQUEST_ID_BYTES:ENTRY_HEAD_BYTES]
        if found != head:
            if found[0] != STATE:
                configurations_bytes += len(frame) if found[0] == CONFIG else 0
                if configurations_bytes > limits.max_configurations_bytes:
                    raise ZmqRaftError(
                        f"more than {limits.max_configurations_bytes} bytes of configurations in a message"
                    )
                entries.append(_read_other(frame, limits))
                continue
            term, head = _term(found), found
        entries.append(Entry(term, COMMAND, frame[:REQUEST_ID_BYTES] + frame[ENTRY_HEAD_BYTES:]))
    return tuple(entries)


def configuration_of(peers: Sequence[Peer], old: Sequence[Peer] = ()) -> Configuration:
    """Return the core's configuration of these members, joint if `old` are given."""
    return Configuration(_servers(peers), _servers(old))


def peers_of(servers: Sequence[Server]) -> tuple[Peer, ...]:
    """Return members as the protocol lists them; raises `ZmqRaftError` for a member of another protocol."""
    return tuple([_peer(server) for server in servers])


def _other_frame(entry: Entry) -> bytes:
    match entry.kind:
        case EntryKind.CONFIGURATION:
            request_id, data = _configuration_parts(entry.data)
            return request_id + _type_and_term(CONFIG, entry.term) + data
        case EntryKind.NO_OP if entry.data == _NO_OP:
            return NO_REQUEST_ID + _type_and_term(CHECKPOINT, entry.term) + _CHECKPOINT_DATA
        case _:
            raise ZmqRaftError(f"the protocol does not have an entry for {entry.kind.name} of {len(entry.data)} bytes")


def _configuration_parts(data: bytes) -> tuple[bytes, bytes]:
    """Return the request id of a configuration, and its MessagePack."""
    try:
        request_id = configuration_head(data) or NO_REQUEST_ID
        configuration = decode_configuration(data)
    except EntryDataError as error:
        raise ZmqRaftError(f"a configuration cannot be read: {error}") from error
    if len(request_id) != REQUEST_ID_BYTES or configuration.learners:
        raise ZmqRaftError("a configuration has learners, or its request id does not have 12 bytes")
    new, old = peers_of(configuration.voters), peers_of(configuration.old_voters)
    check_peers(new, DEFAULT_LIMITS)
    if old:
        check_peers(old, DEFAULT_LIMITS)
        check_consistent(new, old)
    values = peer_values(new)
    return request_id, json_frame({"old": peer_values(old), "new": values} if old else values)


def _read_other(frame: bytes, limits: FrameLimits) -> Entry:
    found = frame[REQUEST_ID_BYTES:ENTRY_HEAD_BYTES]
    request_id, term, data = frame[:REQUEST_ID_BYTES], _term(found), frame[ENTRY_HEAD_BYTES:]
    match found[0]:
        case 1:
            head = b"" if request_id == NO_REQUEST_ID else request_id
            try:
                return configuration_entry(term, _read_configuration(data, limits), head)
            except EntryDataError as error:
                raise ZmqRaftError(f"a configuration cannot be kept: {error}") from error
        case 2 if request_id == NO_REQUEST_ID and data == _CHECKPOINT_DATA:
            return Entry(term, EntryKind.NO_OP, _NO_OP)
        case kind:
            raise ZmqRaftError(f"an entry of the unknown type {kind}, or an invalid checkpoint")


def _read_configuration(data: bytes, limits: FrameLimits) -> Configuration:
    value = read_json(data, "configuration", limits.max_json_bytes)
    if not isinstance(value, dict):
        return configuration_of(read_peers(value, limits))
    old, new = read_peers(value.get("old"), limits), read_peers(value.get("new"), limits)
    check_consistent(new, old)
    return configuration_of(new, old)


def _servers(peers: Sequence[Peer]) -> tuple[Server, ...]:
    return tuple([Server(peer.peer_id, peer.url) for peer in peers])


def _peer(server: Server) -> Peer:
    if not isinstance(server.server_id, str) or server.listeners:
        raise ZmqRaftError(f"server {server.server_id} has an id that is not a string, or several endpoints")
    return Peer(server.server_id, server.endpoint)


def _type_and_term(kind: int, term: Term) -> bytes:
    if not 0 <= term <= MAX_UINT:
        raise ZmqRaftError(f"an entry of term {term}; the protocol's terms are 0 to {MAX_UINT}")
    return bytes((kind,)) + term.to_bytes(7, "little")


def _term(type_and_term: bytes) -> Term:
    term = int.from_bytes(type_and_term[1:], "little")
    if term > MAX_UINT:
        raise ZmqRaftError(f"an entry of term {term}; the protocol's terms are at most {MAX_UINT}")
    return term
