"""Entries of the farm's log as text: a type for `--type`, and a line for people.

    {"cluster":…,"id":2,"destinations":[…]}   report        node-2: 1 of 1 leaves healthy, router attached
    {"clock":{"time":…,"id":2}}               clock         log time 10:45:27 by node-2
    {"publication":{…}}                       publication   node-2 may publish hakketfo4m2x….b32.i2p, second …
    {"voters":[…]}                            configuration voters node-1, node-2, node-3
    {"anything":"else"}                       other         unchanged

The types are the kinds of `bridge.core.log.kinds`, `handover`, and `configuration` and `no-op` of Raft. Names come from
a view: the log has Raft ids and NodeIds.
"""

from typing import Final, assert_never

from msgspec import Struct

from bridge.api.json import DocumentError
from bridge.api.log import EntryKind, LogEntryView, servers_named
from bridge.api.printable import time_of_day
from bridge.api.view import FarmView
from bridge.core.log import records
from bridge.core.log.kinds import ALL_KINDS, FOREIGN, kind_of
from bridge.core.membership.admission import server_label
from bridge.wire.i2p.structures import I2pError, destination_from_base64
from bridge.wire.log.entries import decode
from bridge.wire.log.handover_entries import KIND as HANDOVER
from bridge.wire.log.handover_entries import handover_in
from consensus import ServerId, counted

ENTRY_TYPES: Final = (*(each.type for each in ALL_KINDS), HANDOVER, "configuration", "no-op")
_HASH_LETTERS: Final = 12


class EntryWords(Struct, frozen=True):
    """An entry for people. `by` is the Raft id of its server; None for an entry without a single server."""

    type: str
    by: int | None
    text: str


class Names:
    """Names of servers and identities, as one view knows them."""

    def __init__(self, view: FarmView) -> None:
        raft = view.raft
        self._servers = {each.raft_id: each.name for each in (*raft.voters, *raft.learners) if each.name}
        self._servers |= {each.raft_id: each.name for each in view.members if each.raft_id is not None}
        self._nodes = {each.node_id: each.name for each in view.members}
        self._evicted = {each.raft_id for each in raft.voters if each.evicted}
        self._evicted |= {each.raft_id for each in view.members if each.evicted and each.raft_id is not None}

    def server(self, raft_id: int) -> str:
        """Return the name of a server."""
        return server_label(raft_id, self._servers.get(raft_id))

    def node(self, node_id: bytes) -> str:
        """Return the name of an identity."""
        return self._nodes.get(node_id.hex()) or node_id.hex()

    def server_named(self, name: str) -> int | None:
        """Return the Raft id of a server by its name or number; None if it is unknown.

        Of several servers with the name, a server without an eviction has precedence.
        """
        named = (raft_id for raft_id, known in self._servers.items() if known == name)
        found = max(named, key=lambda raft_id: (raft_id not in self._evicted, raft_id), default=None)
        return int(name) if found is None and name.isdecimal() else found


def entry_words(entry: LogEntryView, names: Names) -> EntryWords:
    """Return an entry as text."""
    if entry.kind is not EntryKind.APPLICATION:
        return EntryWords(entry.kind.value, None, _raft_text(entry, names))
    record = decode(entry.data)
    if isinstance(record, records.Foreign):
        if (order := handover_in(entry.data)) is not None:
            to = "another voter" if order.to is None else names.server(order.to)
            return EntryWords(HANDOVER, None, f"the leader of term {order.term} hands leadership over to {to}")
        return EntryWords(FOREIGN.type, None, entry.data.decode(errors="backslashreplace"))
    by = record.server_id if isinstance(record, records.ServerRecord) else None
    return EntryWords(kind_of(record).type, by, _text(record, names))


def _raft_text(entry: LogEntryView, names: Names) -> str:
    """Return the text of an entry by Raft itself; an unknown format of another version is shown unchanged."""
    try:
        named = servers_named(entry)
    except DocumentError:
        return entry.data.decode(errors="backslashreplace")
    texts = {name: ", ".join(_server(each, names) for each in servers) for name, servers in named.items()}
    if entry.kind is EntryKind.NO_OP:
        return f"{texts['leader']} begins to lead" if texts else ""
    return "; ".join(f"{name} {servers}" for name, servers in texts.items())


