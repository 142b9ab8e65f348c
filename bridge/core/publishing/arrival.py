"""The arrival of a structure: handed over to a router, and seen by the look-ups of other nodes.

    report of the publisher ──▶ FarmState.last_hand_over   the newest structure that a router took
    reports of other nodes  ──▶ LookUps ──▶ is_seen        found, not found, or unknown

A router that took a structure may still lose it: i2pd does not report a refused structure, and a router without tunnels
does not reach a floodfill. A node whose router can look up a Meta LeaseSet2 (Java) looks each master up once a minute
and reports the result. Look-ups of the publisher and of its standby do not count: their routers have the structure.

I2CP returns a destination and not its structure. So a look-up finds any structure of the master that has not ended,
also an earlier one. A missing structure is therefore noticed if it is the first one, or after the earlier one ended.

The look-ups are not a part of the farm's state, because no server decides by them for the others. After a restart they
are complete again within about two minutes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Report
from bridge.core.state.farm_state import MASTERS_MAX, SERVERS_MAX, StructureHandOver

SETTLE_MS: Final = 90_000
"""Time from a hand-over to the result of a look-up that should find the structure. i2pd publishes after up to 50 s, and
a result may be 30 s old when it is reported."""
LOOK_UPS_MAX: Final = MASTERS_MAX * SERVERS_MAX


@dataclass(frozen=True, slots=True)
class LookUp:
    """The last look-up of a master by the router of one server, reported at `at_ms` of log time."""

    server_id: int
    is_found: bool
    fetch_ms: int | None
    at_ms: int


class LookUps:
    """The last look-up of each master by each server, from the reports in the log."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], LookUp] = {}

    def __len__(self) -> int:
        """Return the number of kept look-ups."""
        return len(self._last)

    def note(self, report: Report, at_ms: int) -> None:
        """Record the look-ups of a report. The oldest ones are dropped above `LOOK_UPS_MAX`."""
        holding = {hash_of(part.destination) for part in report.masters if part.standby}
        for each in report.remote_metas:
            if each.destination_hash in holding:
                continue
            key = each.destination_hash, report.server_id
            self._last.pop(key, None)
            self._last[key] = LookUp(report.server_id, each.reachable, each.fetch_ms, at_ms)
        while len(self._last) > LOOK_UPS_MAX:
            del self._last[next(iter(self._last))]

    def of_others(self, master: str, server_id: int | None) -> tuple[LookUp, ...]:
        """Return the look-ups of a master by servers other than `server_id`, in order of server."""
        master_hash = hash_of(master)
        found = (each for (name, by), each in self._last.items() if name == master_hash and by != server_id)
        return tuple(sorted(found, key=lambda each: each.server_id))


def is_seen(look_ups: Iterable[LookUp], handed_over: StructureHandOver, period_ms: int) -> bool | None:
    """Return True if a look-up since the hand-over found a structure, False if none did after enough time.

    None: no look-up since then decides. A report may be sent a reporting period after its look-up.
    """
    since_ms = handed_over.published_s * 1000
    since = [each for each in look_ups if each.at_ms >= since_ms and each.server_id != handed_over.server_id]
    if any(each.is_found for each in since):
        return True
    return False if any(each.at_ms >= since_ms + SETTLE_MS + period_ms for each in since) else None
