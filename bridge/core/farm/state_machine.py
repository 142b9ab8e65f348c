"""The farm's replicated state machine: committed records in, one state out, equal on every server.

docs/reference/application-json.md lists the kinds of entries, their authors, effects and refusals, and the request ids.
docs/explanation/publishing.md explains the choice of publishers and leaves, docs/explanation/state.md the tables.

An entry has an effect only if its author may write it and writes it for the first time
(`bridge.core.membership.authors`). `bridge.wire` has already verified the author's signature. Any other entry stays in
the log and is only counted and reported. An entry of a kind above the farm's level does not have an effect either.
An older version treats the entry as foreign, so servers of different versions would compute different states.

Three tables recognize repeated submissions: sessions (`consensus.sessions`), the reqids of ØMQ Raft
(`bridge.core.state.reqids`), and the producers of Kafka (`bridge.core.state.kafka_clients`). An entry of a producer
needs a member's proof: otherwise any client could use up a producer's sequences.

The publisher and the leaves of every master are chosen again after each report, clock entry and change of weights. The
choice is part of the state and does not need a message. It depends only on the previous state, the entry and the
tuning. Entries up to the applied index are ignored, so a replay does not change anything.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.farm.operator_commands import CommandChange, apply_command
from bridge.core.log.feature_level import BOUNDS_LEVEL, KAFKA_LEVEL, REQIDS_LEVEL, may_raise
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import (
    Admission,
    Approval,
    Author,
    Clock,
    Eviction,
    Foreign,
    GroupOffset,
    IdentityRecord,
    KeyReplacement,
    Level,
    OperatorCommand,
    ProducerStart,
    ProvenRecord,
    Publication,
    Report,
    ServerRecord,
    request_of,
)
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.log.weights import CommandRefused, fading
from bridge.core.membership.admission import (
    AdmissionLapsed,
    AdmissionRefused,
    Admitted,
    LeaderShare,
    ServerAdmitted,
    ServerRetired,
    admit,
    after_time,
    approve,
    came_alive,
    of_founders,
    raft_id_of,
    server_name,
)
from bridge.core.membership.authors import (
    AuthorNumbers,
    EntryWithoutEffect,
    NoEffect,
    numbers_after,
    without_effect,
    without_former,
)
from bridge.core.membership.eviction import (
    NO_ERA_LEFT,
    EvictionRefused,
    KeysNotReplaced,
    NewEra,
    ServerEvicted,
    evict,
    replace_keys,
)
from bridge.core.publishing.publication import latest_second
from bridge.core.publishing.publisher_election import choose_again
from bridge.core.state.farm_state import (
    AUTHOR_SESSIONS_MAX,
    AUTHORS_MARK,
    LEAVES_PER_SERVER_MAX,
    LOG_TIME_LIMIT_MS,
    MASTERS_MAX,
    MASTERS_OF_SERVER_MAX,
    PERIOD_MAX_MS,
    PERIOD_MIN_MS,
    SERVERS_MAX,
    SESSION_LIMITS,
    FarmState,
    FarmTuning,
    MasterState,
    ServerState,
)
from bridge.core.state.kafka_clients import NotedOffset, Owner, Produced, ProducedStatus, offset_refusal, produced_in
from bridge.core.state.recovery import FIRST_TERM, UNKNOWN_TERM
from bridge.core.state.reqids import Reqids, ReqidStatus, Update, reqid_in
from consensus import LogId
from consensus.sessions import RequestId, RequestStatus, SessionTable, parse_request_id

_NUMBER_BYTES = 8
"""Bytes of each number in the result of a request: the index and the term of the applied entry."""
_UNKNOWN_MARK = "?"
"""Prefix of the client names of unknown authors in the table of sessions; see `AUTHORS_MARK`."""
_CLIENT_DIGITS = 32
"""Length of the hash that replaces a client name chosen by an author, because the table limits the length of names."""
_AS_REQUEST = {
    ReqidStatus.NEW: RequestStatus.NEW,
    ReqidStatus.DUPLICATE: RequestStatus.DUPLICATE,
    ReqidStatus.EXPIRED: RequestStatus.EXPIRED,
    ReqidStatus.AHEAD: RequestStatus.EXPIRED,
    ReqidStatus.FULL: RequestStatus.EXPIRED,
}
_OF_PRODUCER = {
    ProducedStatus.NEW: RequestStatus.NEW,
    ProducedStatus.DUPLICATE: RequestStatus.DUPLICATE,
    ProducedStatus.OUT_OF_ORDER: RequestStatus.EXPIRED,
    ProducedStatus.FENCED: RequestStatus.EXPIRED,
    ProducedStatus.FOREIGN: RequestStatus.EXPIRED,
    ProducedStatus.UNKNOWN: RequestStatus.EXPIRED,
}


_NO_PLACE_FOR_MASTER = (
    f"the master {{}}.b32.i2p is not published: the farm publishes {MASTERS_MAX} masters, first one from each server,"
    f" then up to {MASTERS_OF_SERVER_MAX} from each. Remove another master from the settings of the nodes that report"
    " it"
)


class PublicationAccepted(Struct, frozen=True):
    """An accepted publication: the publisher may now sign the planned structure and pass it to its router."""

    publication: Publication


class PublicationRefused(Struct, frozen=True):
    """A publication that the publisher must not sign, and the reason."""

    publication: Publication
    reason: str


class ClockOff(Struct, frozen=True):
    """A server's clock contradicts log time by `offset_ms` (positive: it is fast)."""

    server_id: int
    offset_ms: int


