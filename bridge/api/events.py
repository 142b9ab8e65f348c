"""The kinds of events: the facts that report a change, the sentence, and events of several nodes as one story.

    Change     ──▶ change_event     kind and facts
    TraceEvent ──▶ event_sentence   "node-2 will publish hakketfo….b32.i2p, after node-3"
               ──▶ event_text       the same after its kind, as in a line of the log
    events of several nodes ──▶ EventStory ──▶ each fact once

The data of an event are for programs: Raft ids, seconds, addresses. People get names and times of day. A kind of
another version, which has no sentence here, is printed with its facts.

*One story.* All servers report changes of the log alike, and most of them report changes in gossip. Three nodes report
the same fact three times within a second. Two events are the same fact if their sentences are equal and less than
`SAME_FACT_MS` apart. Comparing data would be stricter. But then the leader's report of an election and its followers'
reports would be different facts.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, assert_never

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
_WARNINGS: Final = frozenset({"alarm-raised", "clock-off", "leaf-unhealthy", "member-dead", "structure-not-found"})
_DOUBTFUL: Final = frozenset({"member-suspect", "leader-unknown"})
"""Events that are warnings on screens but not in the node's log: most of these conditions end in a second."""
ADDRESS_LETTERS: Final = 12
SHOWN_AS: Final[Mapping[str, str]] = {"leader-followed": "leader-elected"}
"""Kinds that report the same fact from another node's point of view, each with the kind that is shown."""
_SECOND = re.compile(r"\b(second |after )([1-9][0-9]{9})\b")
Facts = Mapping[str, Scalar]


def event_text(event: TraceEvent) -> str:
    """Return an event as a line for people and for `grep`: its kind, then its sentence."""
    sentence = event_sentence(event)
    return f"{event.kind}: {sentence}" if sentence else event.kind


def event_sentence(event: TraceEvent) -> str:
    """Return the sentence of an event, with names and times of day; empty if the kind suffices."""
    try:
        return SENTENCES.get(event.kind, _facts_alone)(event.node, event.data)
    except KeyError:
        return _facts_alone(event.node, event.data)  # An event of another version may lack a fact.


class EventStory:
    """Filters events so that each fact appears once, in bounded memory.

    Call `is_new` for the events of all nodes in the order of their arrival.
    """

    def __init__(self) -> None:
        self._reported_ms: OrderedDict[str, int] = OrderedDict()

    def is_new(self, sentence: str, time_ms: int) -> bool:
        """Return True unless the sentence was reported less than `SAME_FACT_MS` before or after `time_ms`."""
        last_ms = self._reported_ms.get(sentence)
        if last_ms is not None and abs(time_ms - last_ms) < SAME_FACT_MS:
            return False
        self._reported_ms[sentence] = time_ms
        self._reported_ms.move_to_end(sentence)
        if len(self._reported_ms) > FACTS_MAX:
            self._reported_ms.popitem(last=False)
        return True


def story_line(event: TraceEvent) -> str:
    """Return a line of the one story: about the farm, or about the node of the event."""
    shown = SHOWN_AS.get(event.kind, event.kind)
    sentence = event_sentence(event)
    who = "" if event.kind in OF_THE_FARM else f"{event.node} "
    return f"{who}{shown}{f': {sentence}' if sentence else ''}"


def is_warning(event: TraceEvent) -> bool:
    """Return True if an operator may have to act: a failure, a refusal, an alarm, or a bad verdict."""
    if event.kind == "verdict-changed":
        return event.data.get("severity") != Severity.OK.value
    return event.kind in _WARNINGS or event.kind.endswith(("-failed", "-refused"))


def event_severity(event: TraceEvent) -> Severity:
    """Return the severity of the reported alarm or verdict; for other events, a warning if `is_warning`."""
    match event.kind:
        case "verdict-changed":
            severities = {each.value: each for each in Severity}
            return severities.get(str(event.data.get("severity")), Severity.WARNING)
        case "alarm-raised":
            return alarm_severity(str(event.data.get("alarm")))
        case kind:
            return Severity.WARNING if kind in _DOUBTFUL or is_warning(event) else Severity.OK


