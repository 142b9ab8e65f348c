"""Codes, field limits and errors of datagrams.

The RFC names codes and fields and leaves the spelling of bodies open. A datagram is one code byte and one CBOR array in
the order of the message's fields, and nothing behind it:

    node info     a byte string that holds [node id, packed address, port, generation, number, capacity,
                  metadata, credential]
    address       [packed IPv4 or IPv6, port]
    incarnation   generation, number (two fields in place)
    update        [0, node info]  |  [1 or 2, node id, generation, number, accuser]
                  |  [3, node id, generation, number, proof of its departure]
    payload       [[update ...], capacity, peer count, [node info ...], [user message ...], digest of the keyring]
    user message        [0, user message id, name, body]  |  [1, user message id, name, body, address, timeout in ms]
    user message id     [Lamport time, origin's node id, origin's generation]
    keyring     [used at, which key is the primary, [[since, key, retired] ...]]  (and the era, unless it is 0)
    keyring updates      [keyring, teller's node id, public key and signature]

Each value has exactly one encoding, so that what is signed, compared or counted has one form. Infos travel as wrapped
bytes because the same few are told again and again: their bytes are looked up, not read anew each time (COSE wraps what
it signs for the same reason).
"""

from enum import Enum, IntEnum
from typing import Final

INCARNATION_LIMIT: Final = (1 << 63) - 1
SEQUENCE_LIMIT: Final = (1 << 64) - 1
CAPACITY_LIMIT: Final = (1 << 32) - 1
ERROR_CODE_LIMIT: Final = (1 << 64) - 1
"""The RFC gives an error code eight bytes."""
TTL_LIMIT: Final = 255
PORT_LIMIT: Final = 65_535
PACKED_ADDRESS_BYTES: Final = (4, 16)
DOMAIN_LIMIT_CHARACTERS: Final = 32
ETAG_LIMIT_BYTES: Final = 256
AUTH_LIMIT_BYTES: Final = 64
PROOF_LIMIT_BYTES: Final = 128
UPDATES_LIMIT: Final = 128
SAMPLE_LIMIT: Final = 64
ADDRESSES_LIMIT: Final = 64
RUMOURS_LIMIT: Final = 32
INFO_LIMIT_BYTES: Final = 1024
INFOS_REMEMBERED: Final = 1024
"""How many spellings of infos are kept in each direction, the longest unused forgotten first."""


class Code(IntEnum):
    """First byte of a datagram."""

    JOIN_REQ = 63
    JOIN_ACK = 64
    JOIN_REDIRECT = 65
    JOIN_NAK = 66
    PING_REQUEST = 67
    PING_RESPONSE = 68
    LEAVE = 69
    QUERY_REPLY = 70
    KEYRING_UPDATE = 71
    BROADCAST = 250


class DatagramError(Exception):
    """These bytes are no message (or, while encoding, this message fits no datagram)."""


class Refusal(Enum):
    """Why a datagram was dropped before the core saw it; the values are the names that operators see."""

    SHORT = "short"
    OTHER_FARM = "other-farm"
    UNKNOWN_KEY = "unknown-key"
    RETIRED_KEY = "retired-key"
    BAD_SEAL = "bad-seal"
    REPLAY = "replay"
    ECHO = "echo"
    MISADDRESSED = "misaddressed"
    MALFORMED = "malformed"
    FORGED = "forged"
