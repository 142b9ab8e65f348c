"""The settings of one replica: times, batch sizes and the limits that bound its memory.

Raft needs broadcastTime << electionTimeout << MTBF (Raft section 5.6). Followers draw their timeout from
[`election_timeout_min_ms`, `election_timeout_max_ms`]. Each of six policies has a time (`PolicyTimes`); its default
follows from the minimum election timeout. These relations hold:

    keep-alive < check-quorum      otherwise a leader resigns while the disks of its followers write
    heartbeat < stickiness         otherwise a follower votes for candidates between two heartbeats
    stickiness <= minimum          otherwise a candidate of the next election is refused
    clock bound < lease            otherwise no lease lasts
    lease <= stickiness            otherwise voters elect a second leader while the first answers reads (unsafe)
"""

from msgspec import Struct

from consensus.core.model import MAX_NUMBER

STALLED_TIMEOUTS = 5
"""The derived stall timeout, in minimum election timeouts.

One minimum timeout would be too short: disks often pause for a second or two, and an election takes longer than such a
pause.
"""


class PolicyTimes(Struct, frozen=True, kw_only=True):
    """Times of the policies around elections; None: derived from the minimum election timeout."""

    leader_stickiness_ms: int | None = None
    """A server refuses candidates for this time after contact with the leader (section 6). Default: the minimum."""
    check_quorum_ms: int | None = None
    """A leader resigns after this time without contact with a majority. Default: the minimum."""
    lease_ms: int | None = None
    """The length of a lease before the clock bound is subtracted. Default: the leader stickiness."""
    stall_timeout_ms: int | None = None
    """A leader resigns if proposals wait and nothing commits for this time. Default: five times the minimum.

    A leader whose disk hangs still exchanges heartbeats, so check-quorum alone would keep it.
    """
    catch_up_round_ms: int | None = None
    """A new server has caught up once a round of replication takes at most this time. Default: the minimum."""
    keep_alive_ms: int | None = None
    """The time between the fetches of a follower whose disk writes. Default: a third of the minimum."""


