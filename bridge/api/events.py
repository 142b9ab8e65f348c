"""The kinds of events, their facts and sentences, and the merging of several nodes' events into one list.

    EventType  ──▶ EventLog.append(MEMBER_DEAD, facts), docs/reference/events.md
    Change     ──▶ change_event     type and facts
    TraceEvent ──▶ event_sentence   "node-2 will publish hakketfolkgz….b32.i2p, after node-3"
               ──▶ event_text       the sentence after its kind, as in a line of the log
    events of several nodes ──▶ EventStory ──▶ each fact once

The facts of an event are for programs: Raft ids, seconds, addresses. Its sentence has names and times of day instead.
An event of another version, whose kind lacks a sentence here, is printed with its facts.

*Merging.* All servers report changes of the log alike, and most of them report changes in gossip. An event counts as a
repetition if a shown event less than `SAME_FACT_MS` away has the same sentence. A repetition does not extend this time,
so a fact that recurs for long is shown again. The sentences are compared, not the facts: the leader and its followers
report one election with different facts.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from string import Formatter
from typing import Any, Final, assert_never

from msgspec import Struct

from bridge.api.alarms import alarm_severity
from bridge.api.printable import LATEST_MS, SECOND_MS, duration, time_of_day
from bridge.api.trace import Scalar, TraceEvent
from bridge.api.view import Severity
from bridge.api.words import faults_text
from bridge.core.farm.log_time_correction import LogTimeCorrected, SecondForgotten
from bridge.core.farm.operator_commands import PublicationForced, RemovalChanged
from bridge.core.farm.state_machine import (
    Change,
    ClockBounded,
    ClockOff,
    EntryTooEarly,
    LevelRaised,
    LevelRefused,
    PublicationAccepted,
    PublicationRefused,
    RequestRefused,
    ServerForgotten,
)
from bridge.core.log.hashes import hash_of
from bridge.core.log.weights import (
    THOUSANDTHS,
    CommandRefused,
    CostFactorChanged,
    ExclusionChanged,
    FactorsAccepted,
    WeightsChange,
)
from bridge.core.membership.admission import AdmissionLapsed, AdmissionRefused, ServerAdmitted, ServerRetired
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.core.membership.client_keys import ClientChanged
from bridge.core.membership.eviction import EvictionRefused, KeysNotReplaced, NewEra, ServerEvicted
from bridge.core.publishing.publisher_election import PublisherChanged

SAME_FACT_MS: Final = 15_000
FACTS_MAX: Final = 4096
ADDRESS_LETTERS: Final = 12
_SECOND = re.compile(r"\b(timestamp |second |after )([1-9][0-9]{9})\b")
Facts = Mapping[str, Scalar]
Sentence = Callable[[str, Facts], str]
"""Function that returns a sentence, from the name of the reporting node and the facts."""


class EventType(Struct, frozen=True, kw_only=True):
    """One kind of event."""

    kind: str
    sentence: Sentence
    of_farm: bool
    """True for a fact about the farm: it does not matter which node reports it."""
    severity: Severity
    is_transient: bool
    """True for a warning that the node's log shows as information: most of these conditions end within a second."""


EVENT_TYPES: Final[dict[str, EventType]] = {}
"""By kind."""


def _declare(
    kind: str, sentence: str | Sentence, severity: Severity = Severity.OK, *, of_farm: bool, is_transient: bool = False
) -> EventType:
    made = partial(_filled, sentence) if isinstance(sentence, str) else sentence
    declared = EventType(kind=kind, sentence=made, of_farm=of_farm, severity=severity, is_transient=is_transient)
    if EVENT_TYPES.setdefault(kind, declared) is not declared:
        raise ValueError(f"the event {kind} is declared twice")
    return declared


def event_text(event: TraceEvent) -> str:
    """Return an event as a line for people and for `grep`: its kind, then its sentence."""
    sentence = event_sentence(event)
    return f"{event.kind}: {sentence}" if sentence else event.kind