class ClockBounded(Struct, frozen=True):
    """A clock entry of `server_id` exceeded the limit set by a majority's clocks: log time was set to the limit."""

    server_id: int
    excess_ms: int


class ServerForgotten(Struct, frozen=True):
    """A server has not reported for a long time, so its leaves no longer count."""

    server_id: int


class RequestRefused(Struct, frozen=True):
    """The request of an entry is expired, too early or out of order, so the entry is ignored."""

    request: str


class EntryTooEarly(Struct, frozen=True):
    """An entry of a kind that the farm's level does not include yet."""

    kind: str
    needed_level: int


IGNORED: Final = (EntryWithoutEffect, RequestRefused, EntryTooEarly)
"""The changes by an ignored entry: its content, such as the clock in a replayed report, does not count."""


class LevelRefused(Struct, frozen=True):
    """An entry of `level` does not have an effect: the farm is at `current`, and levels rise by one."""

    level: int
    current: int


class LevelRaised(Struct, frozen=True):
    """The farm now has this feature level."""

    level: int


Change = (
    PublicationAccepted
    | PublicationRefused
    | ClockOff
    | ClockBounded
    | ServerForgotten
    | RequestRefused
    | ServerAdmitted
    | AdmissionRefused
    | AdmissionLapsed
    | CommandChange
    | ServerRetired
    | ServerEvicted
    | EvictionRefused
    | NewEra
    | KeysNotReplaced
    | LevelRaised
    | LevelRefused
    | EntryTooEarly
    | EntryWithoutEffect
)


