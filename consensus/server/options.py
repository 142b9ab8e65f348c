"""The limits and sizes of one server: everything that it queues, holds or joins is bounded by one of these."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits and sizes of one server."""

    max_requests: int = 1024
    """Of peers, unanswered; as many linearizable reads of clients beside them."""
    max_changes: int = 16
    """Changes of the configuration that wait for their answer; all but one are refused at once."""
    max_urgent: int = 4096
    max_proposals: int = 4096
    max_proposal_bytes: int = 16 * 1024 * 1024
    max_backlog_bytes: int = 32 * 1024 * 1024
    batch_commands: int = 512
    batch_bytes: int = 1024 * 1024
    linger_in_flight_ms: int = 20
    """How long a proposal may wait for the batch that is in flight (`batching`)."""
    linger_idle_ms: int = 4
    """How long the clients of an answered batch may take to come back together (`batching`)."""
    group_bytes: int = 4 * 1024 * 1024
    apply_queue_bytes: int = 4 * 1024 * 1024
    max_reads: int = 16
    max_log_streams: int = 64
    """Open streams of committed entries (`log_stream`): each is a task that keeps items for its consumer, 320 KiB
    with the defaults, and all of them share the `max_reads` reads that may wait for the disk."""
    full_disk_retry_ms: int = 1_000
    snapshot_log_bytes: int = 64 * 1024 * 1024
    """A snapshot is taken when the log behind the last one has grown to this; well above the size of a snapshot."""
    snapshot_age_ms: int = 24 * 3600 * 1000
    """… or when this long ago the last one was taken, if anything has been applied since."""
    snapshot_check_ms: int = 1_000
    retain_bytes: int = 256 * 1024 * 1024
    """How much of the log stays behind a snapshot, for followers and readers that are only a little late."""
