"""What an operator hears when formation cannot go on: what happened, to which nodes, and what to do next.

Kept apart from the decisions, which it only reads. Every alarm is a function of the situation, so that it disappears
when its cause does; a promise that is merely slow is no alarm until the formation's patience ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.core.formation_messages import Member
from bridge.core.founding import FormationState, Founders, Founding

WITHDRAW_COMMAND = "garlicfarm withdraw"


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the alarms are a function of."""

    node_id: bytes
    expect: int
    state: FormationState
    members: Mapping[bytes, Member]
    foundings: Sequence[Founding]
    too_many: bool


def alarms_of(situation: Situation, *, impatient: bool) -> tuple[str, ...]:
    """The alarms that hold now; `impatient` once this node's promise has been incomplete for too long."""
    state = situation.state
    own = state.founding or state.known
    alarms = []
    clusters = {each.cluster_id for each in situation.foundings} | ({own.cluster_id} if own is not None else set())
    if len(clusters) > 1:
        alarms.append(_two_clusters(clusters, own))
    if own is None:
        if situation.too_many:
            alarms.append(_too_many(situation.expect))
        alarms.extend(_wrong_expect(situation))
        if impatient and not situation.foundings and state.promise is not None:
            alarms.append(_incomplete(situation, state.promise.founders))
    elif state.known is not None and state.founding is None and situation.node_id in state.known.founders:
        alarms.append(_older_storage(state.known))
    return tuple(alarms)


def _two_clusters(clusters: set[bytes], own: Founding | None) -> str:
    names = ", ".join(sorted(each.hex() for each in clusters))
    mine = f"This node belongs to {own.cluster_id.hex()}. " if own is not None else ""
    return (
        f"Two clusters live under one farm key: {names}. They are never merged. {mine}Keep one of them; on each node "
        "of the others stop garlicfarm, move its state directory away and start it again: it rejoins with a new "
        "identity."
    )


def _too_many(expect: int) -> str:
    return (
        f"At least {2 * expect} routers could found this farm, but it expects {expect}: `expect` must exceed half of "
        "them, or two farms could be founded. Stop some routers until the farm is founded, or make a farm key with "
        "`garlicfarm keys new-farm --expect N` and give it to all."
    )


def _wrong_expect(situation: Situation) -> list[str]:
    return [
        f"Node {member.node_id.hex()} promises {len(member.notice.backs)} founders, but this node's farm key expects "
        f"{situation.expect}: their farm keys differ. Give both the same farm key file."
        for member in sorted(situation.members.values(), key=lambda member: member.node_id)
        if member.reachable and member.notice.backs and len(member.notice.backs) != situation.expect
    ]


def _incomplete(situation: Situation, founders: Founders) -> str:
    promised: dict[Founders, list[bytes]] = {founders: [situation.node_id]}
    for member in situation.members.values():
        if member.notice.promise is not None:
            promised.setdefault(member.notice.promise.founders, []).append(member.node_id)
    blocked_by = sorted(
        each for rival, nodes in promised.items() if rival != founders for each in nodes if each in founders
    )
    if not blocked_by:
        return _waiting(situation, founders)
    # Every node must name the same set to keep, or the operator would be sent in circles.
    kept = min(promised)
    yielding = sorted(each for rival, nodes in promised.items() if rival != kept for each in nodes)
    return (
        f"Promises collide: this node promised {_names(founders)}, but {_names(blocked_by)} promised other "
        f"founders. Run `{WITHDRAW_COMMAND}` on {_names(yielding)}, one after the other; they then join {_names(kept)}."
    )


def _waiting(situation: Situation, founders: Founders) -> str:
    others = [each for each in founders if each != situation.node_id]
    absent = [each for each in others if each not in situation.members or not situation.members[each].reachable]
    silent = [each for each in others if each not in absent and situation.members[each].notice.promise is None]
    reasons = [f"{_names(absent)} cannot be reached"] if absent else []
    reasons += [f"{_names(silent)} has not promised yet"] if silent else []
    return (
        f"This node promised to found the farm with {_names(others)}, and waits: {' and '.join(reasons)}. Start what "
        f"is missing. If one of them is gone for ever, run `{WITHDRAW_COMMAND}` on every node that promised this set, "
        "one after the other."
    )


def _older_storage(known: Founding) -> str:
    return (
        f"This node is a founder of cluster {known.cluster_id.hex()}, but its state directory does not know it: the "
        "directory is older than the farm, or a copy. Voting from it could undo what was acknowledged. Stop "
        "garlicfarm, move the state directory away and start it again: it joins with a new identity."
    )


def _names(nodes: Sequence[bytes]) -> str:
    return ", ".join(each.hex() for each in nodes)
