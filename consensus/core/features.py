"""The features of each wire protocol, and the extensions that two servers of this project negotiate.

One `Features` describes one protocol, so that the core contains no code for a single protocol.
docs/reference/protocols.md compares the protocols.

A wire protocol has a fixed set of messages; two servers of this project negotiate extensions when they connect
(`Extensions`). The core never sends an extension message to a peer whose handshake excludes that extension, and uses
slower messages instead. Before the first handshake with a peer, the core assumes that the peer supports the protocol's
pre-vote and joint configurations. It does not assume TimeoutNow or a promised lease.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from consensus.core.model import COMMAND, EntryKind, ServerId

COMMAND_LIMIT_BYTES: Final = 10 * 2**20
"""Size limit of a client's command, without the head that a protocol puts before it."""


class Extensions(Struct, frozen=True):
    """The extensions of one peer; by default none."""

    pre_vote: bool = False
    """Pre-vote: the request before a vote request (`election`)."""
    transfer: bool = False
    """TimeoutNow, and the flag of the vote request that follows it (`transfer`)."""
    configurations: bool = False
    """Joint configurations, and learners in them (`membership`)."""
    lease_ms: int | None = None
    """For this time the peer refuses other candidates after leader contact and after a restart; None: no promise."""


NO_EXTENSIONS = Extensions()


class Strategy(Enum):
    """Direction of replication: the leader sends entries, or the followers fetch them (`replication`)."""

    APPEND = "append"
    """The leader sends entries."""
    FETCH = "fetch"
    """The followers fetch entries."""


class FirstEntries(Enum):
    """First entries of a new leader, which needs a committed entry of its term (Raft sections 5.4.2 and 8)."""

    CONFIGURATION = "configuration"
    """The current configuration again, because the protocol does not have a no-op."""
    NO_OP = "no-op"
    """The no-op. If the log lacks a configuration, the current one follows: a joining server gets it only from the log.
    The protocol's control records, if any, come between the two (`LeaderRecords`).
    """
    NO_OP_ALONE = "no-op-alone"
    """The no-op alone. The log does not contain the first configuration: each server gets it when it is created."""
    NO_OP_IF_NEEDED = "no-op-if-needed"
    """The no-op: immediately if an entry is uncommitted or the configuration is joint, otherwise when a read or a
    change needs it. The log does not contain the first configuration: each server gets it when it is created.
    """


class JointConsensus(Enum):
    """Use of the joint configuration C_old,new for a change (`membership`)."""

    NEVER = "never"
    FOR_SEVERAL = "for-several"
    """If C_old and C_new differ by more than one voter, and all peers support it."""
    ALWAYS = "always"


def _no_head() -> bytes:
    return b""


def _as_it_is(server_id: ServerId) -> ServerId:
    return server_id


class LeaderRecords(Struct, frozen=True):
    """Protocol data in a new leader's first entries, such as the time: the core does not have a wall clock."""

    head: Callable[[], bytes] = _no_head
    """Returns the head of the no-op and of the configuration entry (`entry_data`)."""
    controls: Callable[[], tuple[bytes, ...]] = tuple
    """Returns the data of the control records between the no-op and the first configuration."""
    named: Callable[[ServerId], ServerId] = _as_it_is
    """Returns the name of a server as the no-op contains it.

    The function omits values that the wire does not carry. Otherwise the followers would store another entry than the
    leader.
    """


class Features(Struct, frozen=True):
    """The features of one protocol."""

    name: str
    replication: Strategy
    """Direction of replication: the leader sends entries, or the followers fetch them."""
    pre_vote: bool
    """True if servers may negotiate pre-vote."""
    transfer: bool
    """True if servers may negotiate TimeoutNow.

    Without it, a leader that hands over its leadership steps down and does not campaign for some time (`transfer`).
    """
    first_entries: FirstEntries
    """First entries of a new leader."""
    joint: JointConsensus
    """Use of joint configurations. With `NEVER`, voters can change only one at a time."""
    observers_in_configuration: bool
    """True if a configuration may name learners."""
    votes_for_members_only: bool
    """True if voters refuse a candidate outside their configuration, unless its log is more up to date."""
    command_head_bytes: int
    """Bytes at the beginning of each command that belong to the protocol, such as a request id (`entry_data`). If there
    are any, the command has at least one more byte."""
    control_records: bool
    """True if the log may have records of the protocol in addition to configurations and no-ops."""
    max_requests_in_flight: int
    """Limit of unanswered requests that carry or fetch entries, on one connection; `Options.in_flight` may be lower. If
    the limit is one, heartbeats and chunks of a snapshot count as well.
    """
    probes_from_the_end: bool
    """True if a leader probes an unresponsive follower from the end of the leader's log, not from the last known match.

    The follower may have committed more than it has reported, and must never receive an append that begins below its
    commit index.
    """

    @property
    def max_command_bytes(self) -> int:
        """Size limit of a command with its head, for storage and for the wire."""
        return self.command_head_bytes + COMMAND_LIMIT_BYTES

    def kind_of(self, commands: Sequence[bytes], *, control: bool) -> EntryKind:
        """Return the kind of entry for a proposal; raises `ValueError` if the protocol's log cannot have it."""
        if control:
            if not self.control_records:
                raise ValueError(f"{self.name} does not support control records")
            return EntryKind.CONTROL
        head_bytes = self.command_head_bytes
        if head_bytes and min(map(len, commands), default=0) <= head_bytes:
            raise ValueError(f"a command of {self.name} needs more than its {head_bytes} head bytes")
        return COMMAND


GARLIC_FARM = Features(
    name="garlic-farm",
    replication=Strategy.APPEND,
    pre_vote=True,
    transfer=True,
    first_entries=FirstEntries.CONFIGURATION,
    joint=JointConsensus.FOR_SEVERAL,
    observers_in_configuration=True,
    votes_for_members_only=False,
    command_head_bytes=0,
    control_records=False,
    max_requests_in_flight=64,
    probes_from_the_end=False,
)

ZMQ_RAFT = Features(
    name="zmq-raft",
    replication=Strategy.APPEND,
    pre_vote=False,
    transfer=False,
    first_entries=FirstEntries.NO_OP_IF_NEEDED,
    joint=JointConsensus.ALWAYS,
    observers_in_configuration=False,
    votes_for_members_only=False,
    command_head_bytes=12,
    control_records=False,
    max_requests_in_flight=1,
    probes_from_the_end=True,
)

KRAFT = Features(
    name="kraft",
    replication=Strategy.FETCH,
    pre_vote=True,
    transfer=False,
    first_entries=FirstEntries.NO_OP,
    joint=JointConsensus.NEVER,
    observers_in_configuration=False,
    votes_for_members_only=True,
    command_head_bytes=0,
    control_records=True,
    max_requests_in_flight=1,
    probes_from_the_end=False,
)

KRAFT_STATIC = replace(KRAFT, name="kraft-static", first_entries=FirstEntries.NO_OP_ALONE)
"""KRaft with voters that never change and are absent from the log (kraft.version 0)."""
