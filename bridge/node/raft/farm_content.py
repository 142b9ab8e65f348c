"""Checks that reject unsupported content of the farm's log before it is stored.

    append, log pack   the entry of a feature level that this version lacks (`bridge.core.log.feature_level`)
    snapshot           at an unsupported feature level, unreadable for this version, or with figures that no log
                       produces (`bridge.core.state.bounds`)

A node that stored unsupported content would stop at it after every start. A node that rejects it stays at an earlier
entry and reports this (`notices`). After an upgrade the node continues from its last entry.

A module of its own: these checks need only bytes, and come before the replica stores and applies the entries.
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
    """Return the text of an error for the first level that this version lacks.

    A level entry without a proof does not have an effect in any version, so it is stored like other entries. To reject
    it would only stop this follower. The proof itself is not verified here, because its validity may depend on earlier
    entries.
    """
    for entry in entries:
        if entry.kind != COMMAND or not ends_like_proof(entry.data):
            continue
        # Decoded only if the bytes contain the member's name or an escape.
        if b'"level"' in entry.data or b"\\" in entry.data:
            record = decode(entry.data)
            if isinstance(record, Level) and record.number > SUPPORTED_LEVEL:
                return str(UnsupportedLevelError(record.number, record.version))
    return None


def objection_to_snapshot(chunks: Iterator[bytes]) -> str | None:
    """Return the reason why a farm's snapshot cannot be restored here; None if it can be."""
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