def event_sentence(event: TraceEvent) -> str:
    """Return the sentence of an event, with names and times of day; for an event of another version, its facts."""
    try:
        declared = EVENT_TYPES.get(event.kind)
        return _facts_alone(event.data) if declared is None else declared.sentence(event.node, event.data)
    except KeyError:
        return _facts_alone(event.data)  # An event of another version may lack a fact.


class EventStory:
    """Filters events so that each fact appears once, in bounded memory.

    Call `is_new` for the events of all nodes in the order of their arrival.
    """

    def __init__(self) -> None:
        self._reported_ms: OrderedDict[str, int] = OrderedDict()

    def is_new(self, sentence: str, time_ms: int) -> bool:
        """Return True unless the last new report of the sentence is less than `SAME_FACT_MS` from `time_ms`."""
        last_ms = self._reported_ms.get(sentence)
        if last_ms is not None and abs(time_ms - last_ms) < SAME_FACT_MS:
            return False
        self._reported_ms[sentence] = time_ms
        self._reported_ms.move_to_end(sentence)
        if len(self._reported_ms) > FACTS_MAX:
            self._reported_ms.popitem(last=False)
        return True


def story_line(event: TraceEvent) -> str:
    """Return the event's line in the combined list; a line about a node begins with the node's name."""
    shown = SHOWN_AS.get(event.kind, event.kind)
    sentence = event_sentence(event)
    who = "" if is_of_farm(event) else f"{event.node} "
    return f"{who}{shown}{f': {sentence}' if sentence else ''}"


def is_of_farm(event: TraceEvent) -> bool:
    """Return True for a fact about the farm: it does not matter which node reports it."""
    declared = EVENT_TYPES.get(event.kind)
    return declared is not None and declared.of_farm


def is_warning(event: TraceEvent) -> bool:
    """Return True if the node's log shows the event as a warning: an operator may have to act."""
    declared = EVENT_TYPES.get(event.kind)
    return declared is not None and not declared.is_transient and event_severity(event) is not Severity.OK


def event_severity(event: TraceEvent) -> Severity:
    """Return the severity of the reported alarm or verdict, or of the kind; `OK` for a kind of another version."""
    declared = EVENT_TYPES.get(event.kind)
    if declared is VERDICT_CHANGED:
        severities = {each.value: each for each in Severity}
        return severities.get(str(event.data.get("severity")), Severity.WARNING)
    if declared is ALARM_RAISED:
        return alarm_severity(str(event.data.get("alarm")))
    return Severity.OK if declared is None else declared.severity


# -- words -------------------------------------------------------------------------------------------------------------


def _facts_alone(facts: Facts) -> str:
    return " ".join(f"{key}={_shown(key, value)}" for key, value in _named(facts).items())


def _server(facts: Facts, key: str = "server", name: str = "name") -> str:
    known = facts.get(name)
    if known is not None:
        return str(known)
    return "no server" if facts[key] is None else f"server {facts[key]}"


def _clocks(reason: Scalar) -> str:
    """Replace each second since the epoch with a time of day."""
    return _SECOND.sub(lambda found: f"{found[1]}{time_of_day(int(found[2]))}", str(reason))


def _address(address: Scalar) -> str:
    text = str(address)
    head = text.removesuffix(".b32.i2p")
    return text if len(head) <= ADDRESS_LETTERS else f"{head[:ADDRESS_LETTERS]}….b32.i2p"


def _moment(second: Scalar) -> str:
    """Return date and time of day, for times that can be far from the event."""
    date, clock = _date(second), time_of_day(second)
    return clock if date == clock else f"{date} {clock}"  # Both are the same text if the fact is not a time.


