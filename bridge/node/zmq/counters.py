"""Counters of the farm's ØMQ endpoint: the results of updates.

They are declared apart from the code that counts, because that code needs the package of the extra.
"""

from consensus import CountedReason


class UpdateResult(CountedReason):
    """Updates of clients by their result."""

    COMMITTED = "committed", "updates that the farm has committed"
    EXPIRED = "expired", "updates with a request id that is too old, or too far ahead of log time"
    INVALID = "invalid", "updates that are not a valid entry"
    OUT_OF_SCOPE = "out_of_scope", "updates of a client without the necessary scope"
    READ_ONLY = "read_only", "updates at a read-only endpoint"
    SHARE_FULL = "share_full", "updates beyond this node's share of request ids: their clients wait and repeat them"
    UNKNOWN = "unknown", "updates whose result is unknown: their clients repeat them under the same id"
