"""The limit of log time: the progress of the clocks of a majority of the voters, computed from the log alone.

    M(term)   the greatest time that the readings of a majority of the voters have reached; None without a majority.
              A reading counts only if it was committed in `term`, so after the election of its leader, and not more
              than `READING_CLOCK_ENTRIES` clock entries ago. So a stopped server's wrong clock does not count
              permanently
    V         the greatest M at any clock entry since the last correction of log time
    limit     max(V, M) + allowance, with allowance = min(period, 20 s) + 5 s

Each report is signed by its author and carries the author's clock (`date`), so the reports prove the time without extra
messages. A clock entry sets log time to min(its time, limit), and never back. If fewer than half of the clocks are
wrong, each majority includes a server with a right clock. So M and V are never further ahead of the true time than that
clock. docs/reference/publishing-rules.md ("Log time") has the reason for the allowance.

Without a majority of readings (after an election, before the first reports) V bounds log time. All clock entries
together cannot exceed V by more than one allowance. The voters come from the configurations in the log, so the limit
depends on the log alone and is equal on every server. A joint configuration needs both majorities.
"""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

ALLOWANCE_PERIOD_MAX_MS = 20_000
ALLOWANCE_MS = 5_000
"""Both parts of the allowance together are less than `FarmTuning.clock_tolerance_ms`, the tolerance of 30 s for the
date of a report."""
READING_CLOCK_ENTRIES = 6
"""Number of clock entries until a reading expires: a period has at most two, and one report of each server."""


class Reading(Struct, frozen=True):
    """The clock of one voter, from its latest report."""

    date_ms: int
    term: int
    """Term of the entry that holds the report."""
    clock_entries: int
    """Number of clock entries before it in the log."""


class VoterClocks(Struct, frozen=True):
    """The voters' clocks after some entry of the log; `vouched_ms` is V.

    `majorities` are the voter sets; a decision needs a majority in each of them. They are empty in a state without a
    founding (a tool that checks a generated log): then nothing bounds log time.
    """

    vouched_ms: int = 0
    majorities: tuple[tuple[int, ...], ...] = ()
    readings: Mapping[int, Reading] = field(default_factory=dict)
    clock_entries: int = 0

    def configured(self, majorities: tuple[tuple[int, ...], ...]) -> "VoterClocks":
        """Return the value after a configuration: readings of servers that no longer vote are dropped."""
        voters = {each for majority in majorities for each in majority}
        readings = {server_id: each for server_id, each in self.readings.items() if server_id in voters}
        return replace(self, majorities=majorities, readings=readings)

    def reported(self, server_id: int, date_ms: int, term: int) -> "VoterClocks":
        """Return the value after a report, which replaces the server's previous reading even if that was later."""
        if not self.is_voter(server_id):
            return self
        return replace(self, readings={**self.readings, server_id: Reading(date_ms, term, self.clock_entries)})

    def is_voter(self, server_id: int) -> bool:
        """Return True if the server votes in the configuration in effect."""
        return any(server_id in majority for majority in self.majorities)

    def majority_ms(self, term: int) -> int | None:
        """Return M: the time that the clocks of a majority of the voters have reached, by their readings of `term`."""
        reached = {
            server_id: each.date_ms
            for server_id, each in self.readings.items()
            if each.term == term and self.clock_entries - each.clock_entries <= READING_CLOCK_ENTRIES
        }
        return time_of_majorities(self.majorities, reached)

    def limit_ms(self, term: int, period_ms: int) -> int | None:
        """Return the latest log time that a clock entry of `term` can set; None: no bound."""
        if not self.majorities:
            return None
        return max(self.vouched_ms, self.majority_ms(term) or 0) + allowance_ms(period_ms)

    def clock_written(self, term: int) -> "VoterClocks":
        """Return the value after a clock entry."""
        vouched_ms = max(self.vouched_ms, self.majority_ms(term) or 0)
        return replace(self, vouched_ms=vouched_ms, clock_entries=self.clock_entries + 1)

    def taken_back(self, majority_ms: int) -> "VoterClocks":
        """Return the value after a correction: the earlier readings of the clocks were wrong."""
        return replace(self, vouched_ms=majority_ms)


def allowance_ms(period_ms: int) -> int:
    """Return the largest lead of log time over the readings of a majority."""
    return min(period_ms, ALLOWANCE_PERIOD_MAX_MS) + ALLOWANCE_MS


def time_of_majorities(majorities: tuple[tuple[int, ...], ...], times_ms: Mapping[int, int]) -> int | None:
    """Return the greatest time that a majority of each set has reached; None if a set lacks a majority of times."""
    times = [_time_of_majority(voters, times_ms) for voters in majorities]
    known = [each for each in times if each is not None]
    return min(known) if known and len(known) == len(times) else None


def _time_of_majority(voters: tuple[int, ...], times_ms: Mapping[int, int]) -> int | None:
    reached = sorted((times_ms[each] for each in voters if each in times_ms), reverse=True)
    majority = len(voters) // 2 + 1
    return reached[majority - 1] if len(reached) >= majority else None