def _corrected(_: str, facts: Facts) -> str:
    before, after = (each // 1000 if isinstance(each, int) else each for each in (facts["beforeMs"], facts["afterMs"]))
    shown = time_of_day if _date(before) == _date(after) else _moment
    return f"log time was set back from {shown(before)} to {shown(after)}"


def _handover(_: str, facts: Facts) -> str:
    receiver = "" if facts.get("server") is None else f" to {_server(facts)}"
    return f"handover of leadership{receiver}: {str(facts['outcome']).replace('-', ' ')}"


def _length(time_ms: Scalar) -> str:
    return duration(time_ms) if isinstance(time_ms, int) else str(time_ms)


def _failed(facts: Facts) -> str:
    failed = faults_text(str(facts["conditions"]).split()) or str(facts["conditions"])
    return f"{failed} ({facts['error']})" if facts["error"] else failed


def _changes(facts: Facts) -> str:
    """Return the age of the last change if the event is late, and the number of changes if it combines several."""
    ago, changes = facts.get("agoMs"), facts.get("changes")
    late = "" if ago is None else f"; it changed {_length(ago)} ago"
    return late if changes is None else f"{late}; {changes} changes since its last event"


def _leaf(leaf_hash: Scalar) -> str:
    return _address(f"{leaf_hash}.b32.i2p")


def _many(names: Scalar) -> str:
    listed = str(names or "").split()
    return ", ".join(listed) or "none"


def _chosen(_: str, facts: Facts) -> str:
    after = "" if facts.get("previous") is None else f", after {_server(facts, 'previous', 'previousName')}"
    because = "" if facts.get("reason") is None else f", because {facts['reason']}"
    if facts["server"] is None:
        return f"no server can publish {_address(facts['master'])}{after}{because}"
    return f"{_server(facts)} will publish {_address(facts['master'])}{after}{because}"


def _follows(_: str, facts: Facts) -> str:
    return f"{_server(facts, 'leader', 'leaderName')} leads in term {facts['term']}"


def _configuration(_: str, facts: Facts) -> str:
    learners = facts.get("learnerNames")
    return f"voters are {_many(facts['voterNames'])}{f'; learners are {_many(learners)}' if learners else ''}"


def _connection(_: str, facts: Facts) -> str:
    times = facts.get("times")
    return f"{facts['text']}{f' ({times} times)' if times else ''}"


def _again(generation: Scalar) -> str:
    """Return the number of the node's start as text; empty for its first start."""
    return f", start number {generation}" if isinstance(generation, int) and generation > 1 else ""


def _addresses(facts: Facts) -> str:
    """Return the addresses that a node has taken, and the reason."""
    gossip = f"; gossip at {facts['gossip']}" if "gossip" in facts else ""
    chosen = f", chosen: {facts['chosen']}" if "chosen" in facts else ""
    return f"{gossip}{chosen}; Raft at {facts['raft']}" if "raft" in facts else ""


def _date(second: Scalar) -> str:
    """Return a date, for times far ahead."""
    if not isinstance(second, int) or not 0 <= second <= LATEST_MS // SECOND_MS:
        return str(second)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d}"


def _message(facts: Facts) -> str:
    payload = facts["payload"]
    return f"{facts['name']} from {facts['from']}{f': {payload}' if payload else ''}"


def _key(words: str) -> Callable[[str, Facts], str]:
    return lambda _, facts: f"gossip key {facts['key']} is {words}{', by force' if facts.get('forced') else ''}"


def _keys_of_era(words: str) -> Callable[[str, Facts], str]:
    def sentence(_: str, facts: Facts) -> str:
        sealed_for = facts.get("sealedFor")
        members = "member" if sealed_for == 1 else "members"
        return f"{words} {facts['era']}{'' if sealed_for is None else f', sealed for {sealed_for} {members}'}"

    return sentence


class ReconcileStep(Enum):
    """A change of the servers by the leader: its word in the facts of the event, and its text."""

    ADMIT = "admit", "admit {who}"
    ADD_LEARNER = "add-learner", "add {who} as a learner"
    PROMOTE = "promote", "make {who} a voter"
    REMOVE = "remove", "remove {who}"
    HAND_OVER = "hand-over", "hand leadership over"

    def __init__(self, word: str, text: str) -> None:
        self.word = word
        self.text = text


