"""Alarms about clocks: a node's own clock, the clocks of other servers, and log time.

    founding       every node without a log: its clock differs from most clocks, or no majority of the clocks agrees
    own clock      every node: its clock differs from the clocks of a majority of the voters
    other clocks   the leader: clocks of other servers differ from that majority
    log time       the leader: log time leads the clocks of a majority by more than correct reports explain, so it
                   does not advance. Or no majority of the voters reports

If no majority of the clocks agrees, the text lists all clocks, because a machine cannot find the correct one.
"""

from collections.abc import Callable, Iterable, Mapping

from bridge.core.farm.log_time_correction import needless_ms
from bridge.core.state.farm_state import FarmState
from bridge.core.state.log_time import CLOCK_OFF_MS, ClockJudgment

BACK_ACTION = (
    "first make sure that the clocks of the voters are right (`garlicfarm log-time show` lists them); then bring log"
    " time back with `garlicfarm log-time back`; see `garlicfarm help log-time`"
)
SILENT_ACTION = "check that the voters run and report (`garlicfarm farm`); log time advances again with their reports"


def seconds_off(offset_ms: int) -> str:
    """Return `12 s ahead of`, or `behind` for a negative offset."""
    return f"{abs(offset_ms) / 1000:.0f} s {'ahead of' if offset_ms >= 0 else 'behind'}"


def own_clock_text(judgment: ClockJudgment | None, own_id: int, name_of: Callable[[int], str]) -> str | None:
    """Return the problem with this node's clock; None without a problem."""
    if judgment is None:
        return None
    # With two voters, the majority time is the time of the earlier clock, even if the earlier clock is wrong.
    is_first = not judgment.agreed and judgment.own_ms == min(judgment.offsets_ms.values())
    if abs(judgment.own_ms) <= CLOCK_OFF_MS and not is_first:
        return None
    if not judgment.agreed:
        return _disagreement(judgment, name_of)
    agreeing = [each for each, offset_ms in judgment.offsets_ms.items() if abs(offset_ms) <= CLOCK_OFF_MS]
    return (
        f"the clock of this node, {name_of(own_id)}, is {seconds_off(judgment.own_ms)} the clocks of a majority of the"
        f" voters ({_names(agreeing, name_of)}), which log time follows"
    )


def other_clocks_text(judgment: ClockJudgment | None, own_id: int, name_of: Callable[[int], str]) -> str | None:
    """Return the problem with the clocks of other servers, for the leader; None without a problem."""
    if judgment is None:
        return None
    others = {each: offset_ms for each, offset_ms in judgment.off.items() if each != own_id}
    if not others:
        return None
    if not judgment.agreed:
        return _disagreement(judgment, name_of)
    clocks = "; ".join(f"the clock of {name_of(each)} is {seconds_off(ms)}" for each, ms in sorted(others.items()))
    return f"{clocks} the clocks of a majority of the voters, which log time follows"


def founding_clock_text(own_name: str, offsets_ms: Mapping[str, int]) -> str | None:
    """Return the problem with the clock of a node without a log.

    `offsets_ms` has the offsets of the other nodes' clocks, positive if they are ahead of this node's clock.
    """
    clocks_ms = {own_name: 0, **offsets_ms}

    def near(time_ms: int) -> list[str]:
        return sorted(name for name, each in clocks_ms.items() if abs(each - time_ms) <= CLOCK_OFF_MS)

    agreeing, right_ms = max(((near(each), each) for each in clocks_ms.values()), key=lambda found: len(found[0]))
    if own_name in agreeing and 2 * len(agreeing) > len(clocks_ms):
        return None
    if 2 * len(agreeing) > len(clocks_ms):
        return f"the clock of this node, {own_name}, is {seconds_off(-right_ms)} the clocks of {', '.join(agreeing)}"
    offsets = ", ".join(f"{name} {each / 1000:+.0f} s" for name, each in sorted(clocks_ms.items()))
    return f"no majority of the clocks of these nodes agrees; compared with {own_name}: {offsets}"


def log_time_text(judgment: ClockJudgment | None, state: FarmState, period_ms: int) -> tuple[str, str] | None:
    """Return the problem with log time and the remedy; None without a problem."""
    if judgment is None:
        return "no majority of the voters has reported recently: log time cannot advance", SILENT_ACTION
    ahead_ms = state.log_time_ms - judgment.majority_ms
    if ahead_ms <= needless_ms(period_ms):
        return None
    text = (
        f"log time is {ahead_ms / 1000:.0f} s ahead of the clocks of a majority of the voters: it does not advance"
        " until they catch up, and servers with correct clocks cannot publish until then"
    )
    return text, BACK_ACTION


def _disagreement(judgment: ClockJudgment, name_of: Callable[[int], str]) -> str:
    offsets = ", ".join(f"{name_of(each)} {ms / 1000:+.0f} s" for each, ms in sorted(judgment.offsets_ms.items()))
    return f"no majority of the voters' clocks agrees; compared with the time that a majority has reached: {offsets}"


def _names(server_ids: Iterable[int], name_of: Callable[[int], str]) -> str:
    return ", ".join(map(name_of, sorted(server_ids)))
