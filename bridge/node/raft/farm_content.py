"""What this version cannot take of the farm's log, refused before it is stored, and told to the operator.

    append, log pack   an entry of a feature level that this version lacks (`bridge.core.log.feature_level`)
    snapshot           of a farm at such a level, one that this version cannot read, or with figures that no log gives
                       (`bridge.core.state.bounds`)

A node that stored such a thing would stop at it, after each start again. A node that refuses it lags behind and says
so: it goes on where it is as soon as the version is there. The alarm stands until the node has been sent nothing of
the kind for a while.
"""

from collections.abc import Callable, Iterator

import trio

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.core.log.records import Level
from bridge.core.state.bounds import objection_to_state
from bridge.node.events.alarms import Alarms
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof
from bridge.wire.log.snapshot import FarmSnapshotError, decode_farm_at_once
from consensus import COMMAND, ContentChecks, ContentRejected, Entry, integer_id
from consensus.sessions import SessionTableError

ALARM = "content-rejected"
ACTION = (
    "install the version that the text names on this node and start it again; if none of your routers runs a newer"
    " version, that server is in other hands: `garlicfarm node evict` throws it out"
)
QUIET_AFTER_S = 120.0
"""Longer than a leader waits between two tries."""
LOOK_EVERY_S = 5.0


def objection_to_entries(entries: tuple[Entry, ...]) -> str | None:
    """The first level that this version lacks, in words.

    One without a proof has no effect in any version, so it is stored like any other entry: refused, it would only keep
    its follower behind. Whether a proof holds is not asked here, since that may follow from entries before it.
    """
    for entry in entries:
        if entry.kind != COMMAND or not ends_like_proof(entry.data):
            continue
        # Only what names a level, or hides it behind an escape, is worth decoding.
        if b'"level"' in entry.data or b"\\" in entry.data:
            record = decode(entry.data)
            if isinstance(record, Level) and record.number > SUPPORTED_LEVEL:
                return str(UnsupportedLevelError(record.number, record.version))
    return None


def objection_to_snapshot(chunks: Iterator[bytes]) -> str | None:
    """Why a farm's snapshot cannot be restored here, in words."""
    try:
        snapshot = decode_farm_at_once(chunks)
        if snapshot.farm.level > SUPPORTED_LEVEL:
            return str(UnsupportedLevelError(snapshot.farm.level, ""))
        objection = objection_to_state(snapshot.farm, snapshot.period_ms)
        if objection is not None:
            return f"a snapshot of a state that no farm can have: {objection}"
        Farm(0).restore(snapshot.farm, snapshot.period_ms, snapshot.sessions)
    except (FarmSnapshotError, SessionTableError) as error:
        return f"a snapshot that this version of garlicfarm cannot read: {error}"
    return None


CHECKS = ContentChecks(objection_to_entries, objection_to_snapshot)


class RejectedContent:
    """The alarm. `name_of` knows servers by their Raft ids."""

    def __init__(self, alarms: Alarms, name_of: Callable[[int], str | None]) -> None:
        self._alarms = alarms
        self._name_of = name_of
        self._last_s = 0.0

    def rejected(self, notice: ContentRejected) -> None:
        """A server sent something of the kind."""
        self._last_s = trio.current_time()
        name = None if notice.sender is None else self._name_of(integer_id(notice.sender))
        who = "a server" if notice.sender is None else f"server {notice.sender}{f' ({name})' if name else ''}"
        self._alarms.set(
            ALARM, f"{who} sends what this node cannot take, and nothing of it is stored: {notice.reason}", ACTION
        )

    async def run(self) -> None:
        """Clear the alarm when it has been quiet, until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if trio.current_time() > self._last_s + QUIET_AFTER_S:
                self._alarms.clear(ALARM)