_STEPS: Final = {each.word: each.text for each in ReconcileStep}


def _step(facts: Facts) -> str:
    return _filled(_STEPS[str(facts["step"])], "", facts)


_FORMS: Final[Mapping[str, Callable[[Scalar], str]]] = {
    "address": _address,
    "clock": time_of_day,
    "clocks": _clocks,
    "date": _date,
    "leaf": _leaf,
    "length": _length,
    "moment": _moment,
}
"""Forms of a fact in a sentence."""
_DERIVED: Final[Mapping[str, Callable[[Facts], str]]] = {
    "change": _step,
    "message": _message,
    "who": _server,
    "whom": lambda facts: str(facts.get("name") or facts["id"]),
}
"""Parts of a sentence that need several facts."""


class _Sentences(Formatter):
    """Fills sentences: `{second}` is a fact, `{second:clock}` the fact in a form, and `{who}` a derived part."""

    def get_value(self, key: int | str, _: Sequence[Any], facts: Mapping[str, Any]) -> Any:
        derived = _DERIVED.get(str(key))
        return facts[str(key)] if derived is None else derived(facts)

    def format_field(self, value: Any, form: str) -> str:
        return _FORMS[form](value) if form else str(value)


_SENTENCES: Final = _Sentences()


def _filled(sentence: str, _: str, facts: Facts) -> str:
    return _SENTENCES.vformat(sentence, (), facts)