class Farm:
    """The state machine. `log_time_base_ms` is the log time of the empty log: the median of the founders' clocks."""

    def __init__(
        self, log_time_base_ms: int, tuning: FarmTuning | None = None, founders: tuple[bytes, ...] = ()
    ) -> None:
        # The period in the tuning is only an initial value: a clock entry changes it on all servers.
        self.tuning = tuning if tuning is not None else FarmTuning()
        admitted = of_founders(founders)
        clocks = VoterClocks(log_time_base_ms, (tuple(sorted(admitted)),) if admitted else ())
        self.state = FarmState(log_time_ms=log_time_base_ms, admitted=admitted, clocks=clocks)
        self.sessions = SessionTable(SESSION_LIMITS)
        self.reqids = Reqids()

    def restore(self, state: FarmState, period_ms: int, sessions: bytes, reqids: bytes = b"") -> None:
        """Continue from the snapshot of another server, or of a previous run.

        Raises `SessionTableError` or `ReqidTableError`.
        """
        self.sessions = SessionTable.load(sessions, SESSION_LIMITS)
        self.reqids = Reqids.load(reqids)
        self.tuning = replace(self.tuning, period_ms=period_ms)
        # A snapshot from before the first admission does not contain the founders. In all other cases, rows that only
        # the present state has were deleted since.
        self.state = replace(state, admitted=state.admitted or self.state.admitted)

    def apply(self, index: int, term: int, entry: ProvenRecord) -> tuple[Change, ...]:
        """Apply one committed record; return the changes, for the trace and for the publisher."""
        if index <= self.state.applied_index:
            return ()
        record = entry.record
        verdict = self._admit(entry, index, term)
        state = self.state.after(index, term)
        changes: list[Change] = []
        match verdict:
            case RequestStatus.NEW if isinstance(record, Foreign):
                pass  # data of users, which do not need a signature
            case RequestStatus.NEW:
                reason = self.without_effect(entry)
                if reason is not None:
                    changes = [_without_effect(entry, reason)]
                elif kind_of(record).level > state.level:
                    changes = [EntryTooEarly(type(record).__name__, kind_of(record).level)]
                else:
                    state = replace(state, numbers=numbers_after(self._numbers_for(entry), entry))
                    state, changes = self._apply(_author_alive(state, entry), entry)
            case RequestStatus.DUPLICATE if entry.author is not None and not isinstance(record, Foreign):
                changes = [_without_effect(entry, NoEffect.REPEATED)]
            case RequestStatus.DUPLICATE:
                pass
            case RequestStatus.EXPIRED:
                changes = [RequestRefused(request_of(record) or "")]
            case _:
                assert_never(verdict)
        self.state = state
        return tuple(changes)

    def without_effect(self, entry: ProvenRecord) -> NoEffect | None:
        """Return the reason if the author or the number of this entry prevents its effect; None otherwise."""
        state = self.state
        return without_effect(entry, state.admitted, state.clients, state.numbers)

    def configure(
        self, index: int, term: int, majorities: tuple[tuple[int, ...], ...], members: Collection[int] = ()
    ) -> None:
        """Apply a committed configuration: a decision needs a majority in each of these voter sets.

        `members` are all servers in the configuration, learners included. Their admissions do not lapse any more.
        """
        if index > self.state.applied_index:
            state, clocks = self.state, self.state.clocks.configured(majorities)
            admitted = came_alive(state.admitted, members)
            self.state = replace(state, applied_index=index, applied_term=term, clocks=clocks, admitted=admitted)

    def _apply(  # noqa: PLR0911 - one case per kind
        self, state: FarmState, entry: ProvenRecord
    ) -> tuple[FarmState, list[Change]]:
        record = entry.record
        if isinstance(record, IdentityRecord):
            return _apply_identity(state, record, entry.data, self._holder_of_rows(entry))
        if isinstance(record, OperatorCommand):
            after, granted = apply_command(state, record, self.tuning, self._holder_of_rows(entry))
            back_ms = max(0, state.log_time_ms - after.log_time_ms)
            self.sessions.turn_back(back_ms)
            if state.level >= BOUNDS_LEVEL:
                self.reqids.turn_back(after.log_time_ms, back_ms)
            return after, [*granted]
        match record:
            case Report():
                return _apply_report(state, record, self.tuning)
            case Clock():
                if record.period_ms is not None and PERIOD_MIN_MS <= record.period_ms <= PERIOD_MAX_MS:
                    self.tuning = replace(self.tuning, period_ms=record.period_ms)
                return _apply_clock(state, record, self.tuning)
            case Publication():
                return _apply_publication(state, record, self.tuning)
            case ProducerStart() | GroupOffset():
                return _apply_kafka(state, record, entry.author)
            case Foreign():
                return state, []
            case _:
                assert_never(record)

    def session_of(self, entry: ProvenRecord) -> RequestId | None:
        """Return the request id of an entry in the form of the table of sessions; None without one.

        A request of a proven entry belongs to its author. Otherwise any client could submit an entry under the next
        request id of a correct server, whose own entry would count as a repetition. Sessions of unknown authors do not
        displace the first `AUTHOR_SESSIONS_MAX` sessions of an author of the farm: these are protected. A session of a
        known author does not change from protected to unprotected or back: otherwise its requests would count as new.
        """
        request = request_of(entry.record)
        request_id = None if request is None else parse_request_id(request)
        if request_id is None or request_id.client.startswith((AUTHORS_MARK, _UNKNOWN_MARK)):
            return None
        if entry.author is None:
            return request_id
        unprotected = _of_author(_UNKNOWN_MARK, entry.author, request_id)
        if not _is_known_author(self.state, entry.author):
            return unprotected
        own, sessions = _of_author(AUTHORS_MARK, entry.author, request_id), self.sessions
        if sessions.has(own.client, own.session_start):
            return own
        crowded = sessions.count(_author_prefix(AUTHORS_MARK, entry.author)) >= AUTHOR_SESSIONS_MAX
        return unprotected if crowded or sessions.has(unprotected.client, unprotected.session_start) else own

    def update_of(self, entry: ProvenRecord) -> Update | None:
        """Return the update by ØMQ Raft in an entry; None for other entries, or below `REQIDS_LEVEL`."""
        reqid = reqid_in(request_of(entry.record)) if self.state.level >= REQIDS_LEVEL else None
        if reqid is None:
            return None
        is_proven = entry.author is not None and _is_known_author(self.state, entry.author)
        return Update(reqid, is_proven, self._holder_of_rows(entry) if is_proven else None)

    def produced_of(self, entry: ProvenRecord) -> Produced | None:
        """Return producer and sequence of an entry of a Kafka producer.

        None for other entries, or without a member's proof.
        """
        named = produced_in(request_of(entry.record)) if self.state.level >= KAFKA_LEVEL else None
        if named is None or (named.principal and self.state.level < BOUNDS_LEVEL):
            return None
        return named if _is_of_member(self.state, entry.author) else None

    def position_of(self, request: RequestId) -> LogId | None:
        """Return index and term of the entry applied under this request id; None if none is known."""
        if not self.sessions.was_executed(request):
            return None
        result = self.sessions.result_of(request) or b""
        return LogId(int.from_bytes(result[:_NUMBER_BYTES]), int.from_bytes(result[_NUMBER_BYTES:]))

    def _admit(self, entry: ProvenRecord, index: int, term: int) -> RequestStatus:
        """Return the verdict of the tables on the request of an entry. An entry without a request is always new."""
        update = self.update_of(entry)
        if update is not None:
            return _AS_REQUEST[self.reqids.admit(update, index, self.state.log_time_ms)]
        produced = self.produced_of(entry)
        if produced is not None:
            author = self._author_of_skipped(entry, produced)
            kafka, found = self.state.kafka.admit(produced, index, self.state.log_time_ms, author)
            self.state = replace(self.state, kafka=kafka)
            return _OF_PRODUCER[found]
        request_id = self.session_of(entry)
        if request_id is None:
            return RequestStatus.NEW
        verdict = self.sessions.admit(request_id, index, self.state.log_time_ms)
        if verdict is RequestStatus.NEW:
            self.sessions.record(request_id, b"".join(number.to_bytes(_NUMBER_BYTES) for number in (index, term)))
        elif self.state.level >= KAFKA_LEVEL:
            kafka = self.state.kafka.skipping(index, self._author_of_skipped(entry, None))
            self.state = replace(self.state, kafka=kafka)
        return verdict

    def _holder_of_rows(self, entry: ProvenRecord) -> bytes | None:
        """Return the author whose share of the tables an entry uses; None below `BOUNDS_LEVEL`."""
        return None if entry.author is None or self.state.level < BOUNDS_LEVEL else entry.author.node_id

    def _numbers_for(self, entry: ProvenRecord) -> Mapping[bytes, AuthorNumbers]:
        """Return the table of numbers, with room for the author of the entry."""
        numbers, state, holder = self.state.numbers, self.state, self._holder_of_rows(entry)
        return (
            numbers if holder is None or holder in numbers else without_former(numbers, state.admitted, state.clients)
        )

    def _author_of_skipped(self, entry: ProvenRecord, produced: Produced | None) -> str | None:
        """Return the holder of a row of `KafkaClients.skipped`: a user, a member or client key.

        Unknown authors share one holder.
        """
        if self.state.level < BOUNDS_LEVEL:
            return None
        if produced is not None and produced.principal:
            return produced.principal
        is_known = entry.author is not None and _is_known_author(self.state, entry.author)
        return entry.author.node_id.hex() if entry.author is not None and is_known else ""


