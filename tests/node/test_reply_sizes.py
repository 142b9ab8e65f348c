"""Each reply of the control interface fits the limit of its client, with the largest contents.

pages (log, events)   the page ends before the limit, so a reader always makes progress
other documents       filled to the limits of their tables; a table without a declared size fails
backup                has a separate limit
"""

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct, UnsetType, structs

from bridge.api.control_routes import DEBUG, EVENTS, LOG, ROUTES
from bridge.api.events import EVENT_TYPES
from bridge.api.json import DOCUMENT_LIMIT_BYTES, encode
from bridge.api.log import EntryKind, LogEntryView, LogPage, fitting
from bridge.core.history.records import NODES_MAX, ROWS_MAX, SERIES_MAX, TEXT_LIMIT_BYTES
from bridge.core.history.timeline import SPANS_MAX, STEPS_MAX
from bridge.core.log.weights import COST_FACTORS_OF_ALL_MAX, EXCLUSIONS_OF_ALL_MAX, FACTORS_OF_ALL_MAX
from bridge.core.membership.admission import ADMITTED_MAX
from bridge.core.membership.client_keys import CLIENTS_MAX
from bridge.core.state.farm_state import LEAVES_PER_SERVER_MAX, MASTERS_MAX, SERVERS_MAX
from bridge.node.control.identity_admin import UNADMITTED_LISTED_MAX
from bridge.node.control.view_builder import RECENT_EVENTS
from bridge.node.events.event_log import TEXT_LIMIT, EventLog
from bridge.node.inviting.invitations import INVITATIONS_MAX, USES_MAX
from bridge.wire.keys.backup import BACKUP_LIMIT_BYTES
from bridge.wire.keys.invitation import ADDRESSES_MAX
from bridge.wire.membership.short_view import MASTERS_LISTED_MAX, SERVERS_LISTED_MAX
from consensus.core.features import COMMAND_LIMIT_BYTES
from gossip.core.options import SwimOptions
from tests.effort import each_case

KNOWN_MAX = ADMITTED_MAX + SwimOptions().directory_limit + 1
"""Members in gossip: the admitted ones, unknown nodes up to the limit, and the node itself."""
APART = {LOG.path, EVENTS.path, DEBUG.path}
"""Pages have their own tests. The lists in a node's debugging document are limited (`debugging`)."""
REPLIES = {path: each.answer for path, each in ROUTES.items() if each.answer is not Struct and path not in APART}
"""The documents of all other routes."""
SIZES: dict[str, int] = {
    "InvitationsAnswer.invitations": INVITATIONS_MAX,
    "InvitationView.uses": USES_MAX,
    "InvitationCreated.addresses": ADDRESSES_MAX,
    "FarmView.members": KNOWN_MAX,
    "FarmView.publishing": MASTERS_MAX,
    "FarmView.reports": SERVERS_MAX,
    "FarmView.removed": ADMITTED_MAX,
    "FarmView.alarms": 64,
    "FarmView.events": RECENT_EVENTS,
    "FarmView.counters": 256,
    "GossipView.counters": 256,
    "GossipView.other_farms": 8,
    "RaftView.voters": ADMITTED_MAX,
    "RaftView.learners": ADMITTED_MAX,
    "RaftView.followers": ADMITTED_MAX,
    "RaftView.waits": ADMITTED_MAX,
    "RaftView.counters": 256,
    "RaftView.links": ADMITTED_MAX,
    "RaftView.majorities": 2,
    "RaftView.majorities.item": ADMITTED_MAX,
    "RaftView.udp_blocked": ADMITTED_MAX,
    "RaftView.not_reporting": ADMITTED_MAX,
    "LinkView.extensions": 16,
    "PublishingView.entries": 16,
    "PublishingView.standings": SERVERS_MAX,
    "PublishingView.look_ups": SERVERS_MAX,
    "MetaEntryView.faults": 3,
    "ReportView.masters": MASTERS_MAX,
    "ReportView.leaves": LEAVES_PER_SERVER_MAX,
    "LeafView.faults": 3,
    "LeafView.conditions": 3,
    "StandingView.parts": 6,
    "WeightsView.excluded": EXCLUSIONS_OF_ALL_MAX,
    "WeightsView.costs": COST_FACTORS_OF_ALL_MAX,
    "WeightsView.factors": FACTORS_OF_ALL_MAX,
    "ClusterAnswer.voters": ADMITTED_MAX,
    "LogTimeAnswer.clocks": ADMITTED_MAX,
    "HealthAnswer.reasons": 2,
    "QueryAnswer.answers": KNOWN_MAX,
    "QueryAnswer.silent": KNOWN_MAX,
    "KeysAnswer.keys": 16,
    "KeysAnswer.behind": KNOWN_MAX,
    "KeysAnswer.silent": KNOWN_MAX,
    "KeysAnswer.absent": KNOWN_MAX,
    "KeysAnswer.unstored": KNOWN_MAX,
    "FarmKeyView.missing": KNOWN_MAX,
    "KeysReplaced.away": ADMITTED_MAX,
    "KeysReplaced.left_out": KNOWN_MAX,
    "NodesAnswer.nodes": ADMITTED_MAX + UNADMITTED_LISTED_MAX,
    "NodesAnswer.clients": CLIENTS_MAX,
    "ClientKeyView.scopes": 4,
    "NodeApproved.retired": ADMITTED_MAX,
    "NodeEvicted.left_out": KNOWN_MAX,
    "HistoryAnswer.rows": ROWS_MAX,
    "HistoryAnswer.series": SERIES_MAX,
    "HistoryRow.spans": SPANS_MAX // ROWS_MAX,
    "HistorySeries.values": STEPS_MAX,
    "PerspectivesAnswer.nodes": NODES_MAX,
    "NodePerspective.members": SERVERS_LISTED_MAX,
    "NodePerspective.publishers": MASTERS_LISTED_MAX,
    "NodeEvicted.client_keys": CLIENTS_MAX,
    "NodeEvicted.client_keys_of_unknown": CLIENTS_MAX,
}
"""Rows of each table in a reply."""
TEXT = '"' * 150
"""Text of a name, an address or a sentence: each of its 150 characters takes two in JSON."""
TEXTS = {
    "QueryAnswerView.payload": "\\" * 2048,
    "EventView.text": "x" * TEXT_LIMIT,
    "MemberView.node_id": "f" * 16,
    "MemberView.name": "x" * 64,
    "MemberView.address": "x" * 64,
    "MemberView.certificate": "f" * 64,
    "LinkView.extensions.item": "x" * 32,
    "LeafView.faults.item": "x" * 16,
    "LeafView.destination": "x" * 60,
    "ConditionView.condition": "x" * 16,
    "ConditionView.last_error": "x" * 85,
    "ScorePartView.label": "x" * 16,
    "ScorePartView.value": "x" * 64,
    "HistorySpan.text": '"' * TEXT_LIMIT_BYTES,
}
"""Texts of fields with other sizes.

A member's description has at most 512 bytes, and JSON does not lengthen the characters of its name. Names of extensions
and faults, and addresses, have the lengths of this version.
"""

