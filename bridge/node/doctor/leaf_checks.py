"""The checks of this node's leaves in `garlicfarm doctor`: one line each, with the three conditions.

    router      replied just now, over I2CP
    lease set   found by a look-up through that connection; a single look-up may fail, so a second one decides
    service     accepts a connection at the probe's address

`doctor` makes its own measurements, so that it also works before the first start, and immediately after a change of the
router's configuration. A running node measures the same once a minute. Its report adds a second line per leaf. For each
condition the line has the time of the last change, the number of failures, and the last error.
"""

from collections.abc import Sequence
from typing import Final

import trio

from bridge.api.alarms import ROUTER_UNREACHABLE
from bridge.api.outputs import Check, CheckResult
from bridge.api.view import ConditionView, FarmView
from bridge.api.words import conditions_text, fault_actions, health_text
from bridge.core.log.records import LeafFault
from bridge.node.router.i2cp_connection import I2cpConnection
from bridge.node.router.i2cp_queries import FOUND, LOOKUP_TIMEOUT_S
from bridge.node.router.link import RouterLost
from bridge.node.router.router import PROBE_TIMEOUT_S, ServedLeaf, probe_failure

ROUTER: Final = "router"
"""Name of the check of the router."""
ROUTER_ALARM: Final = f"alarm {ROUTER_UNREACHABLE.kind}"
LOOKUPS: Final = 2
PATIENCE_S: Final = 40.0
_AT_A_TIME: Final = 4
_ROUTER_FIRST: Final = "follow the line `router` above; the leaf needs its router first"
_ROUTER_REPORTED: Final = (
    "wait a minute if the router has just started; otherwise start it and its I2CP port: see"
    " `garlicfarm help attach-a-router`"
)


async def leaf_checks(leaves: Sequence[ServedLeaf], connection: I2cpConnection | None) -> list[Check]:
    """Return a line for each leaf. `connection` is to the router; None without a replying router."""
    found: dict[int, Check] = {}
    at_a_time = trio.CapacityLimiter(_AT_A_TIME)

    async def check(place: int, leaf: ServedLeaf) -> None:
        async with at_a_time:
            found[place] = _check(leaf, await _conditions(leaf, connection))

    async with trio.open_nursery() as nursery:
        for place, leaf in enumerate(leaves):
            nursery.start_soon(check, place, leaf)
    return [found[place] for place in range(len(leaves))]


def reported_leaf_checks(view: FarmView) -> list[Check]:
    """Return a line for each leaf in the last report of the node of this view."""
    reports = (each for each in view.reports if each.raft_id == view.node.raft_id)
    has_alarm = any(each.kind == ROUTER_UNREACHABLE.kind for each in view.alarms)
    about_router = (_ROUTER_REPORTED, ROUTER_ALARM if has_alarm else ROUTER)
    return [
        _line(f"{_name(leaf.destination)} reported", "", leaf.conditions or (), about_router, is_healthy=leaf.healthy)
        for report in reports
        for leaf in report.leaves
    ]


async def _conditions(leaf: ServedLeaf, connection: I2cpConnection | None) -> tuple[ConditionView, ...]:
    found: dict[LeafFault, str | None] = {LeafFault.ROUTER: "no connection" if connection is None else None}
    if connection is not None:
        found[LeafFault.LEASE_SET] = (
            None if await _has_lease_set(leaf, connection) else f"not found in {LOOKUPS} look-ups"
        )
    if leaf.probe is not None:
        found[LeafFault.SERVICE] = await probe_failure(*leaf.probe, PROBE_TIMEOUT_S)
    return tuple(ConditionView(each.value, error is None, last_error=error) for each, error in found.items())


async def _has_lease_set(leaf: ServedLeaf, connection: I2cpConnection) -> bool:
    with trio.move_on_after(PATIENCE_S):
        for _ in range(LOOKUPS):
            try:
                reply = await connection.look_up(leaf.destination.hash, LOOKUP_TIMEOUT_S)
            except RouterLost:
                return False
            if reply.result == FOUND:
                return True
    return False


def _check(leaf: ServedLeaf, conditions: Sequence[ConditionView]) -> Check:
    probe = "" if leaf.probe is None else f", probe {leaf.probe[0]}:{leaf.probe[1]}"
    is_healthy = all(each.holds for each in conditions)
    head = f"{leaf.destination.address}{probe}: "
    return _line(_name(leaf.destination.address), head, conditions, (_ROUTER_FIRST, ROUTER), is_healthy=is_healthy)


def _name(address: str) -> str:
    return f"leaf {address[:8]}…"


def _line(
    name: str, head: str, conditions: Sequence[ConditionView], about_router: tuple[str, str], *, is_healthy: bool
) -> Check:
    """Return the line of a leaf; `about_router` is the remedy for a missing router, and the check with its cause."""
    faults = [each.condition for each in conditions if not each.holds]
    text = f"{head}{health_text(faults, healthy=is_healthy)}" + (
        f" ({conditions_text(conditions)})" if conditions else ""
    )
    if is_healthy:
        return Check(name, CheckResult.OK, text)
    cause = ""
    if LeafFault.ROUTER.value in faults:
        action, cause = about_router
    else:
        action = (
            f"{fault_actions(faults)}; see `garlicfarm help attach-a-router`" if faults else "see `garlicfarm farm`"
        )
    return Check(name, CheckResult.PROBLEM, text, action, cause if len(faults) == 1 else "")
