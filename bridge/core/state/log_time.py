"""One server's estimate of log time, the clock entries of a leader, and the judgment of clocks.

The log carries the time (`bridge.core.log.voter_clocks`). Between clock entries a server advances it by its own
monotonic clock (`paced`). It advances the clock of each reporting server in the same way: the report's date plus the
time since then. The *majority time* is the time that a majority of the voters' clocks has reached (the median, for an
odd number of voters).

    the leader writes     its estimate of the majority time, within the limit of the log; the paced time if no majority
                          has reported recently. The leader's own clock counts as the clock of one voter
    it writes again       immediately if a majority's reports allow a step of more than `STEP_MS`. So after a long
                          outage of the farm log time does not wait for the next period
    every server judges   its own clock and the others' by the majority time (`ClockJudgment`)

A server cannot decide which clocks are right. It only finds the clocks that differ from a majority, and checks that a
majority agrees.
"""

from collections.abc import Mapping

from msgspec import Struct

from bridge.core.log.voter_clocks import VoterClocks, time_of_majorities

STEP_MS = 5_000
CLOCK_OFF_MS = 10_000
"""Milliseconds; a clock that differs by more raises an alarm.

Smaller values are not useful, because a report may take seconds until it is applied, especially over I2P.
"""
SERVERS_MAX = 64


class ClockJudgment(Struct, frozen=True):
    """The clocks compared with the majority time, as one server sees them; offsets are positive for a fast clock."""

    majority_ms: int
    """The majority time now."""
    own_ms: int
    """The offset of this server's clock."""
    offsets_ms: Mapping[int, int]
    """Offset of each server that reported recently, this one included."""
    agreed: bool
    """True if the clocks of a majority of the voters differ by at most `CLOCK_OFF_MS` from the majority time."""

    @property
    def off(self) -> dict[int, int]:
        """The servers whose clocks are off, with their offsets."""
        return {each: offset for each, offset in sorted(self.offsets_ms.items()) if abs(offset) > CLOCK_OFF_MS}


class LogTime:
    """One server's estimate; the base is the log time of the empty log, or of a first snapshot."""

    def __init__(self, log_time_ms: int, now: int, period_ms: int) -> None:
        self._log_time_ms = log_time_ms
        self._anchor = (log_time_ms, now)
        self._recent_ms = 2 * period_ms
        self._written: tuple[int, int] | None = None
        self._dates: dict[int, tuple[int, int]] = {}

    def period_changed(self, period_ms: int) -> None:
        """Set another reporting period of the farm."""
        self._recent_ms = 2 * period_ms

    def paced(self, now: int) -> int:
        """Return log time by this server's monotonic clock at `now`."""
        anchored_ms, anchored_at = self._anchor
        return anchored_ms + max(0, now - anchored_at)

    def clock_applied(self, log_time_ms: int, now: int) -> None:
        """Note an applied entry that sets log time, forwards or back; `log_time_ms` is log time after it."""
        self._log_time_ms = log_time_ms
        # The leader knows when it read the clock for its own entry, so it adds the time since then.
        own = self._written is not None and self._written[0] == log_time_ms
        self._anchor = self._written if own and self._written is not None else (log_time_ms, now)

    def report_applied(self, server_id: int, date_ms: int, now: int) -> None:
        """Note the sender's clock, from a report that is newer than this server's start and has just been applied."""
        if server_id in self._dates or len(self._dates) < SERVERS_MAX:
            self._dates[server_id] = (date_ms, now)

    def next_entry(self, now: int, clock_ms: int, server_id: int, clocks: VoterClocks, limit_ms: int | None) -> int:
        """Return the time of the clock entry that this server, as leader, is about to propose.

        `limit_ms` is the most that the log allows (`VoterClocks.limit_ms`).
        """
        time_ms = self._next_ms(now, clock_ms, server_id, clocks, limit_ms)
        self._written = (time_ms, now)
        return time_ms

    def step_due(self, now: int, clock_ms: int, server_id: int, clocks: VoterClocks, limit_ms: int | None) -> bool:
        """Return True if a clock entry would advance log time beyond the estimate by more than `STEP_MS`."""
        return self._next_ms(now, clock_ms, server_id, clocks, limit_ms) - self.paced(now) > STEP_MS

    def judge(self, now: int, clock_ms: int, server_id: int, clocks: VoterClocks) -> ClockJudgment | None:
        """Compare the clocks of servers that reported recently with the majority time; None without a majority."""
        times_ms = self._times_ms(now, clock_ms, server_id)
        majority_ms = time_of_majorities(clocks.majorities, times_ms)
        if majority_ms is None:
            return None
        offsets_ms = {each: time_ms - majority_ms for each, time_ms in times_ms.items()}
        agreed = all(
            2 * sum(abs(offsets_ms.get(each, CLOCK_OFF_MS + 1)) <= CLOCK_OFF_MS for each in voters) > len(voters)
            for voters in clocks.majorities
        )
        return ClockJudgment(majority_ms, offsets_ms[server_id], offsets_ms, agreed)

    def _next_ms(self, now: int, clock_ms: int, server_id: int, clocks: VoterClocks, limit_ms: int | None) -> int:
        majority_ms = time_of_majorities(clocks.majorities, self._times_ms(now, clock_ms, server_id))
        time_ms = self.paced(now) if majority_ms is None else majority_ms
        return max(self._log_time_ms, time_ms if limit_ms is None else min(time_ms, limit_ms))

    def _times_ms(self, now: int, clock_ms: int, server_id: int) -> dict[int, int]:
        """Return the present time by the clock of each server that reported recently."""
        passed_ms = {each: now - noted for each, (_, noted) in self._dates.items()}
        recent = {
            each: date_ms + passed_ms[each]
            for each, (date_ms, _) in self._dates.items()
            if passed_ms[each] <= self._recent_ms
        }
        return {**recent, server_id: clock_ms}
