"""The watch over a batch: one state machine per server, fed by the tables' rows, with its state in a separate table.

    seen rows ──▶ in the order of each farm's log ──▶ RouterWatch by (farm, server) ──▶ rows of `transitions`
                                                                                  └──▶ `watch_state`, `current_watched`

A clock entry may change the farm's reporting period, and with it the time until a server is `silent`. So servers that
are `silent` by the old period are recorded before the new one applies. The result does not depend on the batches of the
log.

A batch reads only the state of its farms from `watch_state`, `ROWS_AT_ONCE` rows at a time. A farm's log time changes
only with its entries, so the state of the other farms cannot change.

The state is written last. A repeated batch after a crash begins with the state before it and produces the same rows. A
table that already has rows of this query and batch skips them (`pipeline/tables/delta.py`). If the stored state does
not end at the beginning of the batch, an earlier run did not watch the servers. Then the watch starts from scratch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple, fields

from pipeline.output.buckets import Output
from pipeline.tables.delta import NOTHING_COMMITTED, Table, TableSpec
from pipeline.tables.farm_files import Change, FarmFiles, pieces
from pipeline.tables.files import DAY
from pipeline.tables.specs import TRANSITIONS_SPEC
from pipeline.watch.machine import (
    PRESENT_RULES,
    SILENT_AFTER_DEFAULT_MS,
    SILENT_AFTER_PERIODS,
    ReportFacts,
    RouterWatch,
    Rules,
    Transition,
)

_TYPES = {str: pa.string(), int: pa.int64()}
_STATE = pa.schema(
    [
        ("farm", pa.string()),
        ("server_id", pa.int64()),
        ("period_ms", pa.int64()),
        *((each.name, _TYPES[each.type]) for each in fields(RouterWatch)),
    ]
)
STATE_SPEC = TableSpec("watch_state", _STATE, ("farm", "server_id"), "interval 1 hours")

ROWS_AT_ONCE: Final = 8_192
_SEEN: Final = pa.schema([("farm", pa.string()), ("index", pa.int64())])
_FACTS: Final = tuple(each.name for each in fields(ReportFacts))
_OF_TRANSITION: Final = [name for name in TRANSITIONS_SPEC.schema.names if name in Transition.__slots__]
"""The columns with the values of a transition's own fields."""
_UNKNOWN: Final = RouterWatch()
_COLUMNS: Final = ("farm", "entry", "server_id", "period_ms", "at_ms")


@dataclass(slots=True)
class _FarmWatch:
    """The state of a farm; `period_ms` 0: not known yet."""

    period_ms: int = 0
    now_ms: int = 0
    servers: dict[int, RouterWatch] = field(default_factory=dict)

    def turn_back(self, by_ms: int) -> None:
        """Keep the ages of sessions and of last reports after a correction has set log time back by `by_ms`."""
        self.servers = {server: watch.turned_back(by_ms) for server, watch in self.servers.items()}


class FarmsWatch:
    """The state machines of all servers, without tables. A run uses the default `rules` and `silent_periods`."""

    def __init__(
        self,
        period_range_ms: tuple[int, int],
        rules: Rules = PRESENT_RULES,
        silent_periods: int = SILENT_AFTER_PERIODS,
    ) -> None:
        self._period_range_ms = period_range_ms
        self._rules_of = lru_cache(partial(_rules_of, rules, silent_periods))
        self.farms: dict[str, _FarmWatch] = {}

    def changes(self, seen: pa.Table) -> Iterator[tuple[str, int, Transition]]:
        """Process rows; yield the farm, the server and the change of each transition."""
        rows = seen.sort_by([("farm", "ascending"), ("index", "ascending")])
        least_ms, most_ms = self._period_range_ms
        columns = (rows.column(each).to_pylist() for each in (*_COLUMNS, *_FACTS))
        farm, of_farm = _FarmWatch(), None
        for name, entry, server, period_ms, at_ms, *facts in zip(*columns, strict=True):
            if name != of_farm:
                farm, of_farm = self.farms.setdefault(name, _FarmWatch()), name
            if at_ms < farm.now_ms:
                farm.turn_back(farm.now_ms - at_ms)
            farm.now_ms = at_ms
            if entry == "clock":
                if period_ms is not None and period_ms != farm.period_ms and least_ms <= period_ms <= most_ms:
                    yield from self._silences(name, farm)
                    farm.period_ms = period_ms
                continue
            rules = self._rules_of(farm.period_ms)
            watch, changes = farm.servers.get(server, _UNKNOWN).after_report(ReportFacts(*facts), rules)
            farm.servers[server] = watch
            for change in changes:
                yield name, server, change
        for name, farm in self.farms.items():
            yield from self._silences(name, farm)

    def _silences(self, name: str, farm: _FarmWatch) -> Iterator[tuple[str, int, Transition]]:
        """Yield the changes of servers without a report for too long, by the farm's log time."""
        rules = self._rules_of(farm.period_ms)
        for server, watch in farm.servers.items():
            silent, changes = watch.after_silence_until(farm.now_ms, rules)
            if changes:
                farm.servers[server] = silent
                yield from ((name, server, change) for change in changes)


