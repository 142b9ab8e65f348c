"""The conversion of decoded entries to rows of the base tables, by operations on whole Arrow columns.

    entries (`pipeline.schemas.ENTRIES`) ──▶ base_rows ──▶ {table: rows with the columns of `pipeline.schemas.HISTORY`}

This module does not use Spark. Spark's tasks and all other callers use `base_rows` for batches of any size, so a single
set of rules converts entries to rows.

Tables name destinations by pseudonyms: `d-` and 12 hexadecimal digits of SHA-256 over a secret salt and the
destination's b32 address. Without the salt, pseudonyms would hide nothing, because addresses are public: anyone with a
list of them could compute the hashes. Reports repeat the same destinations, so each is hashed once per task.
"""

import hashlib
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decode.entries import OPERATOR_KINDS, REFUSED, SNAPSHOT
from pipeline.schemas import HISTORY, arrow_schema
from pipeline.tables.files import DAY

PSEUDONYM_DIGITS = 12
KNOWN_MAX = 1_000_000
"""The maximum number of addresses that a task caches."""
BASE: dict[str, pa.Schema] = {name: arrow_schema(columns) for name, columns in HISTORY.items() if name != "events"}
KINDS: dict[str, frozenset[str]] = {
    "reports": frozenset({"report"}),
    "destination_reports": frozenset({"report"}),
    "clocks": frozenset({"clock"}),
    "publications": frozenset({"publication"}),
    "configurations": frozenset({"configuration"}),
    "factors": frozenset({"factors"}),
    "operator_actions": OPERATOR_KINDS,
    "quarantine": frozenset({REFUSED}),
}
"""The kinds of entries that produce rows in each table."""
_STRUCTS = {
    "reports": "report",
    "clocks": "clock",
    "publications": "publication",
    "configurations": "configuration",
    "operator_actions": "action",
}
"""For each table, the struct column of an entry that contains the table's columns."""
ADDRESS = "address"


class Pseudonyms:
    """The names of destinations in the tables."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._known: dict[str, str] = {}

    def of(self, addresses: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Return the name of each address; NULL for NULL."""
        coded = pa.array(pc.unique(addresses))
        names = pa.array([None if each is None else self._name(each) for each in coded.to_pylist()], pa.string())
        return names.take(
            pc.index_in(addresses, coded).combine_chunks()
            if isinstance(addresses, pa.ChunkedArray)
            else pc.index_in(addresses, coded)
        )

    def _name(self, address: str) -> str:
        found = self._known.get(address)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            digest = hashlib.sha256((self._salt + address).encode()).hexdigest()
            found = self._known[address] = f"d-{digest[:PSEUDONYM_DIGITS]}"
        return found


def base_rows(
    entries: pa.Table, pseudonyms: Pseudonyms, names: Collection[str] = frozenset(KINDS)
) -> dict[str, pa.Table]:
    """Return the rows of each base table in `names`, without empty tables.

    `destination_reports` and `publications` have the column `address` after the others.
    """
    present = set(pc.unique(entries.column("entry")).to_pylist())
    found = {}
    for name, kinds in KINDS.items():
        if name in names and kinds & present:
            rows = _made(name, _of_kinds(entries, kinds), pseudonyms)
            if rows.num_rows:
                found[name] = rows
    return found


def last_known(entries: pa.Table, pseudonyms: Pseudonyms) -> dict[str, pa.Table]:
    """Return the rows of the reports in a snapshot, whose entries the log no longer has.

    They describe the last state, not history.
    """
    reports = _of_kinds(entries, frozenset({SNAPSHOT}))
    if not reports.num_rows:
        return {}
    return {name: _made(name, reports, pseudonyms) for name in ("reports", "destination_reports")}


def _made(name: str, entries: pa.Table, pseudonyms: Pseudonyms) -> pa.Table:
    struct = _STRUCTS.get(name)
    given = {} if struct is None else _members(entries, struct)
    also: tuple[str, ...] = ()
    match name:
        case "destination_reports":
            return _destinations(entries, pseudonyms)
        case "factors":
            return _factors(entries, pseudonyms)
        case "clocks":
            given["leader_id"] = entries.column("server_id")
        case "publications":
            given["master"], also = pseudonyms.of(given[ADDRESS]), (ADDRESS,)
        case "operator_actions":
            given |= {"action": entries.column("entry"), "subject": pseudonyms.of(given[ADDRESS])}
        case "quarantine":
            given["kind"] = entries.column("claimed")
        case _:
            pass  # its struct has all columns
    return _table(name, entries, given, *also)


def _destinations(entries: pa.Table, pseudonyms: Pseudonyms) -> pa.Table:
    lists = entries.column("destinations").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    parents, leaves = pc.list_parent_indices(lists), pc.list_flatten(lists)
    given = {each.name: pc.struct_field(leaves, [number]) for number, each in enumerate(leaves.type)}
    of_leaf = entries.select([each for each in entries.column_names if each != "destinations"]).take(parents)
    return _table("destination_reports", of_leaf, {**given, "destination": pseudonyms.of(given[ADDRESS])}, ADDRESS)


def _factors(entries: pa.Table, pseudonyms: Pseudonyms) -> pa.Table:
    given = _members(entries, "factors")
    pairs = given["factors"].to_pylist()
    parents = pa.array([place for place, each in enumerate(pairs) for _ in each or ()], pa.int64())
    addresses = pa.array([address for each in pairs for address, _ in each or ()], pa.string())
    spread = {name: column.take(parents) for name, column in given.items() if name != "factors"}
    factor = pa.array([factor for each in pairs for _, factor in each or ()], pa.float64())
    rows = entries.take(parents)
    return _table("factors", rows, {**spread, "destination": pseudonyms.of(addresses), "factor": factor})


def _members(entries: pa.Table, struct: str) -> dict[str, pa.ChunkedArray]:
    """Return the columns inside a struct."""
    column = entries.column(struct)
    return {each.name: pc.struct_field(column, [number]) for number, each in enumerate(column.type)}


def _of_kinds(entries: pa.Table, kinds: frozenset[str]) -> pa.Table:
    return entries.filter(pc.is_in(entries.column("entry"), pa.array(sorted(kinds), pa.string())))


def _table(name: str, entries: pa.Table, given: dict[str, pa.ChunkedArray | pa.Array], *also: str) -> pa.Table:
    """Return the table's columns in order: from `given` if present, otherwise from `entries`; then those in `also`."""
    schema = BASE[name]
    columns: Sequence[tuple[str, pa.ChunkedArray | pa.Array]] = [
        (each.name, _column(each, entries, given)) for each in schema
    ]
    columns = [*columns, *((each, given[each]) for each in also)]
    return pa.table(dict(columns))


def _column(
    field: pa.Field, entries: pa.Table, given: dict[str, pa.ChunkedArray | pa.Array]
) -> pa.ChunkedArray | pa.Array:
    if field.name == DAY:
        return entries.column("log_time").cast(pa.date32())
    found = given[field.name] if field.name in given else entries.column(field.name)
    return found if found.type == field.type else found.cast(field.type)