# -- words -------------------------------------------------------------------------------------------------------------


def _facts_alone(_: str, facts: Facts) -> str:
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


def _leads(node: str, facts: Facts) -> str:
    return f"{node} leads in term {facts['term']}"


def _follows(_: str, facts: Facts) -> str:
    return f"{_server(facts, 'leader', 'leaderName')} leads in term {facts['term']}"


def _configuration(_: str, facts: Facts) -> str:
    learners = facts.get("learnerNames")
    return f"voters are {_many(facts['voterNames'])}{f'; learners are {_many(learners)}' if learners else ''}"


def _connection(_: str, facts: Facts) -> str:
    times = facts.get("times")
    return f"{facts['text']}{f' ({times} times)' if times else ''}"


def _again(generation: Scalar) -> str:
    """Return a text about a start of a node after the first one; empty for the first."""
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


def _in_cluster(words: str) -> Callable[[str, Facts], str]:
    return lambda _, facts: f"{words} {facts['cluster']}, as server {facts['raftId']}"


def _message(facts: Facts) -> str:
    payload = facts["payload"]
    return f"{facts['name']} from {facts['from']}{f': {payload}' if payload else ''}"


def _key(words: str) -> Callable[[str, Facts], str]:
    return lambda _, facts: f"gossip key {facts['key']} is {words}{', by force' if facts.get('forced') else ''}"


def _keys_of_era(words: str) -> Callable[[str, Facts], str]:
    def sentence(_: str, facts: Facts) -> str:
        sealed_for = facts.get("sealedFor")
        return f"{words} {facts['era']}{'' if sealed_for is None else f', sealed for {sealed_for} members'}"

    return sentence


_STEPS: Final[Mapping[str, str]] = {
    "admit": "admit {}",
    "add-learner": "let {} learn the log",
    "promote": "let {} vote",
    "remove": "take {} out",
    "hand-over": "hand leadership over",
}


def _step(facts: Facts) -> str:
    step = _STEPS[str(facts["step"])]
    return step.format(_server(facts)) if "{}" in step else step


def _member(word: str) -> Callable[[str, Facts], str]:
    return lambda _, facts: f"{facts['member']} {word}"