WINDOW = {"HistoryAnswer.from_ms", "HistoryAnswer.to_ms", "HistoryAnswer.step_ms"}
"""Numbers of a time window: the client refuses a reply with a negative one."""


def largest(kind: type) -> Any:
    """Return an instance with all tables full."""
    hints = get_type_hints(kind)
    fields = {each.name: each for each in structs.fields(kind)}
    return kind(**{name: _value(hints[name], f"{kind.__name__}.{name}") for name in fields})


def _value(hint: Any, place: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return _value(next(each for each in arguments if each not in {type(None), UnsetType}), place)
    if origin is tuple:
        return (_value(arguments[0], f"{place}.item"),) * SIZES[place]
    if origin is not None and issubclass(origin, Mapping):
        return {f"{number:04}{'x' * 60}": 2**53 for number in range(SIZES[place])}
    if hint in {bool, int, float, str}:
        return (
            TEXTS.get(place, TEXT)
            if hint is str
            else False
            if hint is bool
            else hint(2**53 * (1 if place in WINDOW else -1))
        )
    return max(hint, key=lambda each: len(each.value)) if issubclass(hint, Enum) else largest(hint)


@each_case("path", sorted(REPLIES))
def test_reply_with_full_tables_fits(path: str) -> None:
    assert len(encode(largest(REPLIES[path]))) <= DOCUMENT_LIMIT_BYTES


CONTENTS = {
    "zero bytes": b"\x00",
    "quotation marks": b'"',
    "line ends": b"\n",
    "letters": b"x",
    "invalid text": b"\xff",
}


@each_case("content", CONTENTS)
@each_case("size", [1, 1_024, 65_536, 4 * 2**20, COMMAND_LIMIT_BYTES])
def test_log_page_fits_and_advances(content: str, size: int) -> None:
    count = min(1_000, 2**23 // size + 2)
    entries = [LogEntryView.of(2**53, 2**53, EntryKind.APPLICATION, 2**53, CONTENTS[content] * size)] * count
    page = fitting(entries)
    assert page
    assert len(encode(LogPage(2**53, 2**53, 2**53, 2**53, page))) <= DOCUMENT_LIMIT_BYTES


@each_case("content", CONTENTS)
def test_entry_in_page_keeps_its_bytes(content: str) -> None:
    data = CONTENTS[content] * 5_000
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, None, data)
    assert entry.data == data
    assert len(encode(entry)) <= entry.json_bytes_max


@pytest.mark.parametrize(("size", "count"), [(1, 4_096), (1_000, 2_000), (2 * TEXT_LIMIT, 400)])
def test_event_page_fits_and_advances(size: int, count: int) -> None:
    log = EventLog("node" * 8, lambda: 2**53)
    kinds = list(EVENT_TYPES.values())[:8]
    for number in range(count):
        log.append(kinds[number % 8], {"payload": "\x00" * size, "text": "\ud800" * min(size, 10)})
    cursor, pages, read = 1, 0, 0
    while (page := log.read(cursor)).events:
        assert len(encode(page)) <= DOCUMENT_LIMIT_BYTES
        assert page.lost == 0
        cursor, pages, read = page.next_cursor, pages + 1, read + len(page.events)
    assert (read, cursor) == (count, log.next_cursor)
    assert pages > 1


def test_backup_has_larger_limit() -> None:
    assert BACKUP_LIMIT_BYTES > DOCUMENT_LIMIT_BYTES