_WARNING: Final = Severity.WARNING
_of_farm: Final = partial(_declare, of_farm=True)
_of_node: Final = partial(_declare, of_farm=False)
LEADER_ELECTED: Final = _of_farm("leader-elected", lambda node, facts: f"{node} leads in term {facts['term']}")
LEADER_FOLLOWED: Final = _of_farm("leader-followed", _follows)
CONFIGURATION_CHANGED: Final = _of_farm("configuration-changed", _configuration)
MEMBER_ALIVE: Final = _of_farm("member-alive", "{member} is alive")
MEMBER_SUSPECT: Final = _of_farm(
    "member-suspect", "{member} does not answer, and is suspected", _WARNING, is_transient=True
)
MEMBER_DEAD: Final = _of_farm("member-dead", "{member} is dead", _WARNING)
MEMBER_LEFT: Final = _of_farm("member-left", "{member} has left")
PUBLISHER_CHOSEN: Final = _of_farm("publisher-chosen", _chosen)
PUBLICATION_ACCEPTED: Final = _of_farm("publication-accepted", "{who} may publish the structure of {second:clock}")
PUBLICATION_REFUSED: Final = _of_farm("publication-refused", "from {who}: {reason:clocks}", _WARNING)
PUBLICATION_FORCED: Final = _of_farm("publication-forced", "{master:address} will be published again")
SERVER_ADMITTED: Final = _of_farm("server-admitted", "{whom} is server {server}")
SERVER_FORGOTTEN: Final = _of_farm("server-forgotten", "{who} has not reported for a long time")
SERVER_RETIRED: Final = _of_farm("server-retired", "{who} is retired: another identity has its name")
SERVER_EVICTED: Final = _of_farm("server-evicted", "{who} is evicted, and the farm gets new keys, of era {era}")
ADMISSION_LAPSED: Final = _of_farm("admission-lapsed", "{who} did not join in time, so its place is free")
ADMISSION_REFUSED: Final = _of_farm("admission-refused", "{whom} is not admitted: {reason}", _WARNING)
LEVEL_RAISED: Final = _of_farm("level-raised", "the feature level is {level}")
LEVEL_REFUSED: Final = _of_farm(
    "level-refused", "the farm cannot change from feature level {current} to {level}: levels rise by one", _WARNING
)
CLOCK_OFF: Final = _of_farm("clock-off", "the clock of {who} differs by {offsetMs} ms", _WARNING)
CLOCK_BOUNDED: Final = _of_farm(
    "clock-bounded",
    "log time was limited: the clock of {who} is {excessMs:length} above the limit that a majority of the clocks sets",
)
LOG_TIME_CORRECTED: Final = _of_farm("log-time-corrected", _corrected)
SECOND_FORGOTTEN: Final = _of_farm(
    "second-forgotten",
    "the last accepted timestamp of {master:address}, {second:moment}, is dropped: a router that has this structure"
    " refuses earlier ones until {until:moment}",
)
REMOVAL_CHANGED: Final = _of_farm(
    "removal-changed",
    lambda _, facts: f"{_server(facts)} is {'removed' if facts['removed'] else 'allowed to join again'}",
)
EXCLUSION_CHANGED: Final = _of_farm(
    "exclusion-changed",
    lambda _, facts: f"leaf {_leaf(facts['leaf'])} is {'excluded' if facts['excluded'] else 'listed again'}",
)
COST_FACTOR_CHANGED: Final = _of_farm("cost-factor-changed", "the cost of leaf {leaf:leaf} is multiplied by {factor}")
FACTORS_ACCEPTED: Final = _of_farm(
    "factors-accepted", "the pipeline's factors (leaves: {leaves}), computed from the log through entry {throughIndex}"
)
COMMAND_REFUSED: Final = _of_farm(
    "command-refused", "an entry of kind {kind} is ineffective: {reason:clocks}", _WARNING
)
CLIENT_KEY_CHANGED: Final = _of_farm(
    "client-key-changed",
    lambda _, facts: (
        f"the client key {facts['name']} is " + (f"admitted for {facts['scopes']}" if facts["admitted"] else "removed")
    ),
)
KEY_REPLACEMENT: Final = _of_farm("key-replacement", _keys_of_era("new keys of era"))
KEY_REPLACEMENT_REFUSED: Final = _of_farm(
    "key-replacement-refused", "keys of era {era} do not replace the present ones: {reason}", _WARNING
)
EVICTION_REFUSED: Final = _of_farm("eviction-refused", "{whom} is not evicted: {reason}", _WARNING)
ENTRY_TOO_EARLY: Final = _of_farm(
    "entry-too-early", "an entry of kind {kind} is ineffective before feature level {neededLevel}"
)
ENTRY_WITHOUT_EFFECT: Final = _of_farm(
    "entry-without-effect",
    lambda _, facts: (
        f"an entry of kind {facts['kind']} is ineffective: {facts['reason']}"
        f" (author {facts.get('authorName') or facts['author'] or 'unknown'})"
    ),
)
REQUEST_REFUSED: Final = _of_farm(
    "request-refused",
    "the entry of request {request} is ineffective: the request is expired, too early or out of order",
    _WARNING,
)
VERDICT_CHANGED: Final = _of_node("verdict-changed", "{text}")
ALARM_RAISED: Final = _of_node("alarm-raised", "{alarm}: {text}", _WARNING)
ALARM_CLEARED: Final = _of_node("alarm-cleared", "{alarm} is cleared")
LEADER_UNKNOWN: Final = _of_node(
    "leader-unknown", "it does not know a leader in term {term}", _WARNING, is_transient=True
)
ELECTION_STARTED: Final = _of_node("election-started", "it is a candidate in term {term}")
LEADERSHIP_HANDED_OVER: Final = _of_node(
    "leadership-handed-over", lambda _, facts: f"to {_server(facts, 'leader', 'leaderName')}, in term {facts['term']}"
)
PUBLISHED: Final = _of_node("published", "its router accepted the structure of {second:clock} (entries: {entries})")
STRUCTURE_SEEN: Final = _of_node("structure-seen", "a router of another node finds {master:address}")
STRUCTURE_NOT_FOUND: Final = _of_node(
    "structure-not-found", "no router of another node finds {master:address}, so it is handed over again", _WARNING
)
PUBLISH_FAILED: Final = _of_node(
    "publish-failed",
    lambda _, facts: (
        f"the structure of {time_of_day(facts['second'])}: {_clocks(facts['reason'])}"
        if "second" in facts
        else _clocks(facts["reason"])
    ),
    _WARNING,
)
LEAF_UNHEALTHY: Final = _of_node(
    "leaf-unhealthy", lambda _, facts: f"leaf {_leaf(facts['leaf'])}: {_failed(facts)}{_changes(facts)}", _WARNING
)
LEAF_HEALTHY: Final = _of_node(
    "leaf-healthy",
    lambda _, facts: (
        f"leaf {_leaf(facts['leaf'])} is healthy again after {_length(facts['unhealthyMs'])}: before, {_failed(facts)}"
        f"{_changes(facts)}"
    ),
)
CONNECTION_FAILED: Final = _of_node("connection-failed", _connection, _WARNING)
CONNECTION_REFUSED: Final = _of_node("connection-refused", _connection, _WARNING)
CONNECTION_RESTORED: Final = _of_node("connection-restored", "{text} (failures before: {failures})")
NODE_STARTED: Final = _of_node(
    "node-started", lambda _, facts: f"with pid {facts['pid']}{_again(facts['generation'])}{_addresses(facts)}"
)
FOUNDING_PROMISED: Final = _of_node("founding-promised", "it promises to create a farm; number of founders: {founders}")
FOUNDING_IGNORED: Final = _of_node("founding-ignored", "from {id}, of cluster {cluster}")
FARM_FOUNDED: Final = _of_node("farm-founded", "of cluster {cluster}, as server {raftId}")
FARM_KNOWN: Final = _of_node("farm-known", "it has discovered cluster {cluster}")
FARM_RESUMED: Final = _of_node("farm-resumed", "it continues in cluster {cluster}, as server {raftId}")
ADMITTED: Final = _of_node("admitted", "it belongs to cluster {cluster}, as server {raftId}")
RAFT_ID_CORRECTED: Final = _of_node("raft-id-corrected", "it continues in cluster {cluster}, as server {raftId}")
USER_EVENT: Final = _of_node("user-event", "{message}")
QUERY: Final = _of_node(
    "query", lambda _, facts: f"{_message(facts)} ({'answered' if facts['answered'] else 'it does not have an answer'})"
)
DIRECTORY_OPENED: Final = _of_node("directory-opened", "clients reach it at {directory}")
DIRECTORY_FAILED: Final = _of_node("directory-failed", "{reason:clocks}", _WARNING)
CONTROL_CERTIFICATE_RENEWED: Final = _of_node(
    "control-certificate-renewed", "clients that check the certificate need the new {file}"
)
SIGNING_KEY_RENEWED: Final = _of_node("signing-key-renewed", "it can sign until {until:date}")
RECONCILE_PROPOSED: Final = _of_node("reconcile-proposed", "{change}")
RECONCILE_FAILED: Final = _of_node("reconcile-failed", "to {change}: {reason}", _WARNING)
CHANGE_REFUSED: Final = _of_node("change-refused", _connection, _WARNING)
NODE_EVICTED: Final = _of_node("node-evicted", _keys_of_era("with new keys of era"))
KEY_NEWS_REFUSED: Final = _of_node("key-news-refused", "of {from}: {reason}", _WARNING)
NODE_APPROVED: Final = _of_node("node-approved", "{whom} is server {server} from here on")
KEY_INSTALLED: Final = _of_node("key-installed", _key("installed"))
KEY_USED: Final = _of_node("key-used", _key("used by all nodes to seal"))
KEY_REMOVED: Final = _of_node("key-removed", _key("refused from here on"))
KEYS_REPLACED: Final = _of_node("keys-replaced", _keys_of_era("it seals with keys of era"))
INVITATION_CREATED: Final = _of_node("invitation-created", "{invitation}, uses: {uses}")
INVITATION_REDEEMED: Final = _of_node("invitation-redeemed", "{invitation}, by {name} ({id})")
INVITATION_REFUSED: Final = _of_node("invitation-refused", "from {address}: {reason}", _WARNING)
INVITATION_PORT_FAILED: Final = _of_node("invitation-port-failed", "{reason}", _WARNING)
INVITED_NODE_FAILED: Final = _of_node("invited-node-failed", "{name} ({id}) is not admitted: {reason}", _WARNING)
KEYS_REPLACEMENT_COMMITTED: Final = _of_node("keys-replacement-committed", _keys_of_era("new keys of era"))
NODE_STOPPING: Final = _of_node(
    "node-stopping", lambda _, facts: "it leaves the farm" if facts["leaving"] else "it stops"
)
BACKUP_MADE: Final = _of_node("backup-made", "it contains the farm's state at entry {index} of the log")
CLOCK_FAILED: Final = _of_node("clock-failed", "its clock entry is not written: {reason}", _WARNING)
REPORT_FAILED: Final = _of_node("report-failed", "its report is not written: {reason}", _WARNING)
HANDOVER_ORDERED: Final = _of_node("handover-ordered", _handover)
KEY_OFFER_REFUSED: Final = _of_node("key-offer-refused", "from another node: {reason}", _WARNING)
KEY_OFFERED: Final = _of_node(
    "key-offered",
    lambda _, facts: (
        f"{facts.get('name') or facts['from']} offers keys of era {facts['era']}:"
        f" {facts['vouching']} of {facts['needed']} needed voters offer these"
    ),
)
KEYS_EXPORTED: Final = _of_node(
    "keys-exported",
    lambda _, facts: (
        f"the farm's keys of epoch {facts['epoch']} were read for a farm key file"
        f"{', without confirmation by a leader' if facts.get('unconfirmed') else ''}"
    ),
)
PUBLISHING_STOPPED: Final = _of_node("publishing-stopped", "its router stops publishing {master:address}")
REMOVED_FROM_FARM: Final = _of_node("removed-from-farm", "it is no longer a server of the farm")
SHOWN_AS: Final = {LEADER_FOLLOWED.kind: LEADER_ELECTED.kind}
"""Map each kind that reports a fact from another node's point of view to the displayed kind."""