def result_of_first_term(result: bytes) -> bytes:
    """Return the result of an earlier request, with its term reset: the terms of a new cluster restart."""
    return result[:_NUMBER_BYTES] + min(int.from_bytes(result[_NUMBER_BYTES:]), FIRST_TERM).to_bytes(_NUMBER_BYTES)


def _is_known_author(state: FarmState, author: Author) -> bool:
    """Return True if the author is a member of the farm (even if removed from the group) or an admitted client key."""
    client = state.clients.get(author.node_id)
    if client is not None and client.admitted:
        return True
    return _is_of_member(state, author)


def _is_of_member(state: FarmState, author: Author | None) -> bool:
    server_id = None if author is None else raft_id_of(state.admitted, author.node_id)
    return server_id is not None and state.admitted[server_id].is_member


def _author_prefix(mark: str, author: Author) -> str:
    return f"{mark}{author.node_id.hex()}-"


def _of_author(mark: str, author: Author, request: RequestId) -> RequestId:
    client = hashlib.sha256(request.client.encode()).hexdigest()[:_CLIENT_DIGITS]
    return replace(request, client=_author_prefix(mark, author) + client)


def _author_alive(state: FarmState, entry: ProvenRecord) -> FarmState:
    """Record that an identity has become active, because one of its entries has an effect."""
    if entry.author is None or isinstance(entry.record, Foreign):
        return state
    record, author_id = entry.record, entry.author.node_id
    server_id = record.server_id if isinstance(record, ServerRecord) else raft_id_of(state.admitted, author_id)
    admitted = came_alive(state.admitted, () if server_id is None else (server_id,))
    return state if admitted is state.admitted else replace(state, admitted=admitted)


