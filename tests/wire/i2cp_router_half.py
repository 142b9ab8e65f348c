"""The router's half of I2CP: reads messages of clients, and writes messages of routers. Only tests need it.

It reads a client's message to its last byte, to show that a node sends only data defined by the protocol.
"""

from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bridge.wire.i2p import i2cp
from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.i2cp import LEASE_BYTES, Frame, MessageType, framed, read_text, text_field
from bridge.wire.i2p.i2cp_messages import (
    ClientMessage,
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    GetDate,
    HostLookup,
    HostReply,
    I2cpError,
    RequestVariableLeaseSet,
    RouterMessage,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2p.i2cp_session import OFFLINE_EXPIRATION, OFFLINE_SIGNATURE, TRANSIENT_KEY, SessionConfig
from bridge.wire.i2p.meta_lease_set import STORE_TYPE, LeaseSetError, OfflineSignature, verify_offline
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from bridge.wire.i2p.structures import HASH_BYTES, SIGNATURE_TYPES, I2pError, base64_decode

Message = ClientMessage | RouterMessage


def encode(message: Message) -> bytes:
    """Return the frame of a message of either side."""
    try:
        match message:
            case SetDate(date_ms, version):
                body = date_ms.to_bytes(8, "big") + (b"" if version is None else text_field(version))
                return framed(MessageType.SET_DATE, body)
            case SessionStatus(session_id, status):
                return framed(MessageType.SESSION_STATUS, session_id.to_bytes(2, "big") + status.to_bytes(1, "big"))
            case RequestVariableLeaseSet(session_id, tunnels):
                head = session_id.to_bytes(2, "big") + tunnels.to_bytes(1, "big")
                return framed(MessageType.REQUEST_VARIABLE_LEASE_SET, head + bytes(LEASE_BYTES * tunnels))
            case HostReply(session_id, request_id, result, destination):
                numbers = session_id.to_bytes(2, "big") + request_id.to_bytes(4, "big") + result.to_bytes(1, "big")
                return framed(MessageType.HOST_REPLY, numbers + (destination or b""))
            case Unhandled(kind, body):
                return framed(kind, body)
            case _:
                return i2cp.encode(message)
    except OverflowError as error:
        raise I2cpError(str(error)) from error


def decode(found: Frame) -> Message:
    """Return the message of either side; raise `I2cpError` for any malformed frame."""
    reader = FieldReader(found.body)
    try:
        message = _client_message(found.kind, reader)
        if message is None:
            return i2cp.decode(found)
        if reader.rest():
            raise I2cpError(f"bytes follow a {type(message).__name__}")
    except I2pError as error:
        raise I2cpError(str(error)) from error
    return message


def _client_message(kind: int, reader: FieldReader) -> ClientMessage | None:
    match kind:
        case MessageType.GET_DATE:
            return GetDate(read_text(reader, "the version"), None if reader.is_at_end else reader.mapping())
        case MessageType.CREATE_SESSION:
            destination, options, created_ms = reader.destination(), reader.mapping(), reader.number(8, "the date")
            named = options.get(TRANSIENT_KEY)
            signature_type = destination.signature_type if named is None else _type_of(named)
            if signature_type not in SIGNATURE_TYPES:
                raise I2cpError(f"signature type {signature_type} is unknown")
            signature = reader.take(SIGNATURE_TYPES[signature_type][2], "the signature")
            return CreateSession(SessionConfig(destination, options, created_ms, signature))
        case MessageType.DESTROY_SESSION:
            return DestroySession(reader.number(2, "the session id"))
        case MessageType.CREATE_LEASE_SET_2:
            return _lease_set(reader)
        case MessageType.HOST_LOOKUP:
            session_id, request_id = reader.number(2, "the session id"), reader.number(4, "the request id")
            timeout_ms, what = reader.number(4, "the timeout"), reader.number(1, "the kind of name")
            if what != 0:
                raise I2cpError(f"a lookup of kind {what}, not of a hash")
            return HostLookup(session_id, request_id, timeout_ms, reader.take(HASH_BYTES, "the hash"))
        case _:
            return None


def _lease_set(reader: FieldReader) -> CreateLeaseSet2:
    session_id, store_type = reader.number(2, "the session id"), reader.number(1, "the store type")
    if store_type != STORE_TYPE:
        raise I2cpError(f"a lease set of store type {store_type}, not a Meta LeaseSet2")
    rest = reader.rest()
    # The length of the structure follows from its content. So try both: with and without the count after it.
    counted = rest.endswith(b"\0") and not _is_structure(rest) and _is_structure(rest[:-1])
    if not counted and not _is_structure(rest):
        raise I2cpError("the lease set is not a Meta LeaseSet2")
    return CreateLeaseSet2(session_id, rest[:-1] if counted else rest, counted)


def _is_structure(data: bytes) -> bool:
    try:
        decode_structure(data)
    except LeaseSetError:
        return False
    return True


def session_is_signed(config: SessionConfig) -> bool:
    """Return True if the session's signature is valid, and the destination's signature over a transient key, if any."""
    try:
        offline = _offline_of(config.options)
        if offline is not None and not verify_offline(config.destination, offline):
            return False
        public_key = config.destination.signing_key if offline is None else offline.transient_key
        Ed25519PublicKey.from_public_bytes(public_key).verify(config.signature, config.signed_part)
    except (InvalidSignature, ValueError):
        return False
    return True


def _offline_of(options: Mapping[str, str]) -> OfflineSignature | None:
    named = options.get(TRANSIENT_KEY)
    if named is None:
        return None
    return OfflineSignature(
        expires_s=int(options.get(OFFLINE_EXPIRATION, "")),
        signature_type=_type_of(named),
        transient_key=base64_decode(named.partition(":")[2]),
        signature=base64_decode(options.get(OFFLINE_SIGNATURE, "")),
    )


def _type_of(named_key: str) -> int:
    number = named_key.partition(":")[0]
    if not (number.isascii() and number.isdigit()) or len(number) > len("65535"):
        raise I2cpError("the transient key of a session does not begin with the number of its type")
    return int(number)