def _named(facts: Facts) -> dict[str, Scalar]:
    """Return the facts without the Raft ids of servers whose names are also facts."""
    names = {"server": "name", "leader": "leaderName", "previous": "previousName"}
    hidden = {number for number, name in names.items() if facts.get(name)}
    return {key: value for key, value in facts.items() if key not in hidden}


def _shown(key: str, value: Scalar) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case int() if key in {"second", "until"}:
            return time_of_day(value)
        case str() if value.endswith(".b32.i2p"):
            return _address(value)
        case _:
            return str(value)


# -- changes of the farm's state ---------------------------------------------------------------------------------------


def change_event(change: Change) -> tuple[EventType, dict[str, Scalar]]:  # noqa: PLR0911, PLR0912, C901 - one case per change
    """Return the type and the facts of the event that reports a change of the farm's state."""
    match change:
        case PublisherChanged(master, server_id, previous):
            return PUBLISHER_CHOSEN, {"server": server_id, "previous": previous, "master": _address_of(master)}
        case PublicationAccepted(publication):
            return PUBLICATION_ACCEPTED, {"server": publication.server_id, "second": publication.published_s}
        case PublicationRefused(publication, reason):
            return PUBLICATION_REFUSED, {"server": publication.server_id, "reason": reason}
        case ClockOff(server_id, offset_ms):
            return CLOCK_OFF, {"server": server_id, "offsetMs": offset_ms}
        case ClockBounded(server_id, excess_ms):
            return CLOCK_BOUNDED, {"server": server_id, "excessMs": excess_ms}
        case LogTimeCorrected(before_ms, after_ms):
            return LOG_TIME_CORRECTED, {"beforeMs": before_ms, "afterMs": after_ms}
        case SecondForgotten(publication, refused_until_s):
            second = publication.published_s
            return SECOND_FORGOTTEN, {
                "master": _address_of(publication.master),
                "second": second,
                "until": refused_until_s,
            }
        case RequestRefused(request):
            return REQUEST_REFUSED, {"request": request}
        case ServerForgotten(server_id):
            return SERVER_FORGOTTEN, {"server": server_id}
        case ServerRetired(server_id, node_id, name, successor):
            return SERVER_RETIRED, {
                "server": server_id,
                "name": name,
                "id": node_id.hex(),
                "successor": successor.hex(),
            }
        case ServerEvicted(server_id, node_id, era):
            return SERVER_EVICTED, {"server": server_id, "id": node_id.hex(), "era": era}
        case EvictionRefused(node_id, reason):
            return EVICTION_REFUSED, {"id": node_id.hex(), "reason": reason}
        case NewEra(era, sealed_for):
            return KEY_REPLACEMENT, {"era": era, "sealedFor": sealed_for}
        case KeysNotReplaced(era, reason):
            return KEY_REPLACEMENT_REFUSED, {"era": era, "reason": reason}
        case LevelRaised(level):
            return LEVEL_RAISED, {"level": level}
        case LevelRefused(level, current):
            return LEVEL_REFUSED, {"level": level, "current": current}
        case EntryTooEarly(kind, needed):
            return ENTRY_TOO_EARLY, {"kind": kind, "neededLevel": needed}
        case EntryWithoutEffect(kind, author, reason):
            author_hex = None if author is None else author.hex()
            return ENTRY_WITHOUT_EFFECT, {"kind": kind, "author": author_hex, "reason": reason.value}
        case ClientChanged(node_id, name, scopes, admitted):
            facts: dict[str, Scalar] = {"name": name, "id": node_id.hex(), "scopes": " ".join(scopes)}
            return CLIENT_KEY_CHANGED, facts | {"admitted": admitted}
        case AdmissionLapsed(server_id, node_id, name):
            return ADMISSION_LAPSED, {"server": server_id, "name": name, "id": node_id.hex()}
        case ServerAdmitted(server_id, node_id, name):
            return SERVER_ADMITTED, {"server": server_id, "name": name, "id": node_id.hex()}
        case AdmissionRefused(node_id, name, reason):
            return ADMISSION_REFUSED, {"name": name, "id": node_id.hex(), "reason": reason}
        case PublicationForced(master):
            return PUBLICATION_FORCED, {"master": _address_of(master)}
        case RemovalChanged(server_id, removed):
            return REMOVAL_CHANGED, {"server": server_id, "removed": removed}
        case ExclusionChanged() | CostFactorChanged() | FactorsAccepted() | CommandRefused():
            return _weights_event(change)
        case _:
            assert_never(change)


def _weights_event(change: WeightsChange) -> tuple[EventType, dict[str, Scalar]]:
    match change:
        case ExclusionChanged(leaf_hash, excluded):
            return EXCLUSION_CHANGED, {"leaf": leaf_hash, "excluded": excluded}
        case CostFactorChanged(leaf_hash, thousandths):
            return COST_FACTOR_CHANGED, {"leaf": leaf_hash, "factor": thousandths / THOUSANDTHS}
        case FactorsAccepted(through_index, leaves):
            return FACTORS_ACCEPTED, {"throughIndex": through_index, "leaves": leaves}
        case CommandRefused(kind, reason):
            return COMMAND_REFUSED, {"kind": kind, "reason": reason}
        case _:
            assert_never(change)


def _address_of(master: str) -> str:
    return f"{hash_of(master)}.b32.i2p"