def _without_effect(entry: ProvenRecord, reason: NoEffect) -> EntryWithoutEffect:
    author = None if entry.author is None else entry.author.node_id
    return EntryWithoutEffect(kind_of(entry.record).name, author, reason)


def _apply_report(state: FarmState, report: Report, tuning: FarmTuning) -> tuple[FarmState, list[Change]]:
    clocks = state.clocks.reported(report.server_id, report.date_ms, state.applied_term)
    if report.server_id in state.removed:
        # A removed server votes until the leader has removed it from the group. While its vote is needed, log time
        # needs its clock.
        return replace(state, clocks=clocks), []
    before = state.servers.get(report.server_id)
    # Log time advances once a period, so it usually lags the true time by at most one period.
    earliest_ms, latest_ms = state.log_time_ms, state.log_time_ms + tuning.period_ms
    offset_ms = max(0, report.date_ms - latest_ms) + min(0, report.date_ms - earliest_ms)
    clock_off = abs(offset_ms) > tuning.clock_tolerance_ms
    lag_ms = before.lag_ms if before is not None else 0
    lag_ms = min(max(lag_ms, earliest_ms - report.date_ms), latest_ms - report.date_ms)
    kept = replace(report, destinations=report.destinations[:LEAVES_PER_SERVER_MAX])
    servers = dict(state.servers)
    servers[report.server_id] = ServerState(kept, report.date_ms + lag_ms, lag_ms, clock_off)
    if len(servers) > SERVERS_MAX:
        others = [each for each in servers if each != report.server_id]
        if state.level >= BOUNDS_LEVEL:
            # A leader can admit more servers than there are places; only a few of them become voters.
            others = [each for each in others if not clocks.is_voter(each)] or others
        del servers[min(others, key=lambda each: (servers[each].reported_ms, each))]
    changes: list[Change] = []
    if clock_off and (before is None or not before.clock_off):
        changes.append(ClockOff(report.server_id, offset_ms))
    state, chosen = choose_again(replace(state, servers=servers, clocks=clocks), tuning, at_clock=False)
    known = () if before is None else before.report.masters
    changes += [
        CommandRefused("report", _NO_PLACE_FOR_MASTER.format(hash_of(part.destination)))
        for part in report.masters
        if part.destination not in state.masters and all(part.destination != each.destination for each in known)
    ]
    return state, changes + chosen


