"""Log time as one server reckons it between clock entries, and the clock entry that a leader writes next.

The log carries the time: log time is the greatest clock entry so far, equal on all servers. Between entries a server
runs it on by its own monotonic clock (`paced`). A leader writes

    its own clock              while that is within 5 s of the paced time: log time is steered, by small amounts
    its own clock              if it is further ahead, but the clocks of a majority of the voters agree with it
    the paced time             otherwise, with an alarm: one wrong clock must not move the farm's

The middle rule is needed. Founders' promises may be hours old when the last founder appears, and a farm that was
switched off over night starts with yesterday's log time; pace alone would stay behind for ever, every report would
count as clock-off and nobody could publish. One leader's clock is no reason to jump, a majority's is. Log time never
goes back: a farm whose clocks are all behind log time keeps its pace and alarms.
"""

from dataclasses import dataclass

STEER_LIMIT_MS = 5_000
WITNESSES_MAX = 64


@dataclass(frozen=True, slots=True)
class ClockReading:
    """`time_ms` for the next clock entry; `alarm` says what is wrong with this server's clock, if anything."""

    time_ms: int
    alarm: str | None = None


class LogTime:
    """One server's reckoning; the base is the log time of the empty log (or of the snapshot that it starts from)."""

    def __init__(self, log_time_ms: int, now: int, period_ms: int) -> None:
        self._log_time_ms = log_time_ms
        self._anchor = (log_time_ms, now)
        self._patience_ms = period_ms * 3 // 2
        self._written: tuple[int, int] | None = None
        self._witnesses: dict[int, int] = {}
        self._apart_since: int | None = None

    def period_changed(self, period_ms: int) -> None:
        """The farm reports at another pace from here on."""
        self._patience_ms = period_ms * 3 // 2

    def paced(self, now: int) -> int:
        """Log time by this server's monotonic clock at `now`."""
        anchored_ms, anchored_at = self._anchor
        return anchored_ms + max(0, now - anchored_at)

    def clock_applied(self, log_time_ms: int, now: int) -> None:
        """A clock entry was applied; `log_time_ms` is log time after it."""
        self._log_time_ms = log_time_ms
        # Of its own entry a leader knows when it read the clock: commitment takes no time out of log time.
        own = self._written is not None and self._written[0] == log_time_ms
        self._anchor = self._written if own and self._written is not None else (log_time_ms, now)

    def report_applied(self, server_id: int, date_ms: int, now: int, clock_ms: int) -> None:
        """A report was applied: note whether its sender's clock agrees with this server's."""
        if abs(date_ms - clock_ms) > STEER_LIMIT_MS:
            self._witnesses.pop(server_id, None)
        elif server_id in self._witnesses or len(self._witnesses) < WITNESSES_MAX:
            self._witnesses[server_id] = now

    def next_entry(self, now: int, clock_ms: int, server_id: int, voters: frozenset[int]) -> ClockReading:
        """The clock entry that this server writes as the leader."""
        paced_ms = self.paced(now)
        ahead_ms = clock_ms - paced_ms
        followed = abs(ahead_ms) <= STEER_LIMIT_MS or (ahead_ms > 0 and self._majority_agrees(now, server_id, voters))
        time_ms = max(clock_ms if followed else paced_ms, self._log_time_ms)
        self._written = (time_ms, now)
        if followed:
            self._apart_since = None
            return ClockReading(time_ms)
        if self._apart_since is None:
            self._apart_since = now
        # After a cold start the others' reports, which settle the matter, take a period to arrive.
        lasting = now - self._apart_since >= self._patience_ms
        return ClockReading(time_ms, _alarm(server_id, ahead_ms) if lasting else None)

    def _majority_agrees(self, now: int, server_id: int, voters: frozenset[int]) -> bool:
        fresh = {each for each, seen_at in self._witnesses.items() if now - seen_at <= self._patience_ms}
        return 2 * len((fresh | {server_id}) & voters) > len(voters)


def _alarm(server_id: int, ahead_ms: int) -> str:
    if ahead_ms > 0:
        return (
            f"The clock of server {server_id} is {ahead_ms // 1000} s ahead of log time, and no majority of servers "
            "reports the same time: log time keeps its own pace. Correct the clocks (NTP); log time then follows."
        )
    return (
        f"The clock of server {server_id} is {-ahead_ms // 1000} s behind log time, which never goes back and keeps "
        "its own pace. Correct the clock (NTP)."
    )
