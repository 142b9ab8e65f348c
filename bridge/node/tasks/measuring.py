"""A member's task to measure the others: its router looks up their leaves and structures in turn.

A look-up goes through the network and takes seconds, so reports do not wait for it. This loop visits the farm's
destinations. Each report contains the measurements since the previous one, up to `MEASUREMENTS_LIMIT` of each kind; the
others follow later. Of several measurements of one destination, the newest is reported, once. A router that cannot
measure (the kind `file`) returns None, and nothing is reported. The loop looks a master up only if another node handed
over the master's last structure and this node is not the standby (`bridge.core.publishing.arrival`). A router finds its
own structure without a search in the network.
"""

from collections.abc import Iterator

import trio

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Measurement
from bridge.node.router.router import RouterError
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.structures import destination_from_base64
from bridge.wire.log.reports import MEASUREMENTS_LIMIT

BETWEEN_LOOKUPS_S = 2.0
ROUND_SHORTEST_S = 60.0


class MeasuringTask:
    """The loop and its measurements since the last `take`."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._leaves: dict[str, Measurement] = {}
        self._masters: dict[str, Measurement] = {}

    def take(self) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        """Take the measurements of leaves and of masters; each is returned once, and excess ones the next time."""
        return _taken(self._leaves), _taken(self._masters)

    async def run(self) -> None:
        """Work until canceled."""
        while True:
            began_s = trio.current_time()
            for destination, found in list(self._targets()):
                await self._measure(destination, found)
                await trio.sleep(BETWEEN_LOOKUPS_S)
            await trio.sleep(max(BETWEEN_LOOKUPS_S, began_s + ROUND_SHORTEST_S - trio.current_time()))

    def _targets(self) -> Iterator[tuple[str, dict[str, Measurement]]]:
        state, own_id = self._context.applied_state.state, self._context.replica.server_id
        own = state.servers.get(own_id)
        served = set() if own is None else {leaf.destination for leaf in own.report.destinations}
        reports = [server.report for server_id, server in sorted(state.servers.items()) if server_id != own_id]
        leaves = {leaf.destination for report in reports for leaf in report.destinations}
        yield from ((destination, self._leaves) for destination in sorted(leaves - served))
        for master in sorted(state.masters):
            last, part = state.last_hand_over(master), None if own is None else own.report.part_in(master)
            is_standby = part is not None and part.standby
            if last is not None and last.server_id != own_id and not is_standby:
                yield master, self._masters

    async def _measure(self, destination: str, found: dict[str, Measurement]) -> None:
        try:
            measured = await self._context.router.remote_measured_status(destination_from_base64(destination).hash)
        except RouterError:
            return
        if measured is not None:
            name = hash_of(destination)
            found[name] = Measurement(name, measured.reachable, measured.fetch_ms)


def _taken(found: dict[str, Measurement]) -> tuple[Measurement, ...]:
    names = sorted(found)[:MEASUREMENTS_LIMIT]
    return tuple(found.pop(name) for name in names)
