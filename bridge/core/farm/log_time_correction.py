"""Set log time back to the time that the clocks of a majority of the voters show (M), by an operator's entry.

docs/how-to/log-time.md describes it for operators. Log time never goes back automatically. If a majority's clocks were
ahead and are then corrected, log time does not advance until these clocks have caught up with it. This may take years.
The operator ends this with a correction:

    accepted   if log time leads M by more than correct reports explain (a period and the allowance). The entry's time
               must be between M and M + allowance
    refused    otherwise, with the numbers

So a correction, like a clock entry, can only set log time to the time of a majority of the clocks
(`bridge.core.log.voter_clocks`). All log times in the state move by the same amount (`NumberKind.LOG_TIME`). So a
correction does not make a report stale or fresh, and does not end or extend a session.

The timestamp of a master's last publication may be later than log time now allows. Then the state drops this timestamp,
and the next publication gets the present time. A router that still has the structure with the later timestamp refuses
the new structure. The reported change includes the end of these refusals (`SecondForgotten.refused_until_s`).
"""

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.records import Correction, Publication
from bridge.core.log.voter_clocks import allowance_ms
from bridge.core.log.weights import CommandRefused
from bridge.core.state.farm_state import FarmState, FarmTuning
from bridge.core.state.numbers import Number, NumberKind, with_numbers
from bridge.core.state.recovery import LEASE_SET_SECONDS_MAX


class LogTimeCorrected(Struct, frozen=True):
    """Log time was set back."""

    before_ms: int
    after_ms: int


class SecondForgotten(Struct, frozen=True):
    """The timestamp of a master's last publication was dropped; routers with its structure refuse earlier ones."""

    publication: Publication
    refused_until_s: int
    """The last time, in seconds, when a router may still refuse earlier structures."""


CorrectionChange = LogTimeCorrected | SecondForgotten | CommandRefused


def needless_ms(period_ms: int) -> int:
    """Return the largest lead over M that does not need a correction: log time soon advances again automatically."""
    return period_ms + allowance_ms(period_ms)


def correct(state: FarmState, correction: Correction, tuning: FarmTuning) -> tuple[FarmState, list[CorrectionChange]]:
    """Return the state after a correction in the entry at `state.applied_index`, and the changes."""
    majority_ms = state.clocks.majority_ms(state.applied_term)
    if majority_ms is None:
        return state, [_refused("no majority of the voters has reported its clock since the last election")]
    refusal = correction_refusal(state.log_time_ms, majority_ms, correction.time_ms, tuning.period_ms)
    if refusal is not None:
        return state, [_refused(refusal)]
    back_ms = state.log_time_ms - correction.time_ms
    after = replace(
        _moved_back(state, back_ms), log_time_ms=correction.time_ms, clocks=state.clocks.taken_back(majority_ms)
    )
    latest_s = (correction.time_ms + tuning.period_ms + tuning.clock_tolerance_ms) // 1000
    beyond = {
        name: master.publication
        for name, master in sorted(after.masters.items())
        if master.publication is not None and master.publication.published_s > latest_s
    }
    masters = {
        name: replace(master, publication=None) if name in beyond else master for name, master in after.masters.items()
    }
    corrected: list[CorrectionChange] = [LogTimeCorrected(state.log_time_ms, correction.time_ms)]
    until_s = correction.time_ms // 1000 + LEASE_SET_SECONDS_MAX
    return replace(after, masters=masters), [*corrected, *(SecondForgotten(each, until_s) for each in beyond.values())]


def correction_refusal(log_time_ms: int, majority_ms: int, time_ms: int, period_ms: int) -> str | None:
    """Return the reason, with the numbers, why log time cannot be set back to `time_ms`; `majority_ms` is M."""
    ahead_ms = log_time_ms - majority_ms
    if ahead_ms <= needless_ms(period_ms):
        return (
            f"log time is {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms >= 0 else 'behind'} the last reported"
            f" clocks of a majority of the voters; up to {needless_ms(period_ms) / 1000:.0f} s ahead it waits for them"
            " automatically"
        )
    latest_ms = majority_ms + allowance_ms(period_ms)
    if not majority_ms <= time_ms <= latest_ms:
        return (
            f"the time {time_ms} is not between {majority_ms} and {latest_ms}, the range of the clocks of a majority"
            " of the voters (ms since the epoch)"
        )
    return None


def _refused(reason: str) -> CommandRefused:
    return CommandRefused("correction", reason)


def _moved_back(state: FarmState, back_ms: int) -> FarmState:
    def earlier(number: Number, value: int) -> int:
        return value - back_ms if number.kind is NumberKind.LOG_TIME else value

    moved: FarmState = with_numbers(state, earlier)
    # Below the level, as in earlier versions, the times of Kafka's clients do not move, so the clients do not expire.
    return moved if state.level >= BOUNDS_LEVEL else replace(moved, kafka=state.kafka)
