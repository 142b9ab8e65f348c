from .box import x25519_private as x25519_private, x25519_public as x25519_public
from .cbor import CborError as CborError, dumps as dumps, loads as loads
from .codec import (
    CAPACITY_LIMIT as CAPACITY_LIMIT,
    Code as Code,
    DatagramError as DatagramError,
    decode_node_info as decode_node_info,
    encode_node_info as encode_node_info,
)
from .identity import (
    PUBLIC_KEY_BYTES as PUBLIC_KEY_BYTES,
    SignatureUse as SignatureUse,
    Signer as Signer,
    Verifier as Verifier,
    node_id_of as node_id_of,
    sign as sign,
)
from .seal import RefusedError as RefusedError
from .secure_codec import SECRETS_BYTES as SECRETS_BYTES, SecureCodec as SecureCodec
