"""What each wire protocol permits, and what two servers may say to each other beyond it.

`Features` is a table, so that no protocol leaks into the core.

garlic-farm   replies in connection order, so any number of requests may be in flight; pre-vote, TimeoutNow, joint and
              learner configurations are extensions that our own servers negotiate in the handshake
              (`PeerExtensions`); no no-op entry, so the leader of a new term appends its configuration again; a
              submission's id is a member of the JSON document that it is
zmq-raft      one request per follower in flight; joint configurations of voters, in which observers have no place;
              no message for pre-vote or for a transfer; a CHECKPOINT entry is the no-op; a command
              begins with its submission's id of 12 bytes
kraft         the follower fetches, one request at a time; Vote carries a pre-vote flag (KIP-996); voters come and go
              one at a time (KIP-853), and a candidate that is no voter gets no vote unless its log goes further than
              the voter's; any other server that fetches is an observer; a leader that resigns names its successors in
              EndQuorumEpoch; a LeaderChange control record is the no-op, and there are others; a record's timestamp
              and headers are in its own bytes

A wire protocol has a fixed set of messages; servers of our own make agree on more when they connect (`Extensions`). The
core learns what each handshake settled. It never sends an extension message to a peer that does not understand it, and
reaches the same end by slower means. Before the first handshake with a peer nothing is known of it; each extension says
what is then assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from consensus.core.model import COMMAND, EntryKind


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
    no_op: bool
    """Whether the protocol has an entry without content; without it a new leader appends its configuration again."""
    joint: bool
    """Whether a configuration may be joint; without it the voters change one at a time."""
    observers_in_configuration: bool
    """Whether a configuration may name learners."""
    votes_for_members_only: bool
    """Whether a candidate outside the voter's configuration is refused, unless it may know a later configuration."""
    command_head_bytes: int
    """Bytes at the beginning of each command that are the protocol's, such as a request id (`entry_data`)."""
    control_records: bool
    """Whether the log may have records of the protocol's own beside configurations and no-ops."""
    max_requests_in_flight: int
    """Requests that carry or ask for entries and wait for an answer on one connection; the tuning may ask for less."""

    def kind_of(self, commands: Sequence[bytes], *, control: bool) -> EntryKind:
        """The kind of entry that a proposal becomes; raises `ValueError` if the protocol's log cannot have it."""
        if control:
            if not self.control_records:
                raise ValueError(f"{self.name} has no control records, so none can be proposed")
            return EntryKind.CONTROL
        if self.command_head_bytes and min(map(len, commands), default=0) < self.command_head_bytes:
            raise ValueError(f"a command of {self.name} begins with {self.command_head_bytes} bytes of its own")
        return COMMAND


GARLIC_FARM = Features(
    name="garlic-farm",
    replication=Strategy.APPEND,
    pre_vote=True,
    transfer=True,
    no_op=False,
    joint=True,
    observers_in_configuration=True,
    votes_for_members_only=False,
    command_head_bytes=0,
    control_records=False,
    max_requests_in_flight=64,
)

ZMQ_RAFT = Features(
    name="zmq-raft",
    replication=Strategy.APPEND,
    pre_vote=False,
    transfer=False,
    no_op=True,
    joint=True,
    observers_in_configuration=False,
    votes_for_members_only=False,
    command_head_bytes=12,
    control_records=False,
    max_requests_in_flight=1,
)

KRAFT = Features(
    name="kraft",
    replication=Strategy.FETCH,
    pre_vote=True,
    transfer=False,
    no_op=True,
    joint=False,
    observers_in_configuration=False,
    votes_for_members_only=True,
    command_head_bytes=0,
    control_records=True,
    max_requests_in_flight=1,
)
