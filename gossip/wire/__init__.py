"""Gossip as bytes: signed descriptions, sealed datagrams, keys.

What is named here is for users of gossip that sign and seal by themselves; inside gossip, modules import each other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.core.messages import AliveUpdate, JoinAck, JoinReq, Payload, PingRequest, PingResponse
    from gossip.wire.box import x25519_private, x25519_public
    from gossip.wire.cbor import CborError, dumps, loads
    from gossip.wire.codec import CAPACITY_LIMIT, Code, DatagramError, decode_node_info, encode_node_info
    from gossip.wire.identity import PUBLIC_KEY_BYTES, Purpose, Signer, Verifier, node_id_of, sign
    from gossip.wire.secure_codec import SECRETS_BYTES, RefusedError, SecureCodec

__all__ = [
    "CAPACITY_LIMIT",
    "PUBLIC_KEY_BYTES",
    "SECRETS_BYTES",
    "AliveUpdate",
    "CborError",
    "Code",
    "DatagramError",
    "JoinAck",
    "JoinReq",
    "Payload",
    "PingRequest",
    "PingResponse",
    "Purpose",
    "RefusedError",
    "SecureCodec",
    "Signer",
    "Verifier",
    "decode_node_info",
    "dumps",
    "encode_node_info",
    "loads",
    "node_id_of",
    "sign",
    "x25519_private",
    "x25519_public",
]

_HOMES: Final = {
    "gossip.core.messages": ("AliveUpdate", "JoinAck", "JoinReq", "Payload", "PingRequest", "PingResponse"),
    "gossip.wire.box": ("x25519_private", "x25519_public"),
    "gossip.wire.cbor": ("CborError", "dumps", "loads"),
    "gossip.wire.codec": ("CAPACITY_LIMIT", "Code", "DatagramError", "decode_node_info", "encode_node_info"),
    "gossip.wire.identity": ("PUBLIC_KEY_BYTES", "Purpose", "Signer", "Verifier", "node_id_of", "sign"),
    "gossip.wire.secure_codec": ("RefusedError", "SECRETS_BYTES", "SecureCodec"),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip.wire' has no attribute {name!r}")