_OF_FARM: Final[Mapping[str, Callable[[str, Facts], str]]] = {
    "leader-elected": _leads,
    "leader-followed": _follows,
    "configuration-changed": _configuration,
    "member-alive": _member("is alive"),
    "member-suspect": _member("does not answer, and is suspected"),
    "member-dead": _member("is dead"),
    "member-left": _member("has left"),
    "publisher-chosen": _chosen,
    "publication-accepted": lambda _, facts: (
        f"{_server(facts)} may publish the structure of {time_of_day(facts['second'])}"
    ),
    "publication-refused": lambda _, facts: f"from {_server(facts)}: {_clocks(facts['reason'])}",
    "publication-forced": lambda _, facts: f"{_address(facts['master'])} will be published again",
    "server-admitted": lambda _, facts: f"{facts['name'] or facts['id']} is server {facts['server']}",
    "server-forgotten": lambda _, facts: f"{_server(facts)} has not reported for a long time",
    "server-retired": lambda _, facts: f"{_server(facts)} is retired: another identity has its name",
    "server-evicted": lambda _, facts: f"{_server(facts)} is evicted, and keys of era {facts['era']} are new",
    "admission-lapsed": lambda _, facts: f"{_server(facts)} did not join in time, so its place is free",
    "admission-refused": lambda _, facts: f"{facts['name'] or facts['id']} is not admitted: {facts['reason']}",
    "level-raised": lambda _, facts: f"the feature level is {facts['level']}",
    "level-refused": lambda _, facts: (
        f"the farm cannot change from feature level {facts['current']} to {facts['level']}: levels rise by one"
    ),
    "clock-off": lambda _, facts: f"the clock of {_server(facts)} differs by {facts['offsetMs']} ms",
    "clock-bounded": lambda _, facts: (
        f"log time was limited: the clock of {_server(facts)} exceeded the limit of a majority of the clocks by"
        f" {_length(facts['excessMs'])}"
    ),
    "log-time-corrected": _corrected,
    "second-forgotten": lambda _, facts: (
        f"the last accepted second of {_address(facts['master'])}, {_moment(facts['second'])}, is dropped: a router"
        f" that has this structure refuses earlier ones until {_moment(facts['until'])}"
    ),
    "removal-changed": lambda _, facts: (
        f"{_server(facts)} is {'removed' if facts['removed'] else 'allowed to join again'}"
    ),
    "exclusion-changed": lambda _, facts: (
        f"leaf {_leaf(facts['leaf'])} is {'excluded' if facts['excluded'] else 'listed again'}"
    ),
    "cost-factor-changed": lambda _, facts: (
        f"the cost of leaf {_leaf(facts['leaf'])} is multiplied by {facts['factor']}"
    ),
    "factors-accepted": lambda _, facts: (
        f"the pipeline's factors of {facts['leaves']} leaves, computed from the log through entry"
        f" {facts['throughIndex']}"
    ),
    "command-refused": lambda _, facts: f"an entry of kind {facts['kind']} is ineffective: {_clocks(facts['reason'])}",
    "client-key-changed": lambda _, facts: (
        f"the client key {facts['name']} is " + (f"admitted for {facts['scopes']}" if facts["admitted"] else "removed")
    ),
    "key-replacement": _keys_of_era("new keys of era"),
    "key-replacement-refused": lambda _, facts: (
        f"keys of era {facts['era']} do not replace the present ones: {facts['reason']}"
    ),
    "eviction-refused": lambda _, facts: f"{facts.get('name') or facts['id']} is not evicted: {facts['reason']}",
    "entry-too-early": lambda _, facts: (
        f"an entry of kind {facts['kind']} is ineffective before feature level {facts['neededLevel']}"
    ),
    "entry-without-effect": lambda _, facts: (
        f"an entry of kind {facts['kind']} is ineffective: {facts['reason']}"
        f" (author {facts.get('authorName') or facts['author'] or 'unknown'})"
    ),
    "request-refused": lambda _, facts: (
        f"the entry of request {facts['request']} is ineffective: the request is expired, too early or out of order"
    ),
}
"""About the farm: it does not matter which node reports them."""
_OF_NODE: Final[Mapping[str, Callable[[str, Facts], str]]] = {
    "verdict-changed": lambda _, facts: str(facts["text"]),
    "alarm-raised": lambda _, facts: f"{facts['alarm']}: {facts['text']}",
    "alarm-cleared": lambda _, facts: f"{facts['alarm']} is cleared",
    "leader-unknown": lambda _, facts: f"it does not know a leader in term {facts['term']}",
    "election-started": lambda _, facts: f"it is a candidate in term {facts['term']}",
    "leadership-handed-over": lambda _, facts: f"to {_server(facts, 'leader', 'leaderName')}, in term {facts['term']}",
    "published": lambda _, facts: (
        f"its router took the structure of {time_of_day(facts['second'])}, with {facts['entries']} entries"
    ),
    "structure-seen": lambda _, facts: f"a router of another node finds {_address(facts['master'])}",
    "structure-not-found": lambda _, facts: (
        f"no router of another node finds {_address(facts['master'])}, so it is handed over again"
    ),
    "publish-failed": lambda _, facts: (
        f"the structure of {time_of_day(facts['second'])}: {_clocks(facts['reason'])}"
        if "second" in facts
        else _clocks(facts["reason"])
    ),
    "leaf-unhealthy": lambda _, facts: f"leaf {_leaf(facts['leaf'])}: {_failed(facts)}{_changes(facts)}",
    "leaf-healthy": lambda _, facts: (
        f"leaf {_leaf(facts['leaf'])} is healthy again after {_length(facts['unhealthyMs'])}: before, {_failed(facts)}"
        f"{_changes(facts)}"
    ),
    "connection-failed": _connection,
    "connection-refused": _connection,
    "connection-restored": lambda _, facts: f"{facts['text']} after {facts['failures']} failures",
    "node-started": lambda _, facts: f"with pid {facts['pid']}{_again(facts['generation'])}{_addresses(facts)}",
    "founding-promised": lambda _, facts: f"it promises to create a farm of {facts['founders']} nodes",
    "founding-ignored": lambda _, facts: f"from {facts['id']}, of cluster {facts['cluster']}",
    "farm-founded": _in_cluster("of cluster"),
    "farm-known": lambda _, facts: f"it has discovered cluster {facts['cluster']}",
    "farm-resumed": _in_cluster("it continues in cluster"),
    "admitted": _in_cluster("it belongs to cluster"),
    "raft-id-corrected": _in_cluster("it continues in cluster"),
    "user-event": lambda _, facts: _message(facts),
    "query": lambda _, facts: (
        f"{_message(facts)} ({'answered' if facts['answered'] else 'it does not have an answer'})"
    ),
    "directory-opened": lambda _, facts: f"clients reach it at {facts['directory']}",
    "directory-failed": lambda _, facts: _clocks(facts["reason"]),
    "control-certificate-renewed": lambda _, facts: f"clients that compare it need the new {facts['file']}",
    "signing-key-renewed": lambda _, facts: f"it can sign until {_date(facts['until'])}",
    "reconcile-proposed": lambda _, facts: _step(facts),
    "reconcile-failed": lambda _, facts: f"to {_step(facts)}: {facts['reason']}",
    "change-refused": _connection,
    "node-evicted": _keys_of_era("with new keys of era"),
    "key-news-refused": lambda _, facts: f"of {facts['from']}: {facts['reason']}",
    "node-approved": lambda _, facts: f"{facts['name'] or facts['id']} is server {facts['server']} from here on",
    "key-installed": _key("installed"),
    "key-used": _key("used by all nodes to seal"),
    "key-removed": _key("refused from here on"),
    "keys-replaced": _keys_of_era("it seals with keys of era"),
    "invitation-created": lambda _, facts: f"{facts['invitation']}, uses: {facts['uses']}",
    "invitation-redeemed": lambda _, facts: f"{facts['invitation']}, by {facts['name']} ({facts['id']})",
    "invitation-refused": lambda _, facts: f"from {facts['address']}: {facts['reason']}",
    "invitation-port-failed": lambda _, facts: str(facts["reason"]),
    "invited-node-failed": lambda _, facts: f"{facts['name']} ({facts['id']}) is not admitted: {facts['reason']}",
    "keys-replacement-committed": _keys_of_era("new keys of era"),
    "node-stopping": lambda _, facts: "it leaves the farm" if facts["leaving"] else "it stops",
    "backup-made": lambda _, facts: f"it contains the farm's state at entry {facts['index']} of the log",
    "clock-failed": lambda _, facts: f"its clock entry is not written: {facts['reason']}",
    "report-failed": lambda _, facts: f"its report is not written: {facts['reason']}",
    "handover-ordered": _handover,
    "key-offer-refused": lambda _, facts: f"from another node: {facts['reason']}",
    "key-offered": lambda _, facts: (
        f"{facts.get('name') or facts['from']} offers keys of era {facts['era']}:"
        f" {facts['vouching']} of {facts['needed']} needed voters offer these"
    ),
    "keys-exported": lambda _, facts: (
        f"the farm's keys of epoch {facts['epoch']} were read for a farm key file"
        f"{', without confirmation by a leader' if facts.get('unconfirmed') else ''}"
    ),
    "publishing-stopped": lambda _, facts: f"its router stops publishing {_address(facts['master'])}",
    "removed-from-farm": lambda *_: "it is no longer a server of the farm",
}
"""About the node that reports them."""
SENTENCES: Final[Mapping[str, Callable[[str, Facts], str]]] = {**_OF_FARM, **_OF_NODE}
OF_THE_FARM: Final = frozenset(_OF_FARM)


