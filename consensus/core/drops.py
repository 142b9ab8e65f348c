"""Reasons to drop a message or an event; each reason has a counter.

The code that finds a reason counts it. The value of a member identifies it in status, view and metrics. Its `meaning`
is the text in the reference of metrics. Identifiers are separate from the texts, so that a better text does not rename
a counter.
"""

from enum import StrEnum
from typing import Any


class CountedReason(StrEnum):
    """A reason with a counter: the identifier, and a plural noun phrase with its meaning."""

    meaning: str

    def __new__(cls, identifier: str, meaning: str) -> Any:
        """Make a member whose value is the identifier; store the meaning in it."""
        create: Any = str.__new__
        member: Any = create(cls, identifier)
        member._value_ = identifier
        member.meaning = meaning
        return member


class Drop(CountedReason):
    """Messages and events that Raft does not accept."""

    AMBIGUOUS_FETCH_REPLY = "ambiguous_fetch_reply", "fetch replies with two results"
    ANNOUNCEMENT_IN_OTHER_NAME = "announcement_in_other_name", "announcements in another server's name"
    APPEND_AGAINST_COMMIT = "append_against_commit", "appends that contradict committed entries"
    APPEND_BACKLOG_FULL = "append_backlog_full", "appends received with a full backlog of unwritten entries"
    APPEND_COMMAND_HEAD = "append_command_head", "appends with an incomplete command"
    APPEND_DISK_FULL = "append_disk_full", "appends received with a full disk"
    APPEND_IN_OTHER_NAME = "append_in_other_name", "appends in another server's name"
    APPEND_MESSAGE_AT_FETCH_LEADER = "append_message_at_fetch_leader", "messages that only an appending leader accepts"
    APPEND_POSITION = "append_position", "appends at an impossible position"
    APPEND_REJECTED_BY_STATE_MACHINE = (
        "append_rejected_by_state_machine",
        "appends whose entries the state machine rejects",
    )
    APPEND_REPLY_BEYOND_REQUEST = "append_reply_beyond_request", "append replies beyond the end of their request"
    APPEND_REPLY_RANGE = "append_reply_range", "append replies with a number out of range"
    APPEND_TERM_ORDER = "append_term_order", "appends with terms out of order"
    CHUNK_BEYOND_SNAPSHOT = "chunk_beyond_snapshot", "chunks beyond the end of their snapshot"
    COMMIT_RANGE = "commit_range", "messages with a commit index out of range"
    EMPTY_SNAPSHOT_CHUNK = "empty_snapshot_chunk", "empty snapshot chunks"
    ENTRY_CONFIGURATION = "entry_configuration", "entries with an impossible configuration"
    ENTRY_NO_OP = "entry_no_op", "entries with an impossible no-op"
    FETCH_IN_OTHER_NAME = "fetch_in_other_name", "fetches in another server's name"
    FETCH_MESSAGE_AT_APPEND_LEADER = (
        "fetch_message_at_append_leader",
        "messages that only a leader with fetching followers accepts",
    )
    FETCH_POSITION = "fetch_position", "fetches from an impossible position"
    FETCH_RANGE = "fetch_range", "fetches with a number out of range"
    FETCH_REPLY_AGAINST_COMMIT = "fetch_reply_against_commit", "fetch replies that contradict committed entries"
    FETCH_REPLY_COMMAND_HEAD = "fetch_reply_command_head", "fetch replies with an incomplete command"
    FETCH_REPLY_DISK_FULL = "fetch_reply_disk_full", "fetch replies received with a full disk"
    FETCH_REPLY_DIVERGENCE = "fetch_reply_divergence", "fetch replies with an impossible divergence"
    FETCH_REPLY_FOR_OTHER_POSITION = "fetch_reply_for_other_position", "fetch replies for another end of the log"
    FETCH_REPLY_SNAPSHOT = "fetch_reply_snapshot", "fetch replies with an impossible snapshot"
    FETCH_REPLY_TERM_ORDER = "fetch_reply_term_order", "fetch replies with terms out of order"
    OLDER_TERM_REPLY = "older_term_reply", "replies of an older term"
    OTHER_STRATEGY = "other_strategy", "messages of the other strategy of replication"
    OUTSIDE_LEADER_OF_LATER_TERM = (
        "outside_leader_of_later_term",
        "messages of a leader outside the configuration, in a later term than the active leader's",
    )
    OVERTAKEN_HEARTBEAT_REFUSAL = "overtaken_heartbeat_refusal", "refusals of heartbeats that overtook entries"
    OWN_NAME = "own_name", "messages in this server's own name"
    REFUSAL_OF_ACKNOWLEDGED_ENTRIES = (
        "refusal_of_acknowledged_entries",
        "refusals by followers that lost acknowledged entries",
    )
    REPLY_OF_NON_MEMBER = "reply_of_non_member", "replies from servers outside the configuration"
    REPLY_OF_NON_VOTER = "reply_of_non_voter", "replies from servers without a vote"
    SECOND_LEADER_ANNOUNCEMENT = "second_leader_announcement", "announcements of a second leader of the term"
    SECOND_LEADER_APPEND = "second_leader_append", "appends from a second leader of the term"
    SECOND_LEADER_FETCH_REPLY = "second_leader_fetch_reply", "fetch replies from a second leader of the term"
    SNAPSHOT_ALREADY_COMMITTED = "snapshot_already_committed", "snapshots of entries already committed here"
    SNAPSHOT_CHECKSUM = "snapshot_checksum", "snapshots with a wrong checksum"
    SNAPSHOT_CHUNK_DISK_FULL = "snapshot_chunk_disk_full", "snapshot chunks received with a full disk"
    SNAPSHOT_CHUNK_OFFSET = "snapshot_chunk_offset", "snapshot chunks at a wrong offset"
    SNAPSHOT_CHUNK_RANGE = "snapshot_chunk_range", "snapshot chunks with a number out of range"
    SNAPSHOT_CHUNK_TOO_EARLY = (
        "snapshot_chunk_too_early",
        "snapshot chunks received before the previous chunk was durable",
    )
    SNAPSHOT_CONFIGURATION = "snapshot_configuration", "snapshots with an impossible configuration"
    SNAPSHOT_IN_OTHER_NAME = "snapshot_in_other_name", "snapshots in another server's name"
    SNAPSHOT_OF_POSITION = "snapshot_of_position", "snapshots of an impossible position"
    SNAPSHOT_POSITION = "snapshot_position", "messages about an impossible position in a snapshot"
    SNAPSHOT_REJECTED_BY_STATE_MACHINE = (
        "snapshot_rejected_by_state_machine",
        "snapshots that the state machine rejects",
    )
    SNAPSHOT_REPLY_RANGE = "snapshot_reply_range", "snapshot replies with a number out of range"
    SNAPSHOT_TOO_LARGE = "snapshot_too_large", "snapshots above the size limit"
    STALE_APPEND_REPLY = "stale_append_reply", "replies to an append that is no longer pending"
    STALE_ENDORSEMENT = "stale_endorsement", "replies to an announcement that is no longer pending"
    STALE_FETCH_REPLY = "stale_fetch_reply", "replies to a fetch that is no longer pending"
    STALE_SNAPSHOT_REPLY = "stale_snapshot_reply", "replies to a snapshot chunk that is no longer pending"
    STALE_TRANSFER_REPLY = "stale_transfer_reply", "replies to a transfer that is no longer pending"
    STALE_VOTE_REPLY = "stale_vote_reply", "replies to a vote request that is no longer pending"
    TERM_RANGE = "term_range", "messages with a term out of range"
    TERM_TOO_FAR_AHEAD = "term_too_far_ahead", "messages of a term too far ahead to adopt in one step"
    TOO_MANY_OBSERVERS = "too_many_observers", "observers above the limit"
    TOO_MANY_PEER_EXTENSIONS = "too_many_peer_extensions", "handshakes of peers above the limit"
    TRANSFER_IN_OTHER_NAME = "transfer_in_other_name", "transfers in another server's name"
    UNMATCHED_ENTRIES_READ = "unmatched_entries_read", "entries read from disk after their request had ended"
    UNMATCHED_REPLY = "unmatched_reply", "replies without a pending request"
    UNMATCHED_SNAPSHOT_CHECK = "unmatched_snapshot_check", "snapshots checked after their request had ended"
    UNMATCHED_SNAPSHOT_READ = "unmatched_snapshot_read", "snapshots read from disk after their request had ended"
    UNNEEDED_SNAPSHOT = "unneeded_snapshot", "snapshots of entries already covered"
    UNNEEDED_SNAPSHOT_REQUEST = (
        "unneeded_snapshot_request",
        "requests for a snapshot of entries already covered or not yet applied",
    )
    UNREQUESTED_SNAPSHOT_CHUNK = "unrequested_snapshot_chunk", "unrequested snapshot chunks"
    UNSUPPORTED_CONTROL_RECORD = "unsupported_control_record", "control records, which the protocol does not have"
    VOTE_REQUEST_IN_OTHER_NAME = "vote_request_in_other_name", "vote requests in another server's name"
    VOTE_REQUEST_POSITION = "vote_request_position", "vote requests with an impossible position"
