"""What each wire protocol permits, and what two servers may say to each other beyond it.

`Features` is a table, so that no protocol leaks into the core.

garlic-farm   replies in connection order, so any number of requests may be in flight; pre-vote, TimeoutNow, joint and
              learner configurations are extensions that our own servers negotiate in the handshake
              (`PeerExtensions`); no no-op entry, so the leader of a new term appends its configuration again; a
              submission's id is a member of the JSON document that it is
zmq-raft      one request per follower in flight, heartbeats too, which the transport sends again until it is answered;
              every change of the voters by a joint configuration, in which observers have no place; no message for
              pre-vote or for a transfer; a CHECKPOINT entry is the no-op, where an entry of the own term is needed; a
              command begins with its submission's id of 12 bytes and has at least one byte more; a server of another
              make ends if an append begins below its commit index, so a follower that was lost is looked for from the
              leader's end
kraft         the follower fetches, one request at a time; Vote carries a pre-vote flag (KIP-996); voters come and go
              one at a time (KIP-853), and a candidate that is no voter gets no vote unless its log goes further than
              the voter's; before KIP-853 each server is told the voters, and they stay (`KRAFT_STATIC`); any other
              server that fetches is an observer; a leader that resigns names its successors in EndQuorumEpoch; a
              LeaderChange control record is the no-op, and there are others; a record's timestamp and headers are in
              its own bytes

A wire protocol has a fixed set of messages; servers of our own make agree on more when they connect (`Extensions`). The
core learns what each handshake settled. It never sends an extension message to a peer that does not understand it, and
reaches the same end by slower means. Before the first handshake with a peer nothing is known of it; each extension says
what is then assumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from consensus.core.model import COMMAND, EntryKind, ServerId

COMMAND_LIMIT_BYTES: Final = 10 * 2**20
"""What a client's command may have, without the head that a protocol puts before it."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """What one peer understands; the default is a server that knows its protocol and nothing else."""

    pre_vote: bool = False
    """The question before a vote (`election`)."""
    transfer: bool = False
    """TimeoutNow, and the flag of a vote request that was caused by one (`transfer`)."""
    configurations: bool = False
    """Joint configurations, and learners in them (`membership`)."""
    lease_ms: int | None = None
    """How long it refuses other candidates after a contact of the leader, and after a restart; None: no promise."""


NO_EXTENSIONS = Extensions()


class Strategy(Enum):
    """Whether the leader sends entries, or the followers fetch them (`replication`)."""

    APPEND = "append"
    """The leader sends them."""
    FETCH = "fetch"
    """The followers fetch them."""


class FirstEntries(Enum):
    """What a new leader appends, to have an entry of its own term that it may commit (Raft sections 5.4.2 and 8)."""

    CONFIGURATION = "configuration"
    """Its configuration again: the protocol has no no-op."""
    NO_OP = "no-op"
    """The no-op. In a log without members they follow it, because a server that joins learns them from nowhere else;
    between the two stand the protocol's own records, if it has any (`LeaderRecords`)."""
    NO_OP_ALONE = "no-op-alone"
    """The no-op. The log does not have the first members: each server is told them when it is made."""
    NO_OP_IF_NEEDED = "no-op-if-needed"
    """The no-op if something of an older term is not committed. Otherwise as soon as a read or a change waits for it.
    The log does not have the first members: each server is told them when it is made."""


class JointConsensus(Enum):
    """When the configuration changes by C_old,new (`membership`)."""

    NEVER = "never"
    FOR_SEVERAL = "for-several"
    """Where C_old and C_new differ by more than one voter, if all peers understand it."""
    ALWAYS = "always"


def _no_head() -> bytes:
    return b""


def _as_it_is(server_id: ServerId) -> ServerId:
    return server_id


@dataclass(frozen=True, slots=True)
class LeaderRecords:
    """What a protocol has in the entries that a new leader makes by itself. The core has no clock of the day."""

    head: Callable[[], bytes] = _no_head
    """The head of its no-op and of the members (`entry_data`), such as the time."""
    controls: Callable[[], tuple[bytes, ...]] = tuple
    """Data of the control records between the no-op and the first members."""
    named: Callable[[ServerId], ServerId] = _as_it_is
    """How its no-op names a server. What the wire does not carry must not be in the leader's own entry either: its
    followers would read another one."""


@dataclass(frozen=True, slots=True)
class Features:
    """One protocol's row of the table."""

    name: str
    replication: Strategy
    """Whether the leader sends entries, or the followers fetch them."""
    pre_vote: bool
    """Whether servers may negotiate pre-vote at all."""
    transfer: bool
    """Whether servers may negotiate TimeoutNow; without it a leader abdicates and abstains (`transfer`)."""
    first_entries: FirstEntries
    """What a new leader appends."""
    joint: JointConsensus
    """Whether a configuration may be joint; without it the voters change one at a time."""
    observers_in_configuration: bool
    """Whether a configuration may name learners."""
    votes_for_members_only: bool
    """Whether a candidate outside the voter's configuration is refused, unless it may know a later configuration."""
    command_head_bytes: int
    """Bytes at the beginning of each command that are the protocol's, such as a request id (`entry_data`); a command
    with a head has at least one byte more."""
    control_records: bool
    """Whether the log may have records of the protocol's own beside configurations and no-ops."""
    max_requests_in_flight: int
    """Requests that carry or ask for entries and wait for an answer on one connection; the tuning may ask for less.
    If a leader may send one only, heartbeats and chunks of a snapshot count as well."""
    probes_from_the_end: bool
    """Whether a follower that did not answer is asked from the leader's end on, not from where its log last matched. It
    may have committed more than it could tell, and must never be sent an append that begins below that."""

    @property
    def max_command_bytes(self) -> int:
        """A command with its head: what any server of the protocol stores, and its wire carries."""
        return self.command_head_bytes + COMMAND_LIMIT_BYTES

    def kind_of(self, commands: Sequence[bytes], *, control: bool) -> EntryKind:
        """The kind of entry that a proposal becomes; raises `ValueError` if the protocol's log cannot have it."""
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
"""Voters that do not change, of which the log says nothing (kraft.version 0)."""
