"""What this version cannot take of the farm's log, refused before it is stored.

    append, log pack   an entry of a feature level that this version lacks (`bridge.core.log.feature_level`)
    snapshot           of a farm at such a level, one that this version cannot read, or with figures that no log gives
                       (`bridge.core.state.bounds`)

A node that stored such a thing would stop at it, after each start again. A node that refuses it lags behind and says
so (`notices`): it goes on where it is as soon as the version is there.

A module of its own: these checks are made before entries are stored, on bytes alone; the replica stores and applies.
"""

from collections.abc import Iterator

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.core.log.records import Level
from bridge.core.state.bounds import objection_to_state
from bridge.core.state.reqids import ReqidTableError
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof
from bridge.wire.log.snapshot import FarmSnapshotError, decode_farm_at_once
from consensus import COMMAND, ContentChecks, Entry
from consensus.sessions import SessionTableError


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
        Farm(0).restore(snapshot.farm, snapshot.period_ms, snapshot.sessions, snapshot.reqids)
    except (FarmSnapshotError, SessionTableError, ReqidTableError) as error:
        return f"a snapshot that this version of garlicfarm cannot read: {error}"
    return None


CHECKS = ContentChecks(objection_to_entries, objection_to_snapshot)
