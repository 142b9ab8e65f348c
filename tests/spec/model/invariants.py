"""The claims that hold in every state and every step (Raft figure 3; KIP-595).

Election Safety        at most one leader per term
Log Matching           an equal term at an index implies equal logs up to there
Leader Completeness    entries committed in a term are in the logs of the leaders of all later terms
State Machine Safety   no two servers commit different entries at one index
Majority Reached       a majority of disks has the committed entries (KIP-595: up to the high watermark)
Leader Append-Only     a leader never overwrites or deletes its entries
Monotonic              neither a term on disk nor a sent commit index (high watermark) goes back
"""

from collections.abc import Callable
from functools import cache
from itertools import combinations

from tests.spec.model.rules import has_majority
from tests.spec.model.state import LEADER, Configuration, Log, State, agreement, configurations_of, first_of


def broken_in_state(state: State) -> str | None:
    return next((name for name, holds in _STATE_CLAIMS.items() if not holds(state)), None)


def broken_in_step(before: State, after: State, server: int) -> str | None:
    """Return the name of a claim that a step of this server breaks."""
    old, new = before.nodes[server], after.nodes[server]
    if old.role == new.role == LEADER and old.term == new.term and new.log[: len(old.log)] != old.log:
        return "Leader Append-Only"
    if new.disk.term < old.disk.term:
        return "Monotonic"
    if any(later.commit < earlier.commit for earlier, later in zip(before.records, after.records, strict=False)):
        return "Monotonic"
    return None


def _election_safety(state: State) -> bool:
    return all(record.leaders & (record.leaders - 1) == 0 for record in state.records)


def _log_matching(state: State) -> bool:
    logs = {node.log for node in state.nodes} | {node.disk.log for node in state.nodes}
    logs |= {record.log for record in state.records}
    return all(_match(one, other) for one, other in combinations(logs, 2))


@cache
def _match(one: Log, other: Log) -> bool:
    index = agreement(one, other)
    return one[:index] == other[:index]


def _leader_completeness(state: State) -> bool:
    led = [record for record in state.records if record.leaders]
    return all(
        later.log[: earlier.commit] == earlier.log[: earlier.commit]
        for place, earlier in enumerate(led)
        if earlier.commit
        for later in led[place + 1 :]
    )


def _state_machine_safety(state: State) -> bool:
    committed = {node.log[: node.commit] for node in state.nodes}
    committed |= {record.log[: record.commit] for record in state.records}
    longest = max(committed, key=len)
    return all(longest[: len(each)] == each for each in committed)


def _majority_reached(state: State) -> bool:
    """Require the committed entries on a majority of disks, by the configuration at the commit index or a later one."""
    disks = tuple(node.disk.log for node in state.nodes)
    return all(
        _is_held(record.log, record.commit, state.nodes[first_of(record.leaders)].initial, disks)
        for record in state.records
        if record.commit
    )


@cache
def _is_held(log: Log, commit: int, initial: Configuration, disks: tuple[Log, ...]) -> bool:
    holders = sum(1 << server for server, disk in enumerate(disks) if disk[:commit] == log[:commit])
    changes = configurations_of(log, initial)
    present = max(place for place, (index, _) in enumerate(changes) if index <= commit)
    return any(all(has_majority(holders, voters) for voters in configuration) for _, configuration in changes[present:])


_STATE_CLAIMS: dict[str, Callable[[State], bool]] = {
    "Election Safety": _election_safety,
    "Log Matching": _log_matching,
    "State Machine Safety": _state_machine_safety,
    "Leader Completeness": _leader_completeness,
    "Majority Reached": _majority_reached,
}
