"""The metrics of KIP-595, measured in the server itself.

    ConsensusServer ── effects of each step ──▶ QuorumMeasurements   appends, commits, elections
    clocks ──▶ PollIdle                                              processor time of the event loop's thread
    describe() ──▶ leader, epoch, vote, log, watermark, state        their values at the time of the request

A leader measures the *commit latency*, from the step that appends records to the step that moves the high watermark
past them. Records of one append count once. Kafka divides this time by the number of records, which does not show an
operator the waiting time of a producer.

*Election latency* begins with the step that makes a voter a candidate. It ends when the voter leads or knows a leader,
after any number of rounds of voting. A pre-vote is part of it.

*Poll idle ratio.* Kafka measures it for the thread that runs Raft. Here everything runs in one event loop, so it is the
idle part of the time of that loop's thread. Near 0, this process is the bottleneck. The ratio covers at least the time
since the previous request, when the clocks were last read.

*Windows* are Kafka's: two samples of 30 s. The older one is dropped when the newer one is full, so a figure covers the
last 30 to 60 s. A rate is divided by at least 30 s, so that the first records after a start are not a peak. Without a
sample, an average and a maximum are not numbers, as in Kafka.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from msgspec import Struct

from consensus.core.effects import Apply, Effect, Persist, Role, RoleChanged
from consensus.core.model import Index, ReplicaKey
from consensus.core.status import RaftDescription
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from consensus.protocols.kraft.wire.replica_names import replica

SAMPLE_S: Final = 30.0
SAMPLES: Final = 2
_MAX_UNCOMMITTED: Final = 65_536
"""Limit of appends that wait for their commit; further ones are not measured."""


class QuorumFigures(Struct, frozen=True):
    """The metrics at one moment, named as in the KIP. NaN if nothing was measured in the window."""

    current_leader: int
    """Id of the leader; -1 if unknown."""
    current_epoch: int
    current_vote: int
    """Id of the candidate with this server's vote; -1 without a vote in this epoch."""
    log_end_offset: int
    log_end_epoch: int
    high_watermark: int
    current_state: str
    """One of `STATES`."""
    number_unknown_voter_connections: int
    election_latency_avg_ms: float
    election_latency_max_ms: float
    commit_latency_avg_ms: float
    commit_latency_max_ms: float
    fetch_records_rate: float
    """Fetched records per second, of a follower or observer."""
    append_records_rate: float
    """Appended records per second, of a leader."""
    poll_idle_ratio_avg: float


STATES: Final = ("leader", "follower", "candidate", "observer")


@dataclass(slots=True)
class _Sample:
    began_s: float
    count: int = 0
    total: float = 0.0
    highest: float = -math.inf


