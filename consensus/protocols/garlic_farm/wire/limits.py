"""Limits on the memory that a peer's messages use, and the ranges of the integers on this wire.

The document (I2P proposal 150) calls all integers unsigned. The existing implementations are in Java: their ids are
signed 32-bit integers (an unknown leader is -1), their terms and indexes signed 64-bit integers. Such a peer would read
high values as negative. The encoders and decoders here refuse these values, so that every server can store each term.
"""

from msgspec import Struct

from consensus.core.features import GARLIC_FARM

UNKNOWN_SERVER = -1
"""The destination of a reply whose sender does not know the leader."""

ID_MIN, ID_MAX = -(2**31), 2**31 - 1
LONG_MAX = 2**63 - 1


class MessageLimits(Struct, frozen=True):
    """Bounds of decoding and encoding.

    Each entry that a server of this protocol accepts must fit the wire. Otherwise a leader could accept an entry and
    never replicate it. The journal's limit is higher, because other protocols' commands have heads.
    """

    log_bytes: int = GARLIC_FARM.max_command_bytes + 2 * 2**20
    """All log entries of one request: the largest one, and a batch of small ones."""
    entry_bytes: int = GARLIC_FARM.max_command_bytes
    """The value of one log entry."""
    entries: int = 8192
    """Log entries in one request, and records in one log pack."""
    inflated_bytes: int = 16 * 2**20
    """Size limit of a decompressed log pack: the cost of a gzip bomb."""
    servers: int = 1024
    """Servers in one configuration."""
    endpoint_bytes: int = 512
    """One endpoint, such as `tcp://localhost:9001`."""


DEFAULT_LIMITS = MessageLimits()
