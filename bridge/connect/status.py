"""The state of a client for users and programs: JSON, metrics and the command line derive from it.

Times are seconds. A value that the client does not know is null.
"""

from collections import Counter

from bridge.api.json import Record
from bridge.core.connecting.leaves import LeafState
from consensus import CountedReason


class ClientCounter(CountedReason):
    """Counters of the client."""

    STREAMS_OPENED = "streams_opened", "streams to a leaf"
    STREAMS_FAILED = "streams_failed", "streams that could not be opened to any leaf"
    STREAMS_SILENT = "streams_silent", "streams that failed because the leaf did not reply in time"
    LEAF_CHANGES = "leaf_changes", "failed attempts to open a stream to a leaf"
    RACES = "races", "attempts at another leaf while an earlier attempt was slow"
    SESSIONS_MADE = "sessions_made", "sessions of the SAM bridge"
    SESSIONS_ENDED = "sessions_ended", "sessions that the SAM bridge ended, or that the client replaced after failures"
    SESSION_FAILURES = "session_failures", "failed attempts to make a session"
    FETCHES = "fetches", "queries of directories for the structure"
    FETCHES_FAILED = "fetches_failed", "queries without a usable structure"
    STRUCTURES_ACCEPTED = "structures_accepted", "newer structures in use"
    STRUCTURES_REFUSED = "structures_refused", "refused structures"
    CACHE_FAILURES = "cache_failures", "errors of the file that keeps the structure"


ClientCounters = Counter[ClientCounter]


class LastError:
    """The last error of a client; the parts of the client share this object."""

    def __init__(self) -> None:
        self.text: str | None = None


class ClientLeaf(Record, frozen=True, kw_only=True):
    """One leaf of the structure in use."""

    address: str
    """`.b32.i2p` address of the leaf."""
    cost: int
    """Cost of the leaf in the structure; lower is preferred."""
    ends_in_s: float
    """Seconds until its entry ends; negative if it has ended."""
    state: LeafState
    """State of the leaf, from the results of the client's own streams."""
    patience_s: float | None
    """Seconds that the client waits for the first byte of a reply; null if without limit."""
    reply_s: float | None
    """Seconds that it typically needs for the first byte of a reply."""
    successes: int
    """Streams with a reply."""
    failures: int
    """Failed attempts and streams without a reply."""
    streams: int
    """Open streams."""
    last_failure: str | None
    """The reason of its last failure."""


class DirectoryStatus(Record, frozen=True, kw_only=True):
    """One directory of the link."""

    address: str
    """`.b32.i2p` address of the directory."""
    replies: int
    """Replies with a usable structure."""
    failures: int
    """Queries without a usable structure."""
    last_failure: str | None
    """The reason of its last failure."""


class FarmStatus(Record, frozen=True, kw_only=True):
    """The state of a client of one farm."""

    address: str
    """The `.b32.i2p` address of the farm."""
    bridge: str
    """The SAM bridge in use."""
    demo: bool
    """True if a demonstration signed the structure."""
    ready: bool
    """True if the client has a session and a usable structure."""
    problem: str | None
    """The reason why the client is not ready, with the remedy."""
    published_s: int | None
    """The Unix second when the structure in use was published."""
    structure_age_s: float | None
    """Seconds since the structure in use was published."""
    structure_ends_in_s: float | None
    """Seconds until the structure in use ends; negative if it has ended."""
    leaves: tuple[ClientLeaf, ...]
    """The cheapest leaf is first."""
    directories: tuple[DirectoryStatus, ...]
    """The directories of the link."""
    sessions: int
    """Ready sessions, at most two: the client uses them in turn."""
    streams: int
    """Open streams."""
    counters: dict[str, int]
    """All counters, by name."""
    last_error: str | None
    """The last error of a session, a directory, a leaf or the cache file."""
