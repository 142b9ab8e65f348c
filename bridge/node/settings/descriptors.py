"""Limits for the connections of a node, derived from the system's limit for files and sockets (`ulimit -n`).

    limit ──minus──▶ reserve for the node's own work ──▶ shares of connections from outside

A process at its limit cannot open anything: a segment of its log, a file of /proc, a connection to another server. So
outside connections are limited to the part beyond the reserve. First the soft limit is raised, up to the hard limit and
to 2,304. The usual soft limit of 1,024 exists for programs that use `select`.
"""

import resource
from typing import Final

from msgspec import Struct

RESERVED: Final = 192
"""Storage (16), gossip (8), statistics (8), certificates and state files (16); the rest is for the node's own links and
submissions."""
_WANTED: Final = 2304
LEAST: Final = 320
"""The lowest limit: below it, unknown clients could leave too few descriptors for the farm's servers."""


class DescriptorError(Exception):
    """The system's limit is too low; the text contains the remedy."""


class DescriptorShares(Struct, frozen=True):
    """The largest number of connections of each kind. All together leave the reserve free."""

    raft_established: int
    raft_handshakes: int
    raft_unknown_waiting: int
    raft_known_waiting: int
    control_local: int
    control_remote: int
    """Connections with a token.

    The same number of further connections may be open before they send a token. Another group of this size may wait
    for their first byte.
    """
    kafka: int
    """Connections of Kafka's clients; as many further connections may wait to be accepted."""


def shares_of(limit: int) -> DescriptorShares:
    """Return the shares of a process with this limit of descriptors; raise DescriptorError."""
    if limit < LEAST:
        raise DescriptorError(
            f"this process may open {limit} files and sockets, and a node needs at least {LEAST}: raise the limit"
            f" (`ulimit -n {_WANTED}` in a shell, LimitNOFILE={_WANTED} in a systemd unit) and start again"
        )
    free = min(limit, _WANTED) - RESERVED
    full = _WANTED - RESERVED

    def share(of_full: int) -> int:
        return of_full * free // full

    return DescriptorShares(
        raft_established=share(1024),
        raft_handshakes=share(128),
        raft_unknown_waiting=share(256),
        raft_known_waiting=share(128),
        control_local=share(64),
        control_remote=share(64),
        kafka=share(128),
    )


def descriptor_shares() -> DescriptorShares:
    """Return the shares of this process after raising its soft limit, if possible; raise DescriptorError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = _WANTED
    if soft != resource.RLIM_INFINITY and soft < min(hard, _WANTED):
        soft = min(hard, _WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return shares_of(_WANTED if soft == resource.RLIM_INFINITY else soft)
