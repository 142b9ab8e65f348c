"""Bounds of a farm's state: of every figure that later entries build on, and of the size of every table.

A state computed from a log keeps these bounds, because an entry beyond them does not have an effect. The state in a
snapshot was computed by one other server. Without this check, one snapshot could bring a log time beyond the last
second of a Meta LS2, and no plan of this node could be valid, even after a restart. `numbers` declares the range of
each number, `tables` the limit of each table.

A module of its own, because `numbers` and `tables` do not import each other.
"""

from collections.abc import Iterator

from bridge.core.membership.admission import ENTRY_BYTES_MAX
from bridge.core.state.farm_state import PERIOD_MAX_MS, PERIOD_MIN_MS, FarmState
from bridge.core.state.numbers import declared, numbers_in
from bridge.core.state.tables import declared_table, tables_in


def objection_to_state(state: FarmState, period_ms: int) -> str | None:
    """Return the first figure or table that is out of bounds, as text; None if all are within them."""
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
    yield from _outside("the number of their authors", len(state.kafka.skipped_of), 0, len(state.kafka.skipped))
    for each in state.admitted.values():
        yield from _outside("the number of bytes of an admission", len(each.entry), 0, ENTRY_BYTES_MAX)


def _outside(what: str, value: float, least: float, most: float) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{what} is {value}, but must be from {least} to {most}"