def _apply_identity(
    state: FarmState,
    record: Admission | Approval | Eviction | KeyReplacement | Level,
    entry: bytes,
    leader: bytes | None,
) -> tuple[FarmState, list[Change]]:
    share = None if leader is None else LeaderShare(leader, state.admitted_by)
    match record:
        case Admission():
            admitted, admission = admit(state.admitted, record, entry, state.log_time_ms, share)
            return _with_admitted(state, admitted, leader), [] if admission is None else [admission]
        case Approval():
            admitted, changes = approve(state.admitted, record, entry, state.log_time_ms, share)
            return _with_admitted(state, admitted, leader), list(changes)
        case Eviction():
            admitted, rekeying, eviction = evict(state.admitted, state.rekeying, record, state.level)
            without_keys = isinstance(eviction, ServerEvicted) and not eviction.keys_replaced
            kept = [KeysNotReplaced(record.era, NO_ERA_LEFT)] if without_keys else []
            return replace(_with_admitted(state, admitted, leader), rekeying=rekeying), [eviction, *kept]
        case KeyReplacement():
            rekeying, replaced = replace_keys(state.rekeying, record, state.level)
            return replace(state, rekeying=rekeying), [replaced]
        case Level():
            if may_raise(state.level, record):
                return replace(state, level=record.number), [LevelRaised(record.number)]
            return state, [] if record.number <= state.level else [LevelRefused(record.number, state.level)]


def _with_admitted(state: FarmState, admitted: Mapping[int, Admitted], leader: bytes | None) -> FarmState:
    """Return the state with this table of identities.

    From `BOUNDS_LEVEL` on, `leader` is set, and a new row counts against the leader's share. The id of a deleted row is
    never used again, so its places in `removed` and `admitted_by` are deleted, too.
    """
    if leader is None or admitted.keys() == state.admitted.keys():
        return replace(state, admitted=admitted)
    by = {server_id: state.admitted_by.get(server_id, b"") for server_id in admitted}
    by |= dict.fromkeys(admitted.keys() - state.admitted.keys(), leader)
    removed = tuple(each for each in state.removed if each in admitted)
    return replace(state, admitted=admitted, removed=removed, admitted_by={at: each for at, each in by.items() if each})


def _apply_kafka(
    state: FarmState, record: ProducerStart | GroupOffset, author: Author | None
) -> tuple[FarmState, list[Change]]:
    kafka, log_time_ms = state.kafka, state.log_time_ms
    is_owned = state.level >= BOUNDS_LEVEL and author is not None
    owner = Owner(record.principal, author.node_id) if author is not None and is_owned else None
    match record:
        case ProducerStart(name):
            return replace(state, kafka=kafka.with_producer(name, state.applied_index, log_time_ms, owner)), []
        case GroupOffset(group, offset, leader_epoch, metadata):
            if owner is None:
                noted = NotedOffset(offset, leader_epoch, metadata, log_time_ms)
                return replace(state, kafka=kafka.noted(group, noted)), []
            refusal = kafka.group_refusal(group, log_time_ms, owner) or offset_refusal(offset, state.applied_index)
            if refusal is not None:
                return state, [CommandRefused("offset", refusal)]
            # A later term is stored as unknown: otherwise other clients of the group would reject the present term.
            known_term = leader_epoch if leader_epoch <= state.applied_term else UNKNOWN_TERM
            noted = NotedOffset(offset, known_term, metadata, log_time_ms)
            return replace(state, kafka=kafka.noted(group, noted, owner)), []


