"""The farm's state on this node: it decodes and applies committed entries, and reports changes to listeners.

    committed entries ──▶ decode, verify ──▶ Farm.apply ──▶ changes ──▶ trace, `on_change`
                                        ├──▶ LogTime, LogTimeIndex  └──▶ callers that wait for `news`
                                        └──▶ `on_foreign`

The state is rebuilt at each start, from a snapshot and the log after it. Entries of earlier runs do not write events,
because such events would carry the time of this start. The transport sends the index of the previous configuration with
each configuration (`configuration_before`), so the indexes of configurations are kept.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import assert_never

import trio

from bridge.api.events import change_event
from bridge.api.trace import Scalar
from bridge.core.farm.state_machine import IGNORED, Change, EntryTooEarly, Farm
from bridge.core.log.feature_level import SUPPORTED_LEVEL, UnsupportedLevelError, may_raise
from bridge.core.log.kinds import EntryCounter, kind_of
from bridge.core.log.records import (
    Clock,
    Correction,
    Foreign,
    KafkaRecord,
    Level,
    ProvenRecord,
    Record,
    Report,
    request_of,
)
from bridge.core.log.weights import CommandRefused
from bridge.core.membership.admission import raft_id_of, server_label
from bridge.core.membership.authors import EntryWithoutEffect, NoEffect
from bridge.core.publishing.arrival import LookUps
from bridge.core.publishing.candidates import candidates_of
from bridge.core.publishing.choice_reasons import reason_of_change
from bridge.core.publishing.publisher_election import PublisherChanged
from bridge.core.publishing.without_quorum import QuorumWatch
from bridge.core.state.farm_state import FarmState, MasterState
from bridge.core.state.log_time import ClockJudgment, LogTime
from bridge.core.state.log_time_index import LogTimeIndex
from bridge.core.state.reqids import ReqidTableError, Update
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.wire.log.entries import EntryReader, decode
from bridge.wire.log.snapshot import FarmSnapshot, FarmSnapshotError, decode_farm, encode_farm
from consensus import (
    Configuration,
    Entry,
    EntryKind,
    Index,
    LogId,
    decode_configuration,
    integer_id,
    now_ms,
)
from consensus.sessions import RequestId, SessionTableError, parse_request_id

CONFIGURATIONS_MAX = 4096
REFUSALS_MAX = 256
RETENTION_MS = 7 * 24 * 3600 * 1000


def _ignore(*_: object) -> None:
    """Do nothing with a change, an entry or a report."""


class AppliedState:
    """The state machine and its listeners: applies committed entries in order, and replies to queries."""

    def __init__(
        self,
        log_time_base_ms: int,
        trace: EventLog,
        founders: tuple[bytes, ...],
        cluster_id: bytes,
        *,
        on_change: Callable[[Change], None] = _ignore,
        on_entry_without_effect: Callable[[EntryWithoutEffect, int], None] = _ignore,
        on_foreign: Callable[[ProvenRecord], None] = _ignore,
        on_report: Callable[[Report, Mapping[str, MasterState]], None] = _ignore,
        name_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """Start with an empty log.

        `on_change` receives every change, including changes by entries of earlier runs. `on_entry_without_effect`, with
        log time, and `on_foreign` receive only entries committed in this run. The state machine ignores foreign
        entries. `on_report` receives every report with effect and the reports of a restored snapshot, each with the
        state of the masters at that time. `name_of` returns the name of a server for the events.
        """
        self._farm = Farm(log_time_base_ms, founders=founders)
        self.entries = EntryReader(cluster_id)
        """The reader of this farm's entries, with their authors."""
        self.log_time = LogTime(log_time_base_ms, now_ms(), self._farm.tuning.period_ms)
        self.moments = LogTimeIndex.from_base(log_time_base_ms)
        """Log time by entry."""
        self.quorum = QuorumWatch(now_ms())
        self.look_ups = LookUps()
        """The results of each server's last look-ups of the masters."""
        self._trace = trace
        self._on_change = on_change
        self._on_entry_without_effect = on_entry_without_effect
        self._on_foreign = on_foreign
        self._on_report = on_report
        self._name_of = name_of
        self._configuration_indexes = array("q")
        self._waiting = trio.lowlevel.ParkingLot()
        self._history_ends: Index = 0
        self.last_for_readers: Index = 0
        """Index of the last entry for readers (`is_for_readers`).

        After a snapshot is restored, this is the index of the snapshot's end: the exact index would require a read of
        older entries.
        """
        self._refusals: dict[Index, str] = {}
        self.records: Counter[EntryCounter | NoEffect] = Counter(dict.fromkeys((*EntryCounter, *NoEffect), 0))

    @property
    def farm(self) -> Farm:
        """The state machine."""
        return self._farm

    @property
    def state(self) -> FarmState:
        """The state that all servers share after the last applied entry."""
        return self._farm.state

    def is_skipped(self, index: Index, data: bytes) -> bool:
        """Return True if the committed entry at `index` was not applied.

        It may be a copy of a request, or its request was expired, too early or out of order.
        """
        if self.state.kafka.is_skipped(index):
            return True
        if b"zmq:" not in data and b"\\" not in data:
            return False
        reqids = self._farm.reqids
        if not reqids.may_have_forgotten(index):
            return reqids.is_skipped(index)
        update = self.update_in(data)
        first = None if update is None else reqids.index_of(update)
        return first is not None and first != index

    def is_for_readers(self, index: Index, data: bytes, record: Record | None) -> bool:
        """Return True if the entry at `index`, a command, is for readers of the log.

        Repeated submissions, and entries with the state of producers and consumer groups, are not for readers. Callers
        pass None as `record` if the entry's bytes show that it is not an entry of the farm.
        """
        return bool(data) and not isinstance(record, KafkaRecord) and not self.is_skipped(index, data)

    def configuration_before(self, index: Index) -> Index:
        """Return the index of the last configuration before `index`; 0 if none is kept."""
        place = bisect_right(self._configuration_indexes, index - 1)
        return self._configuration_indexes[place - 1] if place else 0

    def refusal_of(self, index: Index) -> str | None:
        """Return the reason why the entry at `index` is without effect; None if it has an effect, or is too old."""
        return self._refusals.get(index)

    def history_ends_at(self, index: Index) -> None:
        """Treat entries up to `index` as entries of earlier runs."""
        self._history_ends = index

    async def news(self) -> None:
        """Wait until something is applied after the call."""
        await self._waiting.park()

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Apply committed entries; see `StateMachine.apply`."""
        for index, entry in enumerate(entries, first):
            self._apply(index, entry)
        self._waiting.unpark_all()

    def snapshot(self) -> Iterator[bytes]:
        """Encode the present state: immutable parts are referenced, growing parts are copied."""
        return encode_farm(
            FarmSnapshot(
                self.state,
                self._farm.tuning.period_ms,
                self._farm.sessions.dump(),
                self.moments.indexes[:],
                self.moments.times_ms[:],
                self._configuration_indexes[:],
                self._farm.reqids.dump(),
            )
        )

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Restore the state that `snapshot` returned after the entry at `last`.

        As in a replay of the log, this does not write events. Raise `FarmSnapshotError` or `UnsupportedLevelError`.
        """
        snapshot = await decode_farm(state)
        if snapshot.farm.level > SUPPORTED_LEVEL:
            raise UnsupportedLevelError(snapshot.farm.level, "")
        try:
            self._farm.restore(snapshot.farm, snapshot.period_ms, snapshot.sessions, snapshot.reqids)
        except (SessionTableError, ReqidTableError) as error:
            raise FarmSnapshotError(f"the farm's snapshot cannot be read: {error}") from error
        self.moments = LogTimeIndex(snapshot.moment_indexes, snapshot.moment_times_ms)
        self._configuration_indexes = array("q", snapshot.configuration_indexes)
        self._history_ends = max(self._history_ends, last.index)
        self.last_for_readers = last.index
        for server in self.state.servers.values():
            self._on_report(server.report, self.state.masters)
        self.log_time.period_changed(snapshot.period_ms)
        self.log_time.clock_applied(self.state.log_time_ms, now_ms())
        self._waiting.unpark_all()

    def date_ms(self) -> int:
        """Return log time if a clock entry was committed since the start; else the time of this machine's clock."""
        return self.log_time.paced(now_ms()) if self.quorum.moved else clock_ms()

    def request_of(self, command: bytes) -> RequestId | None:
        """Return the request of an entry with its author, as the session table stores it: authors may use equal ids."""
        return self._farm.session_of(self.entries.read_submitted(command)) if _may_name_request(command) else None

    def request_named_in(self, command: bytes) -> RequestId | None:
        """Return the request that the entry itself names, regardless of its author."""
        request = request_of(decode(command)) if _may_name_request(command) else None
        return None if request is None else parse_request_id(request)

    def update_in(self, command: bytes) -> Update | None:
        """Return the update by ØMQ Raft in an entry; None if the entry is not one."""
        return self._farm.update_of(self.entries.read_submitted(command)) if _may_name_request(command) else None

    def was_executed(self, request: RequestId) -> bool:
        """Return True if the session table contains this request."""
        return self._farm.sessions.was_executed(request)

    def judge_clocks(self, server_id: int) -> ClockJudgment | None:
        """Compare the servers' clocks with the majority time, as server `server_id` measures it by its own clock."""
        return self.log_time.judge(now_ms(), clock_ms(), server_id, self.state.clocks)

    def keep_from(self) -> Index:
        """Return the first index to keep: older entries are more than seven days of log time old."""
        return self.moments.last_until(self.state.log_time_ms - RETENTION_MS)

    def _apply(self, index: Index, entry: Entry) -> None:
        match entry.kind:
            case EntryKind.CONFIGURATION:
                configuration = decode_configuration(entry.data)
                members = frozenset(map(integer_id, configuration.member_ids))
                self._farm.configure(index, entry.term, majorities_of(configuration), members)
                self._configuration_indexes.append(index)
                if len(self._configuration_indexes) > CONFIGURATIONS_MAX:
                    del self._configuration_indexes[: CONFIGURATIONS_MAX // 2]
            case EntryKind.COMMAND:
                read = self.entries.read(entry.data)
                self._take(index, entry.term, read)
                if self.is_for_readers(index, entry.data, read.record):
                    self.last_for_readers = index
                if isinstance(read.record, Foreign) and index > self._history_ends:
                    self._on_foreign(read)
            case EntryKind.NO_OP | EntryKind.CONTROL:
                pass
            case _:
                assert_never(entry.kind)

    def _take(self, index: Index, term: int, entry: ProvenRecord) -> None:
        record = entry.record
        if (
            isinstance(record, Level)
            and record.number > SUPPORTED_LEVEL
            and may_raise(self.state.level, record)
            and self._farm.without_effect(entry) is None
        ):
            raise UnsupportedLevelError(record.number, record.version, index)
        changes = self._farm.apply(index, term, entry)
        self.records[kind_of(record).counter] += 1
        self._pass_report(record)
        if not any(isinstance(change, IGNORED) for change in changes):
            self._note_time(index, record)
            self._note_look_ups(record)
        for change in changes:
            if isinstance(change, EntryWithoutEffect):
                self.records[change.reason] += 1
            refusal = _refusal_in(change)
            if refusal is not None:
                self._refusals[index] = refusal
                if len(self._refusals) > REFUSALS_MAX:
                    del self._refusals[min(self._refusals)]
            if index > self._history_ends:
                event_type, data = change_event(change)
                if isinstance(change, PublisherChanged):
                    data |= self._reason_of(change)
                self._trace.append(event_type, self._with_names(data), log_time_ms=self.state.log_time_ms)
                if isinstance(change, EntryWithoutEffect):
                    self._on_entry_without_effect(change, self.state.log_time_ms)
            self._on_change(change)

    def _pass_report(self, record: Record) -> None:
        """Call `on_report` if the report had an effect."""
        applied = self.state.servers.get(record.server_id) if isinstance(record, Report) else None
        if applied is not None and isinstance(record, Report) and applied.report.masters is record.masters:
            self._on_report(record, self.state.masters)

    def _reason_of(self, change: PublisherChanged) -> dict[str, Scalar]:
        candidates = candidates_of(self.state, change.master, self._farm.tuning)
        reason = reason_of_change(
            change.server_id, change.previous, candidates, lambda each: server_label(each, self._name_of(each))
        )
        return {} if reason is None else {"reason": reason}

    def _with_names(self, data: dict[str, Scalar]) -> dict[str, Scalar]:
        """Return the facts with the known names of the servers whose Raft ids or identities are in them."""
        named = dict(data)
        for number, name in (("server", "name"), ("previous", "previousName")):
            server_id = data.get(number)
            known = self._name_of(server_id) if isinstance(server_id, int) else None
            if known is not None:
                named.setdefault(name, known)
        for identity, name in (("id", "name"), ("author", "authorName")):
            node_id = data.get(identity)
            server_id = raft_id_of(self.state.admitted, bytes.fromhex(node_id)) if isinstance(node_id, str) else None
            known = None if server_id is None else self._name_of(server_id)
            if known is not None:
                named.setdefault(name, known)
        return named

    def _note_time(self, index: Index, record: Record) -> None:
        match record:
            case Clock():
                self.quorum.clock_committed(now_ms())
                self._note_log_time(index)
            case Correction() if self.state.log_time_ms != self.moments.now_ms:
                self._note_log_time(index)
            case Report() if index > self._history_ends:
                self.log_time.report_applied(record.server_id, record.date_ms, now_ms())
            case _:
                pass

    def _note_look_ups(self, record: Record) -> None:
        if isinstance(record, Report) and record.server_id in self.state.servers:
            self.look_ups.note(record, self.state.servers[record.server_id].reported_ms)

    def _note_log_time(self, index: Index) -> None:
        moment_ms = self.state.log_time_ms
        self.log_time.period_changed(self._farm.tuning.period_ms)
        self.log_time.clock_applied(moment_ms, now_ms())
        self.moments.note(index, moment_ms)


def _may_name_request(command: bytes) -> bool:
    """Return True if the entry can name a request.

    Callers decode an entry only if its bytes contain the JSON name `request` or an escape.
    """
    return b'"request"' in command or b"\\" in command


def majorities_of(configuration: Configuration) -> tuple[tuple[int, ...], ...]:
    """Return the sets of voters that must each agree by a majority, as the state machine stores them."""
    return tuple(tuple(sorted(map(integer_id, each))) for each in configuration.majorities)


def _refusal_in(change: Change) -> str | None:
    match change:
        case CommandRefused(_, reason):
            return reason
        case EntryTooEarly(kind, needed):
            return f"not all servers of the farm understand {kind} yet: it counts from the feature level {needed} on"
        case EntryWithoutEffect(_, author, reason):
            return f"{reason.refusal}{'' if author is None else f' (author {author.hex()})'}"
        case _:
            return None
