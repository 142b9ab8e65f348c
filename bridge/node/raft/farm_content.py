"""Checks that reject unsupported content of the farm's log before it is stored.

    append, log pack   an entry with a feature level that this version lacks (`bridge.core.log.feature_level`)
    snapshot           at an unsupported feature level, unreadable for this version, or with figures that no log
                       produces

A node that stored unsupported content would stop at it after every start. A node that rejects it stays at an earlier
entry and reports this (`notices`). After an upgrade the node continues from its last entry.
"""

from collections.abc import Iterator

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.core.log.records import Level
from bridge.core.membership.admission import ENTRY_BYTES_MAX
from bridge.core.state.farm_state import PERIOD_MAX_MS, PERIOD_MIN_MS, FarmState
from bridge.core.state.numbers import declared, numbers_in
from bridge.core.state.reqids import ReqidTableError
from bridge.core.state.tables import declared_table, tables_in
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof
from bridge.wire.log.snapshot import FarmSnapshotError, decode_farm_at_once
from consensus import COMMAND, ContentChecks, Entry
from consensus.sessions import SessionTableError


def objection_to_entries(entries: tuple[Entry, ...]) -> str | None:
    """Return the text of an error for the first level that this version lacks.

    A level entry without a proof does not have an effect in any version, so it is stored like other entries. Rejecting
    it would only stop this follower. The proof itself is not verified here, because its validity may depend on earlier
    entries.
    """
    for entry in entries:
        if entry.kind != COMMAND or not ends_like_proof(entry.data):
            continue
        # Decode only if the bytes contain the JSON name `level` or an escape.
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


def objection_to_state(state: FarmState, period_ms: int) -> str | None:
    """Return the first figure or table that is out of bounds, as text; None if all are within them.

    A state computed from a log keeps these bounds, because an entry beyond them does not have an effect. The state in a
    snapshot was computed by one other server. Without this check, one snapshot could set a log time beyond the last
    second of a Meta LS2. Then this node could never publish a valid structure again, even after a restart.
    """
    return next((text for check in (_figures, _tables) for text in check(state, period_ms)), None)


def _figures(state: FarmState, period_ms: int) -> Iterator[str]:
    yield from _outside("the reporting period in ms", period_ms, PERIOD_MIN_MS, PERIOD_MAX_MS)
    for place, value in numbers_in(state):
        number = declared(place)
        yield from _outside(number.words, value, number.least, number.most)
    for numbers in state.numbers.values():
        yield from _outside("the number of an author's report", numbers.report, 0, numbers.highest)


def _tables(state: FarmState, _: int) -> Iterator[str]:
    for place, rows in tables_in(state):
        table = declared_table(place)
        yield from _outside(table.words, rows, 0, table.most)
    words = declared_table("KafkaClients.skipped_of").words
    yield from _outside(words, len(state.kafka.skipped_of), 0, len(state.kafka.skipped))
    for each in state.admitted.values():
        yield from _outside("the number of bytes of an admission", len(each.entry), 0, ENTRY_BYTES_MAX)


def _outside(what: str, value: float, least: float, most: float) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{what} is {value}, but must be from {least} to {most}"
