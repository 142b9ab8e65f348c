"""The arrival of a structure: handed over to a router, and seen by the look-ups of other nodes.

    report of the publisher ──▶ FarmState.last_hand_over   the newest structure that a router took
    reports of other nodes  ──▶ LookUps ──▶ is_seen        found, not found, or unknown

A router that took a structure may still lose it. i2pd does not report a refused structure, and a router without tunnels
does not reach a floodfill. A node whose router can look up a Meta LeaseSet2 (Java) looks each master up at most once a
minute and reports the result. Look-ups of the publisher and of its standby do not count: their routers have the
structure.

A look-up by I2CP returns a destination and not its structure. So any structure of the master that has not ended counts
as found. The loss of a structure is therefore detected only if it is the master's first structure, or after the
previous structure has ended.

The look-ups are not a part of the farm's state, because no decision of the log depends on them. After a restart they
are complete again within about two minutes.
"""

from typing import Final

from msgspec import Struct

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Report
from bridge.core.state.farm_state import MASTERS_MAX, SERVERS_MAX, UNFENCED_AHEAD_MS, StructureHandOver

SETTLE_MS: Final = 90_000
"""Time from a hand-over to the result of a look-up that should find the structure. i2pd publishes after up to 50 s, and
a result may be 30 s old when it is reported."""
KEPT_MS: Final = 180_000
"""A failed look-up counts if it was reported at most this long before the last hand-over. The server of an older
look-up may have stopped."""
SUCCESSION_MS: Final = 600_000
"""If two hand-overs of a publisher are at most this far apart, the wait for a look-up continues from the earlier one.

Within this time the earlier structure is still valid at the second hand-over. After a longer pause of the farm, the
first look-ups may fail.
"""
LOOK_UPS_MAX: Final = MASTERS_MAX * SERVERS_MAX


class LookUp(Struct, frozen=True):
    """The last look-up of a master by the router of one server, reported at `at_ms` of log time."""

    server_id: int
    is_found: bool
    fetch_ms: int | None
    at_ms: int


class _Expectation(Struct, frozen=True):
    """The last hand-over of a master in the reports, and the log time since which no look-up found a structure."""

    last: StructureHandOver
    since_ms: int

    def since_of(self, following: StructureHandOver) -> int:
        """Return, for the next hand-over, the time since which look-ups have not confirmed a structure."""
        is_successor = (
            following.server_id == self.last.server_id
            and 1000 * (following.published_s - self.last.published_s) <= SUCCESSION_MS
        )
        return self.since_ms if is_successor else 1000 * following.published_s


class LookUps:
    """The last look-up of each master by each server, from the reports in the log."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], LookUp] = {}
        self._expected: dict[str, _Expectation] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, report: Report, at_ms: int) -> None:
        """Record hand-overs and look-ups of a report. The oldest ones are dropped above `LOOK_UPS_MAX`."""
        self._note_hand_overs(report, at_ms)
        holding = {hash_of(part.destination) for part in report.masters if part.standby}
        for each in report.remote_metas:
            key = each.destination_hash, report.server_id
            self._last.pop(key, None)
            if each.destination_hash in holding:
                continue
            self._last[key] = LookUp(report.server_id, each.reachable, each.fetch_ms, at_ms)
            expected = self._expected.get(each.destination_hash)
            if each.reachable and expected is not None and expected.last.server_id != report.server_id:
                self._expected[each.destination_hash] = _Expectation(expected.last, max(expected.since_ms, at_ms))
        while len(self._last) > LOOK_UPS_MAX:
            del self._last[next(iter(self._last))]
        while len(self._expected) > LOOK_UPS_MAX:
            del self._expected[next(iter(self._expected))]

    def _note_hand_overs(self, report: Report, at_ms: int) -> None:
        latest_ms = at_ms + UNFENCED_AHEAD_MS
        for part in report.masters:
            name, last_ms = hash_of(part.destination), part.last_published_time_ms
            expected = self._expected.get(name)
            if expected is not None and 1000 * expected.last.published_s > latest_ms:
                expected = None  # Drop them: an operator has moved log time back.
            last = StructureHandOver(report.server_id, last_ms // 1000)
            is_later = expected is None or last.published_s > expected.last.published_s
            if is_later and 0 < last_ms <= latest_ms:
                self._expected[name] = _Expectation(last, last_ms if expected is None else expected.since_of(last))

    def of_others(self, master: str, server_id: int | None) -> tuple[LookUp, ...]:
        """Return the look-ups of a master by servers other than `server_id`, in order of server."""
        master_hash = hash_of(master)
        found = (each for (name, by), each in self._last.items() if name == master_hash and by != server_id)
        return tuple(sorted(found, key=lambda each: each.server_id))

    def is_seen(self, master: str, handed_over: StructureHandOver, period_ms: int) -> bool | None:
        """Return True if a look-up since the hand-over found a structure, False if none did for long enough.

        None: no look-up decides. The time counts from the publisher's first hand-over, or from the last look-up that
        found a structure. It does not count from the latest hand-over, because a look-up may need longer than the time
        to the next one. The time includes a reporting period, because a report may be sent that long after its look-up.
        """
        last_ms, expected = handed_over.published_s * 1000, self._expected.get(hash_of(master))
        is_known = expected is not None and expected.last.server_id == handed_over.server_id
        since_ms = expected.since_ms if expected is not None and is_known else last_ms
        look_ups = self.of_others(master, handed_over.server_id)
        if any(each.is_found and each.at_ms >= last_ms for each in look_ups):
            return True
        missed = (each.at_ms for each in look_ups if not each.is_found and each.at_ms >= last_ms - KEPT_MS)
        return False if any(at_ms >= since_ms + SETTLE_MS + period_ms for at_ms in missed) else None
