"""How many connections a node takes, out of how many files and sockets the system lets it open (`ulimit -n`).

    limit ──minus──▶ reserve for the node's own work ──▶ shares of what connects from outside

A process at its limit can open nothing: no segment of its log, no file of /proc, no connection to another server. So
what strangers can take is limited to what is left beyond the reserve. The soft limit is raised as far as the hard one
allows first, since the usual 1,024 is meant for programs that use `select`.
"""

import resource
from dataclasses import dataclass
from typing import Final

RESERVED: Final = 192
"""Storage (16), gossip (8), statistics (8), certificates and state files (16), own links and submissions: the rest."""
_WANTED: Final = 2304
LEAST: Final = 320
"""With less there would be no room for a farm's own servers beside strangers."""


class DescriptorError(Exception):
    """The system's limit is too low; the text says what to do."""


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """At most so many connections of each kind. All together they leave the reserve alone."""

    raft_established: int
    raft_handshakes: int
    raft_strangers_waiting: int
    raft_known_waiting: int
    control_local: int
    control_remote: int
    """With a token; as many again are without one yet, and as many wait for their first byte."""
    kafka: int
    """Of Kafka's clients; as many again wait to be taken."""


def shares_of(limit: int) -> DescriptorShares:
    """What a process that may open `limit` descriptors gives to whom; raises DescriptorError."""
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
        raft_strangers_waiting=share(256),
        raft_known_waiting=share(128),
        control_local=share(64),
        control_remote=share(64),
        kafka=share(128),
    )


def descriptor_shares() -> DescriptorShares:
    """The shares of this process, whose soft limit is raised first if it may be; raises DescriptorError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = _WANTED
    if soft != resource.RLIM_INFINITY and soft < min(hard, _WANTED):
        soft = min(hard, _WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return shares_of(_WANTED if soft == resource.RLIM_INFINITY else soft)