def _named(facts: Facts) -> dict[str, Scalar]:
    """Return the facts without the Raft ids of servers whose names are also facts."""
    hidden = {number for number, name in (("server", "name"), ("leader", "leaderName")) if facts.get(name)}
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


def change_event(change: Change) -> tuple[str, dict[str, Scalar]]:  # noqa: PLR0911, PLR0912, C901 - one case per change
    """Return the kind and the facts of the event that reports a change of the farm's state."""
    match change:
        case PublisherChanged(master, server_id, previous):
            return "publisher-chosen", {"server": server_id, "previous": previous, "master": _address_of(master)}
        case PublicationAccepted(publication):
            return "publication-accepted", {"server": publication.server_id, "second": publication.published_s}
        case PublicationRefused(publication, reason):
            return "publication-refused", {"server": publication.server_id, "reason": reason}
        case ClockOff(server_id, offset_ms):
            return "clock-off", {"server": server_id, "offsetMs": offset_ms}
        case ClockBounded(server_id, excess_ms):
            return "clock-bounded", {"server": server_id, "excessMs": excess_ms}
        case LogTimeCorrected(before_ms, after_ms):
            return "log-time-corrected", {"beforeMs": before_ms, "afterMs": after_ms}
        case SecondForgotten(publication, refused_until_s):
            second = publication.published_s
            return "second-forgotten", {
                "master": _address_of(publication.master),
                "second": second,
                "until": refused_until_s,
            }
        case RequestRefused(request):
            return "request-refused", {"request": request}
        case ServerForgotten(server_id):
            return "server-forgotten", {"server": server_id}
        case ServerRetired(server_id, node_id, name, successor):
            return "server-retired", {
                "server": server_id,
                "name": name,
                "id": node_id.hex(),
                "successor": successor.hex(),
            }
        case ServerEvicted(server_id, node_id, era):
            return "server-evicted", {"server": server_id, "id": node_id.hex(), "era": era}
        case EvictionRefused(node_id, reason):
            return "eviction-refused", {"id": node_id.hex(), "reason": reason}
        case NewEra(era, sealed_for):
            return "key-replacement", {"era": era, "sealedFor": sealed_for}
        case KeysNotReplaced(era, reason):
            return "key-replacement-refused", {"era": era, "reason": reason}
        case LevelRaised(level):
            return "level-raised", {"level": level}
        case LevelRefused(level, current):
            return "level-refused", {"level": level, "current": current}
        case EntryTooEarly(kind, needed):
            return "entry-too-early", {"kind": kind, "neededLevel": needed}
        case EntryWithoutEffect(kind, author, reason):
            author_hex = None if author is None else author.hex()
            return "entry-without-effect", {"kind": kind, "author": author_hex, "reason": reason.value}
        case ClientChanged(node_id, name, scopes, admitted):
            facts: dict[str, Scalar] = {"name": name, "id": node_id.hex(), "scopes": " ".join(scopes)}
            return "client-key-changed", facts | {"admitted": admitted}
        case AdmissionLapsed(server_id, node_id, name):
            return "admission-lapsed", {"server": server_id, "name": name, "id": node_id.hex()}
        case ServerAdmitted(server_id, node_id, name):
            return "server-admitted", {"server": server_id, "name": name, "id": node_id.hex()}
        case AdmissionRefused(node_id, name, reason):
            return "admission-refused", {"name": name, "id": node_id.hex(), "reason": reason}
        case PublicationForced(master):
            return "publication-forced", {"master": _address_of(master)}
        case RemovalChanged(server_id, removed):
            return "removal-changed", {"server": server_id, "removed": removed}
        case ExclusionChanged() | CostFactorChanged() | FactorsAccepted() | CommandRefused():
            return _weights_event(change)
        case _:
            assert_never(change)


def _weights_event(change: WeightsChange) -> tuple[str, dict[str, Scalar]]:
    match change:
        case ExclusionChanged(leaf_hash, excluded):
            return "exclusion-changed", {"leaf": leaf_hash, "excluded": excluded}
        case CostFactorChanged(leaf_hash, thousandths):
            return "cost-factor-changed", {"leaf": leaf_hash, "factor": thousandths / THOUSANDTHS}
        case FactorsAccepted(through_index, leaves):
            return "factors-accepted", {"throughIndex": through_index, "leaves": leaves}
        case CommandRefused(kind, reason):
            return "command-refused", {"kind": kind, "reason": reason}
        case _:
            assert_never(change)


def _address_of(master: str) -> str:
    return f"{hash_of(master)}.b32.i2p"
