"""Bounds of a farm's state: of every figure that later entries build on, and of the size of every table.

A state that was computed from a log keeps these bounds, because no entry beyond them has an effect. The state in a
snapshot was computed by one other server. Without this check a log time beyond the last second of a Meta LS2 would be
in all plans of this node, also after a restart. The range of each number is declared in `numbers`, that of a table
here.
"""

from collections.abc import Iterator

from bridge.core.log.weights import COST_FACTORS_OF_ALL_MAX, EXCLUSIONS_OF_ALL_MAX, FACTORS_OF_ALL_MAX
from bridge.core.membership.admission import ADMITTED_MAX, ENTRY_BYTES_MAX
from bridge.core.membership.client_keys import CLIENTS_MAX
from bridge.core.state import kafka_clients
from bridge.core.state.farm_state import (
    LEAVES_PER_SERVER_MAX,
    MASTERS_MAX,
    PERIOD_MAX_MS,
    PERIOD_MIN_MS,
    SERVERS_MAX,
    FarmState,
)
from bridge.core.state.numbers import declared, numbers_in

AUTHORS_MAX = 4 * (ADMITTED_MAX + CLIENTS_MAX)
"""More than can be admitted: a recovered farm keeps the numbers of authors that it no longer has."""


def objection_to_state(state: FarmState, period_ms: int) -> str | None:
    """The first figure or table that is out of bounds, in words; None if all are within them."""
    return next((text for check in (_figures, _tables) for text in check(state, period_ms)), None)


def _figures(state: FarmState, period_ms: int) -> Iterator[str]:
    yield from _outside("the reporting period in ms", period_ms, PERIOD_MIN_MS, PERIOD_MAX_MS)
    for place, value in numbers_in(state):
        number = declared(place)
        yield from _outside(number.words, value, number.least, number.most)
    for numbers in state.numbers.values():
        yield from _outside("the number of an author's report", numbers.report, 0, numbers.highest)


def _tables(state: FarmState, _: int) -> Iterator[str]:
    yield from _outside("the number of admitted identities", len(state.admitted), 0, ADMITTED_MAX)
    yield from _outside("the number of admissions with a leader", len(state.admitted_by), 0, ADMITTED_MAX)
    yield from _outside("the number of servers", len(state.servers), 0, SERVERS_MAX)
    yield from _outside("the number of removed servers", len(state.removed), 0, ADMITTED_MAX)
    yield from _outside("the number of masters", len(state.masters), 0, MASTERS_MAX)
    yield from _outside("the number of client keys", len(state.clients), 0, CLIENTS_MAX)
    yield from _outside("the number of numbered authors", len(state.numbers), 0, AUTHORS_MAX)
    yield from _outside("the number of boxes with a new key", len(state.rekeying.boxes), 0, ADMITTED_MAX)
    yield from _outside("the number of voters' clocks", len(state.clocks.readings), 0, ADMITTED_MAX)
    yield from _outside("the number of excluded leaves", len(state.weights.excluded), 0, EXCLUSIONS_OF_ALL_MAX)
    yield from _outside("the number of cost factors", len(state.weights.costs), 0, COST_FACTORS_OF_ALL_MAX)
    yield from _outside("the number of factors", len(state.weights.factors), 0, FACTORS_OF_ALL_MAX)
    yield from _outside("the number of producers", len(state.kafka.producers), 0, kafka_clients.PRODUCERS_OF_ALL_MAX)
    yield from _outside("the number of consumer groups", len(state.kafka.groups), 0, kafka_clients.GROUPS_OF_ALL_MAX)
    yield from _outside("the number of skipped entries", len(state.kafka.skipped), 0, kafka_clients.SKIPPED_MAX)
    yield from _outside("the number of their authors", len(state.kafka.skipped_of), 0, len(state.kafka.skipped))
    for producer in state.kafka.producers.values():
        yield from _outside("the number of runs of a producer", len(producer.runs), 0, kafka_clients.RUNS_MAX)
    for each in state.admitted.values():
        yield from _outside("the number of bytes of an admission", len(each.entry), 0, ENTRY_BYTES_MAX)
    for server in state.servers.values():
        yield from _outside("a server's leaves", len(server.report.destinations), 0, LEAVES_PER_SERVER_MAX)
    for master in state.masters.values():
        yield from _outside("a master's leaves", len(master.leaves), 0, SERVERS_MAX * LEAVES_PER_SERVER_MAX)


def _outside(what: str, value: float, least: float, most: float) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{what} is {value}, and lies within {least} and {most}"
