"""The limits, sizes and times of one server."""

from msgspec import Struct


class ServerOptions(Struct, frozen=True):
    """Limits and sizes of one server."""

    max_requests: int = 1024
    """Unanswered requests of peers; the same number of linearizable reads of clients is allowed in addition."""
    max_changes: int = 16
    """Changes of the configuration that wait for their reply; all but one are refused immediately."""
    max_urgent: int = 4096
    max_proposals: int = 4096
    max_proposal_bytes: int = 16 * 1024 * 1024
    max_backlog_bytes: int = 32 * 1024 * 1024
    batch_commands: int = 512
    batch_bytes: int = 1024 * 1024
    linger_in_flight_ms: int = 20
    """Time that a proposal may wait for the batch in flight (`batching`)."""
    linger_idle_ms: int = 4
    """Time after a batch's result for its clients to submit their next commands together (`batching`)."""
    group_bytes: int = 4 * 1024 * 1024
    apply_queue_bytes: int = 4 * 1024 * 1024
    max_reads: int = 16
    full_disk_retry_ms: int = 1_000
    snapshot_log_bytes: int = 32 * 1024 * 1024
    """Size of the log after the last snapshot that triggers a new one; well above the size of a snapshot.

    A restart applies these entries again: about 100,000 entries of 256 bytes.
    """
    snapshot_age_ms: int = 24 * 3600 * 1000
    """Age of the last snapshot that triggers a new one, if entries have been applied since."""
    snapshot_check_ms: int = 1_000
    retain_bytes: int = 256 * 1024 * 1024
    """Size of the log kept before the end of a snapshot, for followers and readers that are only slightly late."""