def _server(server_id: ServerId, names: Names) -> str:
    return names.server(server_id) if isinstance(server_id, int) else str(server_id)


def _text(record: records.Record, names: Names) -> str:
    match record:
        case records.Report():
            text = _report(record, names)
        case records.Clock(time_ms, server_id, period_ms):
            period = "" if period_ms is None else f", a report each {period_ms / 1000:g} s"
            text = f"log time {time_of_day(time_ms // 1000)} by {names.server(server_id)}{period}"
        case records.Publication(master, server_id, published_s, content_hash):
            what = f"{_short(master)}, second {time_of_day(published_s)}, content {content_hash[:8]}"
            text = f"{names.server(server_id)} may publish {what}"
        case records.ProducerStart(name):
            text = f"a Kafka producer begins: {name}"
        case records.GroupOffset(group, offset):
            text = f"the Kafka group {group} has read up to {offset}"
        case records.Foreign(reason):
            text = reason
        case records.Admission() | records.Approval() | records.Eviction() | records.KeyReplacement() | records.Level():
            text = _of_identities(record, names)
        case _:
            text = _of_operators(record, names)
    return text


def _of_identities(record: records.IdentityRecord, names: Names) -> str:
    match record:
        case records.Admission(node_id, name, _, server_id):
            text = f"{name} ({node_id.hex()}) is admitted as server {server_id}"
        case records.Approval(node_id, name, replaces, _, server_id):
            text = f"{node_id.hex()} takes the name {name} from {replaces.hex()}, as server {server_id}"
        case records.Eviction(node_id, era, boxes):
            text = f"{names.node(node_id)} is evicted; keys of era {era} are sealed for {counted(len(boxes), 'member')}"
        case records.KeyReplacement(era, boxes):
            text = f"all keys are replaced; the keys of era {era} are sealed for {counted(len(boxes), 'member')}"
        case records.Level(number, version):
            text = f"feature level {number}, of version {version}"
        case _:
            assert_never(record)
    return text


def _of_operators(record: records.OperatorCommand, names: Names) -> str:
    match record:
        case records.Exclusion(leaf_hash, excluded):
            text = f"leaf {leaf_hash}.b32.i2p is {'excluded' if excluded else 'listed again'}"
        case records.CostFactor(leaf_hash, factor):
            text = f"the cost of leaf {leaf_hash}.b32.i2p is multiplied by {factor:g}"
        case records.Force(master):
            text = f"an operator requests that {_short(master)} is published again"
        case records.Factors(through_index, formula, factors):
            leaves = counted(len(factors), "leaf", "leaves")
            text = f"the pipeline weighs {leaves} by the log up to {through_index} ({formula})"
        case records.Removal(server_id, removed):
            text = f"{names.server(server_id)} is {'removed' if removed else 'allowed to join again'}"
        case records.ClientKey(node_id, name, _, scopes, admitted):
            may = ", ".join(scope.value for scope in scopes) or "read"
            text = f"client key {name} ({node_id.hex()}) {'may: ' + may if admitted else 'is removed'}"
        case records.Correction(time_ms):
            text = f"log time goes back to {time_of_day(time_ms // 1000)}"
        case _:
            assert_never(record)
    return text


def _short(master: str) -> str:
    try:
        address = destination_from_base64(master).address
    except I2pError:
        address = master
    return f"{address[:_HASH_LETTERS]}….b32.i2p"


def _report(report: records.Report, names: Names) -> str:
    healthy = sum(leaf.healthy for leaf in report.destinations)
    leaves = (
        f"{healthy} of {counted(len(report.destinations), 'leaf', 'leaves')} healthy"
        if report.destinations
        else "no leaf"
    )
    router = "router attached" if report.router.attached else "no router"
    publishing = ", is the publisher" if any(master.publishing for master in report.masters) else ""
    return f"{names.server(report.server_id)}: {leaves}, {router}{publishing}"