class Options(Struct, frozen=True):
    """Times in milliseconds, sizes in bytes or entries."""

    election_timeout_min_ms: int
    election_timeout_max_ms: int
    heartbeat_ms: int
    retry_ms: int
    """Timeout of a request to a follower; then it counts as lost."""
    commit_notice_ms: int = 0
    """Time that an idle follower may wait for a higher commit index. Under load the next append or fetch reply carries
    it; a separate message would have the cost of a message with entries.
    """
    max_entries_per_append: int = 512
    max_bytes_per_append: int = 256 * 1024
    """Size limit of the entries in an append; a single entry may exceed it."""
    in_flight: int = 16
    """Maximum number of appends with entries to one follower without a reply."""
    tail_entries: int = 8192
    """Entries kept in memory, and up to an eighth more; older ones are read back from storage. Entries that are not
    durable yet always stay.
    """
    tail_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_bytes: int = 256 * 1024
    """Size limit of a chunk. One chunk is under way to a follower, so a slow follower determines the rate."""
    max_snapshot_bytes: int = 4 * 1024 * 1024 * 1024
    """The largest snapshot that a follower takes from its leader."""
    catch_up_rounds: int = 10
    """Limit of the rounds for a new server that catches up before it votes."""
    catch_up_stall_ms: int = 30_000
    """Maximum time without progress before a new server is refused."""
    max_pending_proposals: int = 4096
    max_pending_bytes: int = 16 * 1024 * 1024
    """Bytes of commands that wait for commitment; beyond either limit a proposal is refused as busy."""
    max_pending_reads: int = 4096
    """Linearizable reads that wait for their round; beyond it a read is refused as busy."""
    max_term: int = MAX_NUMBER
    """The greatest term that fits into the protocol's messages and files.

    In this term servers no longer campaign: with a greater term a server could not send its term, or read its own file.
    """
    lease_clock_bound_ms: int | None = None
    """Switches leases on (`reads`): bound on the drift between two servers' monotonic clocks during one lease. None:
    every read needs a majority. A leader has a lease only if every voter has promised in the handshake to keep one
    (`Extensions.lease_ms`).
    """

    check_invariants: bool = False
    """True to check all invariants after every step, not only a few numbers (`invariants`).

    The check takes longer than most steps, so only the tests and the simulator use it.
    """

    policies: PolicyTimes = PolicyTimes()

    @property
    def leader_stickiness_ms(self) -> int:
        """`PolicyTimes.leader_stickiness_ms`, given or derived."""
        given_ms = self.policies.leader_stickiness_ms
        return self.election_timeout_min_ms if given_ms is None else given_ms

    @property
    def check_quorum_ms(self) -> int:
        """`PolicyTimes.check_quorum_ms`, given or derived."""
        given_ms = self.policies.check_quorum_ms
        return self.election_timeout_min_ms if given_ms is None else given_ms

    @property
    def lease_ms(self) -> int:
        """`PolicyTimes.lease_ms`, given or derived."""
        given_ms = self.policies.lease_ms
        return self.leader_stickiness_ms if given_ms is None else given_ms

    @property
    def stall_timeout_ms(self) -> int:
        """`PolicyTimes.stall_timeout_ms`, given or derived."""
        given_ms = self.policies.stall_timeout_ms
        return STALLED_TIMEOUTS * self.election_timeout_min_ms if given_ms is None else given_ms

    @property
    def catch_up_round_ms(self) -> int:
        """`PolicyTimes.catch_up_round_ms`, given or derived."""
        given_ms = self.policies.catch_up_round_ms
        return self.election_timeout_min_ms if given_ms is None else given_ms

    @property
    def keep_alive_ms(self) -> int:
        """`PolicyTimes.keep_alive_ms`, given or derived."""
        given_ms = self.policies.keep_alive_ms
        return self.election_timeout_min_ms // 3 if given_ms is None else given_ms

    @property
    def campaign_slot_ms(self) -> int:
        """The length of one voter's slot to campaign after the end of the leader's process."""
        return min(self.heartbeat_ms, self.election_timeout_min_ms // 4)

    @property
    def lease_promise_ms(self) -> int | None:
        """For this time the server promises to refuse candidates, even after a restart; None with leases off."""
        return None if self.lease_clock_bound_ms is None else self.leader_stickiness_ms

    def __post_init__(self) -> None:
        """Refuse settings that prevent the election of a leader or make an elected leader resign."""
        if not 0 < self.heartbeat_ms < self.election_timeout_min_ms <= self.election_timeout_max_ms:
            raise ValueError(
                f"raft timing must satisfy 0 < heartbeat < election timeout (min <= max), got heartbeat "
                f"{self.heartbeat_ms} ms, election timeout {self.election_timeout_min_ms} to "
                f"{self.election_timeout_max_ms} ms; raise the election timeout or lower the heartbeat"
            )
        sizes = (
            self.retry_ms,
            self.max_entries_per_append,
            self.max_bytes_per_append,
            self.in_flight,
            self.tail_entries,
            self.tail_bytes,
            self.snapshot_chunk_bytes,
            self.max_snapshot_bytes,
            self.catch_up_rounds,
            self.catch_up_stall_ms,
            self.max_pending_proposals,
            self.max_pending_bytes,
            self.max_pending_reads,
            self.stall_timeout_ms,
            self.catch_up_round_ms,
        )
        if min(sizes) < 1:
            raise ValueError(f"every limit of the raft tuning must be at least 1, got {self}")
        self._check_policies()

    def _check_policies(self) -> None:
        if not self.heartbeat_ms < self.leader_stickiness_ms <= self.election_timeout_min_ms:
            raise ValueError(
                f"the leader stickiness must be above the heartbeat of {self.heartbeat_ms} ms and at most the minimum "
                f"election timeout of {self.election_timeout_min_ms} ms, got {self.leader_stickiness_ms} ms"
            )
        if self.check_quorum_ms <= self.heartbeat_ms:
            raise ValueError(
                f"the check-quorum time must be above the heartbeat of {self.heartbeat_ms} ms, got "
                f"{self.check_quorum_ms} ms; raise it or lower the heartbeat"
            )
        alive_ms = min(self.check_quorum_ms, self.election_timeout_min_ms)
        if not 0 < self.keep_alive_ms < alive_ms:
            raise ValueError(
                f"the keep-alive time must lie between 0 and {alive_ms} ms, the smaller of the check-quorum time and "
                f"the minimum election timeout, got {self.keep_alive_ms} ms"
            )
        bound_ms = self.lease_clock_bound_ms
        if bound_ms is None:
            return
        if self.lease_ms > self.leader_stickiness_ms:
            raise ValueError(
                f"a lease of {self.lease_ms} ms would outlast the leader stickiness of {self.leader_stickiness_ms} ms; "
                "voters could elect another leader while it lasts; lower the lease or raise the stickiness"
            )
        if not 0 < bound_ms < self.lease_ms:
            raise ValueError(
                f"the clock bound of leases must lie between 0 and the lease of {self.lease_ms} ms, got {bound_ms} ms; "
                "leave it out to do without leases"
            )


def lan() -> Options:
    """Return options for servers on one network."""
    return Options(
        election_timeout_min_ms=1_000, election_timeout_max_ms=2_000, heartbeat_ms=100, retry_ms=400, commit_notice_ms=5
    )


def local() -> Options:
    """Return options for servers on one machine: faster than `lan`, with room for a busy scheduler."""
    return Options(
        election_timeout_min_ms=500, election_timeout_max_ms=1_000, heartbeat_ms=75, retry_ms=250, commit_notice_ms=5
    )


def i2p() -> Options:
    """Return options for servers that use anonymity tunnels: replies take seconds, and bandwidth is scarce."""
    return Options(
        election_timeout_min_ms=30_000,
        election_timeout_max_ms=60_000,
        heartbeat_ms=5_000,
        retry_ms=20_000,
        commit_notice_ms=500,
        max_bytes_per_append=32 * 1024,
        snapshot_chunk_bytes=32 * 1024,
        catch_up_stall_ms=300_000,
        in_flight=4,
    )