def _apply_clock(state: FarmState, clock: Clock, tuning: FarmTuning) -> tuple[FarmState, list[Change]]:
    if clock.time_ms > LOG_TIME_LIMIT_MS:
        return state, []
    limit_ms = state.clocks.limit_ms(state.applied_term, tuning.period_ms)
    excess_ms = 0 if limit_ms is None else max(0, clock.time_ms - limit_ms)
    log_time_ms = max(state.log_time_ms, clock.time_ms - excess_ms)
    unproven_ms = _unproven_silence_ms(log_time_ms - state.log_time_ms, tuning)
    aged = {
        server_id: replace(server, reported_ms=server.reported_ms + unproven_ms)
        for server_id, server in sorted(state.servers.items())
    }
    silent = [
        server_id for server_id, server in aged.items() if log_time_ms - server.reported_ms > tuning.forget_after_ms
    ]
    servers = {server_id: server for server_id, server in aged.items() if server_id not in silent}
    weights = fading(state.weights, log_time_ms)
    clocks = state.clocks.clock_written(state.applied_term)
    admitted, lapsed = after_time(state.admitted, log_time_ms, unproven_ms)
    by = {at: each for at, each in state.admitted_by.items() if at in admitted} if lapsed else state.admitted_by
    moved = replace(
        state,
        log_time_ms=log_time_ms,
        servers=servers,
        weights=weights,
        clocks=clocks,
        admitted=admitted,
        admitted_by=by,
    )
    state, chosen = choose_again(moved, tuning, at_clock=True)
    bounded = [ClockBounded(clock.server_id, excess_ms)] if excess_ms else []
    return state, [*bounded, *map(ServerForgotten, silent), *lapsed, *chosen]


def _unproven_silence_ms(advance_ms: int, tuning: FarmTuning) -> int:
    """Return the part of an advance of log time that is not evidence of missing reports.

    A leader writes a clock entry each period. An advance of more than `stale_after_ms` means that the farm lacked a
    leader, or that log time waited for the clocks. Without a leader, no report can be committed.
    """
    return advance_ms - tuning.period_ms if advance_ms > tuning.stale_after_ms else 0


def _apply_publication(
    state: FarmState, publication: Publication, tuning: FarmTuning
) -> tuple[FarmState, list[Change]]:
    master = state.masters.get(publication.master)
    if master is None:
        return state, [PublicationRefused(publication, "no server reports for this master destination")]
    unfenced_s = state.unfenced_second(publication.master)
    refusal = _refusal(state, master, publication, unfenced_s, latest_second(state, tuning))
    if refusal is not None:
        return state, [PublicationRefused(publication, refusal)]
    masters = {**state.masters, publication.master: replace(master, publication=publication, forced=False)}
    return replace(state, masters=masters), [PublicationAccepted(publication)]


def _refusal(
    state: FarmState, master: MasterState, publication: Publication, unfenced_s: int, latest_s: int
) -> str | None:
    if master.choice.server_id != publication.server_id:
        names = state.admitted
        chosen = "no server" if master.choice.server_id is None else server_name(names, master.choice.server_id)
        return f"{server_name(names, publication.server_id)} is not the publisher; {chosen} is"
    accepted_s = master.publication.published_s if master.publication is not None else -1
    if publication.published_s <= accepted_s:
        return (
            f"timestamp {publication.published_s} is not after {accepted_s}, the timestamp of the last accepted"
            " publication"
        )
    if publication.published_s <= unfenced_s:
        return (
            f"timestamp {publication.published_s} is not after {unfenced_s}, the timestamp of a publication without a"
            " quorum"
        )
    if publication.published_s > latest_s:
        return f"timestamp {publication.published_s} is too far ahead of log time ({latest_s} at most)"
    return None