def _rules_of(rules: Rules, silent_periods: int, period_ms: int) -> Rules:
    """Return the rules of a farm with this reporting period; 0: unknown."""
    return replace(rules, silent_after_ms=period_ms * silent_periods if period_ms else SILENT_AFTER_DEFAULT_MS)


class Watching:
    """The servers of all farms, by the batches so far."""

    def __init__(self, output: Output, period_range_ms: tuple[int, int]) -> None:
        self._state = FarmFiles(output, STATE_SPEC)
        self.transitions = Table(output, TRANSITIONS_SPEC)
        self._watch = FarmsWatch(period_range_ms)
        self._change: Change | None = None
        """The state after the batch, which `keep` commits."""

    def tables(self) -> list[Table]:
        """Return its tables."""
        return [self.transitions, self._state.table]

    def changes(self, query: str, batch: int, seen: pa.Table | None) -> pa.Table:
        """Return the changes of a batch: rows of `transitions`. Empty if the state already contains the batch."""
        through, self._change = self._state.table.known_batch(query), None
        found = [TRANSITIONS_SPEC.schema.empty_table()]
        if through >= batch:
            return found[0]

        def merge(known: pa.Table, rows: pa.Table) -> pa.Table:
            states = [_without(known, rows)]
            for piece in pieces(rows, ROWS_AT_ONCE):
                self._watch.farms = _loaded(_of_farms(known, piece))
                found.append(_rows_of([*self._watch.changes(piece)]))
                states.append(_stored(self._watch.farms))
            self._watch.farms = {}
            return pa.concat_tables(states)

        is_new = through not in {batch - 1, NOTHING_COMMITTED}
        rows = _SEEN.empty_table() if seen is None else seen
        self._change = self._state.change(rows, merge, is_new=is_new)
        return pa.concat_tables(found)

    def keep(self, query: str, batch: int) -> None:
        """Store the state after a batch, when all its results are written."""
        if self._change is not None:
            # With this number, a repair without the record of batches detects that `transitions` lost a commit.
            changed = (TRANSITIONS_SPEC.name, self.transitions.known_batch(query))
            self._state.commit([(query, batch), changed], self._change)
            self._change = None


def _of_farms(rows: pa.Table, others: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows.column("farm"), pc.unique(others.column("farm"))))


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows.column("farm"), pc.unique(others.column("farm")))))


def _stored(farms: Mapping[str, _FarmWatch]) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    for name, farm in farms.items():
        # A row without a server stores the farm's log time.
        rows.append((name, None, farm.period_ms, *astuple(RouterWatch(last_ms=farm.now_ms))))
        rows += [(name, server, farm.period_ms, *astuple(watch)) for server, watch in farm.servers.items()]
    columns = zip(*rows, strict=True) if rows else ([] for _ in _STATE)
    return pa.Table.from_arrays(
        [pa.array(list(values), each.type) for values, each in zip(columns, _STATE, strict=True)], schema=_STATE
    )


def _loaded(rows: pa.Table) -> dict[str, _FarmWatch]:
    farms: dict[str, _FarmWatch] = {}
    for name, server, period_ms, *values in zip(*(each.to_pylist() for each in rows.columns), strict=True):
        farm, watch = farms.setdefault(name, _FarmWatch(period_ms)), RouterWatch(*values)
        if server is None:
            farm.now_ms = watch.last_ms
        else:
            farm.servers[server] = watch
    return farms


def _rows_of(found: list[tuple[str, int, Transition]]) -> pa.Table:
    times = [_moment(change.at_ms) for _, _, change in found]
    columns: dict[str, list[Any]] = {
        "farm": [farm for farm, _, _ in found],
        "server_id": [server for _, server, _ in found],
        "at": times,
        "session_started_at": [_moment(change.session_started_ms) for _, _, change in found],
        DAY: [each.date() for each in times],
        **{name: [getattr(change, name) for _, _, change in found] for name in _OF_TRANSITION},
    }
    schema = TRANSITIONS_SPEC.schema
    return pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
