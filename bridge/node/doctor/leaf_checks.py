"""The checks of this node's leaves in `garlicfarm doctor`: one line each, with the failed conditions.

    router      replied just now, over its real connection
    lease set   found by a look-up through that connection; a single look-up may fail, so a second one decides
    service     accepts a connection at the probe's address

A running node measures the same once a minute and reports it. `doctor` measures on its own, so that it also works
before the first start, and immediately after a change of the router's configuration.
"""

from collections.abc import Sequence
from typing import Final

import trio

from bridge.api.outputs import Check, CheckResult
from bridge.api.words import fault_actions, health_text
from bridge.core.log.records import LeafFault
from bridge.node.router.i2cp_connection import I2cpConnection
from bridge.node.router.i2cp_queries import FOUND, LOOKUP_TIMEOUT_S
from bridge.node.router.link import RouterLost
from bridge.node.router.router import PROBE_TIMEOUT_S, ServedLeaf, probe_failure

LOOKUPS: Final = 2
PATIENCE_S: Final = 40.0
_AT_A_TIME: Final = 4


async def leaf_checks(leaves: Sequence[ServedLeaf], connection: I2cpConnection | None) -> list[Check]:
    """Return a line for each leaf. `connection` is to the router; None without a replying router."""
    found: dict[int, Check] = {}
    at_a_time = trio.CapacityLimiter(_AT_A_TIME)

    async def check(place: int, leaf: ServedLeaf) -> None:
        async with at_a_time:
            found[place] = _check(leaf, [each.value for each in await _faults(leaf, connection)])

    async with trio.open_nursery() as nursery:
        for place, leaf in enumerate(leaves):
            nursery.start_soon(check, place, leaf)
    return [found[place] for place in range(len(leaves))]


async def _faults(leaf: ServedLeaf, connection: I2cpConnection | None) -> list[LeafFault]:
    faults = []
    if connection is None:
        faults.append(LeafFault.ROUTER)
    elif not await _has_lease_set(leaf, connection):
        faults.append(LeafFault.LEASE_SET)
    if leaf.probe is not None and await probe_failure(*leaf.probe, PROBE_TIMEOUT_S) is not None:
        faults.append(LeafFault.SERVICE)
    return faults


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


def _check(leaf: ServedLeaf, faults: Sequence[str]) -> Check:
    name = f"leaf {leaf.destination.address[:8]}…"
    probe = "" if leaf.probe is None else f", probe {leaf.probe[0]}:{leaf.probe[1]}"
    text = f"{leaf.destination.address}{probe}: {health_text(faults, healthy=not faults)}"
    if not faults:
        return Check(name, CheckResult.OK, text)
    return Check(name, CheckResult.PROBLEM, text, f"{fault_actions(faults)}; `garlicfarm help attach-a-router`")