class RecentValues:
    """Values of the last 30 to 60 s. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples = deque([_Sample(clock())], maxlen=SAMPLES)

    def add(self, value: float) -> None:
        """Add a value."""
        sample = self._current()
        sample.count += 1
        sample.total += value
        sample.highest = max(sample.highest, value)

    def average(self) -> float:
        """Return the average of the values."""
        self._current()
        count = sum(sample.count for sample in self._samples)
        return self.total() / count if count else math.nan

    def highest(self) -> float:
        """Return the highest of the values."""
        self._current()
        found = max(sample.highest for sample in self._samples)
        return found if math.isfinite(found) else math.nan

    def total(self) -> float:
        """Return the sum of the values."""
        self._current()
        return sum(sample.total for sample in self._samples)

    def rate(self) -> float:
        """Return the sum of the values for each second."""
        total = self.total()
        # Until the window has a full earlier sample, the rate is computed as if it had one.
        missing_s = SAMPLE_S if len(self._samples) < SAMPLES else 0.0
        return total / (self._clock() - self._samples[0].began_s + missing_s)

    def _current(self) -> _Sample:
        now_s, newest = self._clock(), self._samples[-1]
        if now_s - newest.began_s >= SAMPLES * SAMPLE_S:
            self._samples.clear()
        if now_s - newest.began_s >= SAMPLE_S or not self._samples:
            newest = _Sample(now_s)
            self._samples.append(newest)
        return newest


@dataclass(slots=True)
class QuorumMeasurements:
    """Figures of one server, measured as events happen."""

    clock: Callable[[], float] = trio.current_time
    commits: RecentValues = field(init=False)
    elections: RecentValues = field(init=False)
    fetched: RecentValues = field(init=False)
    appended: RecentValues = field(init=False)
    _role: Role = Role.FOLLOWER
    _candidate_since_s: float | None = None
    _uncommitted: deque[tuple[Index, float]] = field(default_factory=deque)
    """Index of the last entry of each append, and its time."""

    def __post_init__(self) -> None:
        self.commits, self.elections, self.fetched, self.appended = (RecentValues(self.clock) for _ in range(4))

    def take(self, effects: Sequence[Effect]) -> None:
        """Record the effects of a step of the core."""
        for effect in effects:
            if isinstance(effect, RoleChanged):
                self._role_changed(effect)
        for effect in effects:
            if isinstance(effect, Persist):
                if effect.entries:
                    self._persisted(effect)
            elif isinstance(effect, Apply) and self._uncommitted:
                self._committed(effect.first + len(effect.entries) - 1)

    def _role_changed(self, changed: RoleChanged) -> None:
        if self._role is Role.LEADER and changed.role is not Role.LEADER:
            # Another leader will measure the commits of these entries.
            self._uncommitted.clear()
        self._role = changed.role
        if changed.role is Role.CANDIDATE:
            if self._candidate_since_s is None:
                self._candidate_since_s = self.clock()
        elif changed.leader is not None and self._candidate_since_s is not None:
            self.elections.add((self.clock() - self._candidate_since_s) * 1000)
            self._candidate_since_s = None

    def _persisted(self, persist: Persist) -> None:
        count = len(persist.entries)
        if self._role is not Role.LEADER:
            self.fetched.add(count)
            return
        self.appended.add(count)
        if len(self._uncommitted) < _MAX_UNCOMMITTED:
            self._uncommitted.append((persist.first + count - 1, self.clock()))

    def _committed(self, watermark: Index) -> None:
        now_s = self.clock()
        while self._uncommitted and self._uncommitted[0][0] <= watermark:
            self.commits.add((now_s - self._uncommitted.popleft()[1]) * 1000)


class PollIdle:
    """The idle share of the event loop's time. Make and use it in the thread of the loop.

    An instrument of trio would measure the time of waiting, but it would cost two calls in each turn of the loop.
    """

    def __init__(
        self, clock: Callable[[], float] = trio.current_time, processor_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._processor_clock = clock, processor_clock
        self._busy, self._spent = RecentValues(clock), RecentValues(clock)
        self._noted_s, self._noted_processor_s = clock(), processor_clock()

    def average(self) -> float:
        """Return the ratio, from 0 to 1."""
        now_s, processor_s = self._clock(), self._processor_clock()
        self._busy.add(processor_s - self._noted_processor_s)
        self._spent.add(now_s - self._noted_s)
        self._noted_s, self._noted_processor_s = now_s, processor_s
        spent_s = self._spent.total()
        return max(0.0, 1 - self._busy.total() / spent_s) if spent_s else math.nan


def figures_of(
    raft: RaftDescription, high_watermark: int, names: QuorumNames, measured: QuorumMeasurements, idle: PollIdle
) -> QuorumFigures:
    """Return the present metrics of a server."""
    own = raft.server_id
    voters = [key for key in raft.configuration.voter_ids if isinstance(key, ReplicaKey)]
    return QuorumFigures(
        current_leader=-1 if raft.leader is None else replica(raft.leader).id,
        current_epoch=raft.term,
        current_vote=-1 if raft.voted_for is None else replica(raft.voted_for).id,
        log_end_offset=raft.last.index,
        log_end_epoch=raft.last.term,
        high_watermark=high_watermark,
        current_state=raft.role.value if own in voters or raft.role is not Role.FOLLOWER else "observer",
        number_unknown_voter_connections=sum(key != own and names.endpoint(key) is None for key in voters),
        election_latency_avg_ms=measured.elections.average(),
        election_latency_max_ms=measured.elections.highest(),
        commit_latency_avg_ms=measured.commits.average(),
        commit_latency_max_ms=measured.commits.highest(),
        fetch_records_rate=measured.fetched.rate(),
        append_records_rate=measured.appended.rate(),
        poll_idle_ratio_avg=idle.average(),
    )
